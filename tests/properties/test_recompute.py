"""Sweeps that are evaluated again in the backward pass: the same gradients from less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT, FullBandwidth
from lrt_lab.schedules import Clock, Interleaved, Jacobi, MiddleJacobi, Schedule
from lrt_lab.training.loss import training_loss
from lrt_lab.training.meter import measure
from lrt_lab.training.run import Run
from tests.support.compare import error
from tests.support.models import documents, small_decoder, tokens
from tests.support.registry import DEMANDING, TRIALS, Case
from tests.support.saved import kept_bytes, saved_bytes

#: Every pair under the schedule that uses most of a sweep, every schedule on the simplest backbone.
CASES = [trial for trial in TRIALS if trial[2].name == DEMANDING or trial[0].name == "PreNorm"]
#: The gradients are those of the same operations in the same order.
EQUAL = 1e-12


def gradients(decoder: Decoder, schedule: Schedule, recompute: bool) -> tuple[Tensor, dict]:
    """Loss and gradients by name, None where a parameter took no part."""
    decoder.recompute = recompute
    ids = tokens(9)
    frame = Frame(ids[:, :-1], documents(3, 5))
    loss = training_loss(decoder, schedule, frame, ids[:, 1:], Clock())
    named = dict(decoder.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return loss, dict(zip(named, found, strict=True))


@pytest.mark.parametrize(("backbone", "route", "schedule"), CASES, ids=str)
def test_the_same_gradients(backbone: Case, route: Case, schedule: Case) -> None:
    decoder = small_decoder(backbone(), route())
    loss, expected = gradients(decoder, schedule(), False)
    again, found = gradients(decoder, schedule(), True)
    assert torch.equal(again, loss)
    for name, gradient in expected.items():
        assert (found[name] is None) == (gradient is None), name
        if gradient is not None:
            assert error(found[name], gradient) <= EQUAL, name


def test_sweeps_really_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, counted = small_decoder(route=LRT()), []
    whole = decoder.evaluated
    monkeypatch.setattr(decoder, "evaluated", lambda *a: (counted.append(a), whole(*a))[1])
    for recompute, expected in ((False, 3), (True, 6)):
        counted.clear()
        gradients(decoder, Jacobi(3), recompute)
        assert len(counted) == expected


@pytest.mark.parametrize(
    "schedule", [Jacobi(4), Interleaved(3), MiddleJacobi(4, 2)], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("route", [LRT, FullBandwidth], ids=lambda r: r.__name__)
def test_less_is_kept_than_one_pass_keeps(route: type, schedule: Schedule) -> None:
    """Of several passes, what lies between them; a pass with all of its activations is more."""
    decoder, ids = small_decoder(route=route()), tokens(33)
    single = saved_bytes(decoder, Jacobi(1), ids)
    whole = saved_bytes(decoder, schedule, ids)
    decoder.recompute = True
    kept = saved_bytes(decoder, schedule, ids)
    assert kept < single < whole


@pytest.mark.parametrize("name", ["LRT", "FullBandwidth", "T2MLR", "GatherFFN", "Householder"])
def test_a_pass_adds_what_it_hands_on_and_nothing_else(name: str) -> None:
    route = next(route for _, route, _ in TRIALS if route.name == name)
    frame, targets = Frame(tokens(64)), tokens(64, seed=2)

    def growth(recompute: bool) -> list[float]:
        """What each further pass keeps, in states ``(B, T, d)``."""
        decoder = small_decoder(route=route(), blocks=8, recompute=recompute)
        state = 2 * 64 * decoder.shape.width * 8
        sizes = [
            kept_bytes(
                decoder, lambda k=k: training_loss(decoder, Jacobi(k), frame, targets, Clock())
            )
            for k in (1, 2, 3, 4)
        ]
        return [(later - one) / state for one, later in zip(sizes, sizes[1:], strict=False)]

    whole, few = growth(False), growth(True)
    # Beside the three states that a pass is called with or leaves (carried, entering, scored),
    # which no graph counts, it leaves a few in the graph.
    assert all(more <= 8 for more in few), few
    assert all(more >= 100 for more in whole), whole


def test_a_second_forward_is_not_priced() -> None:
    """Budgets are matched by what is learnt, not by how little memory it takes."""
    with torch.device("meta"):
        decoders = [Decoder(16, 2, 20, recompute=recompute) for recompute in (False, True)]
    plain, again = (measure(decoder, Jacobi(2), 8) for decoder in decoders)
    assert again == plain and decoders[1].recompute


def test_nothing_is_kept_for_evaluation() -> None:
    decoder = small_decoder(route=LRT())
    decoder.recompute = True
    with torch.no_grad():
        hidden, _ = decoder.serial(Frame(tokens()), decoder.cache(2, 12))
    assert not hidden.requires_grad


def test_it_is_an_option_that_leaves_a_run_what_it_is() -> None:
    plain, saving = (
        Run({"trainer": {"max_steps": 1}, "model": {"recompute": given}}) for given in (False, True)
    )
    assert plain.hash == saving.hash
    assert [run.cli.build()[0].decoder.recompute for run in (plain, saving)] == [False, True]
