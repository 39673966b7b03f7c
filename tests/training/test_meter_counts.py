"""The meter's matrix FLOPs are those of a training step that is really executed, part by part."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lrt_lab.assembly import require_trainable
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.schedules import Clock, Schedule
from lrt_lab.training.loss import training_loss
from lrt_lab.training.meter import measure
from lrt_lab.training.tally import EXTRA
from tests.support.covering import covering, goals
from tests.support.registry import BACKBONES, MIXERS, ROUTES, SCHEDULES, Case

LENGTH, SIZES = 5, {"width": 12, "blocks": 2, "vocab": 23}


class Everywhere:
    """Counts under one name, whatever module is at work."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def executed(decoder: Decoder, schedule: Schedule, length: int = LENGTH) -> float:
    """FLOPs per token of one training step on the CPU, by torch's own counter."""
    total = 0.0
    for share, part in schedule.mixture():
        frame = part.rehearsal(length, torch.device("cpu"))
        # The fused kernel of the CPU is one that the counter does not know.
        counter = FlopCounterMode(display=False, custom_mapping=EXTRA)
        # Its own follows modules' gradients, and stumbles over inputs that are parameters.
        counter.mod_tracker = Everywhere()
        with sdpa_kernel(SDPBackend.MATH), counter:
            training_loss(decoder, part, frame, frame.ids, Clock()).backward()
        total += share * counter.get_total_flops()
    return total / length


def stored(decoder: Decoder) -> int:
    """Numbers that an optimizer moves and a checkpoint holds, a shared one once."""
    kept = {p.data_ptr(): p for p in decoder.state_dict(keep_vars=True).values() if p.requires_grad}
    return sum(p.untyped_storage().nbytes() // p.element_size() for p in kept.values())


def meet(first: Case, second: Case) -> bool:
    """Whether a model can have both parts: a route must be one that the schedule can train."""
    if first not in ROUTES or second not in SCHEDULES:
        return True
    try:
        require_trainable(first(), second())
    except UserError:
        return False
    return True


AXES = (BACKBONES, ROUTES, SCHEDULES, MIXERS)
CELLS = covering(AXES, meet)


@pytest.mark.parametrize(("backbone", "route", "schedule", "mixer"), CELLS, ids=str)
def test_parameters_and_matrix_flops_are_those_of_a_real_step(
    backbone: Case, route: Case, schedule: Case, mixer: Case
) -> None:
    def build() -> Decoder:
        return Decoder(backbone=backbone(), route=route(), mixer=mixer(heads=2), **SIZES)

    with torch.device("meta"):
        priced = build()
    cost, real = measure(priced, schedule(), LENGTH), build()
    assert cost.total == stored(real) == sum(part.total for part in cost.parts)
    flops = executed(real, schedule())
    assert cost.train_flops_per_token == pytest.approx(flops, rel=0.01)
    assert cost.graded_passes <= cost.passes + 1e-9


def test_every_class_meets_every_other_and_every_variant_occurs() -> None:
    shown = set().union(*map(goals, CELLS))
    for first, second in combinations(AXES, 2):
        for pair in product(first, second):
            assert goals(pair) <= shown or not meet(*pair)
