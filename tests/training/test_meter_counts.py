"""The meter's matrix FLOPs are those of a training step that is really executed, part by part."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lrt_lab.decoder import Decoder
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Clock, Schedule, SinglePass
from lrt_lab.training.loss import training_loss
from lrt_lab.training.meter import trained
from lrt_lab.training.tally import EXTRA, Tally
from tests.support.registry import (
    BACKBONES,
    MIXERS,
    NEAR,
    OWN,
    ROUTES,
    SCHEDULES,
    Case,
    plain,
)

LENGTH, SIZES = 7, {"width": 12, "blocks": 2, "vocab": 23}


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


def both(backbone, route, mixer, schedule: Schedule) -> tuple[float, Tally]:
    def build() -> Decoder:
        return Decoder(backbone=backbone, route=route, mixer=mixer, **SIZES)

    with torch.device("meta"):
        priced = build()
    return executed(build(), schedule), trained(priced, schedule, LENGTH)


def trained_by(route: Case) -> Schedule:
    """The schedule that a route was made for, its shortest variant."""
    if not route().traits.recurrent:
        return SinglePass()
    own = OWN.get(route.part.__name__, "Interleaved")
    return [case for case in SCHEDULES if case.part.__name__ == own][-1]()


PLAIN = next(case for case in BACKBONES if case.name == "PreNorm")
LRT = next(case for case in ROUTES if case.name == "LRT")
ATTENTION = None
CELLS = [
    *[
        pytest.param(b, r, ATTENTION, trained_by(r), id=f"{b}-{r}")
        for b, r in NEAR
        if plain(b, r) or b is PLAIN or r.name == "NoRoute"
    ],
    *[
        pytest.param(PLAIN, LRT, ATTENTION, s(), id=f"LRT-{s}")
        for s in SCHEDULES
        if s().feeds_memory and not s().silent
    ],
    *[
        pytest.param(b, LRT, m, trained_by(LRT), id=f"{b}-LRT-{m}")
        for m in MIXERS
        for b in BACKBONES
        if b is PLAIN or plain(b) and m.name == "GatedDeltaNet"
    ],
]


@pytest.mark.parametrize(("backbone", "route", "mixer", "schedule"), CELLS)
def test_matrix_flops_are_those_executed(
    backbone: Case, route: Case, mixer: Case | None, schedule: Schedule
) -> None:
    mixing = Attention(heads=2, kv_heads=1) if mixer is None else mixer(heads=2)
    flops, tally = both(backbone(), route(), mixing, schedule)
    assert tally.matrix / LENGTH == pytest.approx(flops, rel=0.01)
    assert tally.graded <= tally.evaluated + 1e-9
