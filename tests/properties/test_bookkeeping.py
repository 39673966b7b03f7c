"""Weights of losses, the positions that each pass scores, and what a schedule costs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Interleaved, Jacobi, SinglePass
from lrt_lab.training.loss import token_losses, training_loss
from tests.support.compare import SAME, error
from tests.support.models import T, run, small_decoder, tokens
from tests.support.registry import ROUTES, TRIALS, Case, each_trial

PRENORM = pytest.mark.parametrize(
    ("route", "schedule"), [(r, s) for b, r, s in TRIALS if b.name == "PreNorm"], ids=str
)


@pytest.mark.parametrize("length", [T, T - 1])
@PRENORM
def test_weights_sum_to_one_and_every_position_is_scored(
    route: Case, schedule: Case, length: int
) -> None:
    decoder = small_decoder(route=route())
    passes = run(schedule(), decoder, Frame(tokens(length)))
    # The first pass and the mean of the later ones, both whole, as published.
    mass = 2.0 if schedule.name == "PassMix" else 1.0
    assert sum(p.weight for p in passes) == pytest.approx(mass, abs=1e-12)
    assert len({p.name for p in passes}) == len(passes)
    for scored in passes:
        assert scored.hidden.shape == (2, len(scored.positions), decoder.shape.width)
    assert {t for p in passes for t in p.positions} == set(range(length))


@PRENORM
@torch.no_grad()
def test_the_loss_is_the_weighted_sum_of_the_passes_own_means(route: Case, schedule: Case) -> None:
    decoder, plan, length = small_decoder(route=route()), schedule(), T - 1
    frame, targets = Frame(tokens(length)), tokens(length, seed=2)
    total = 0.0
    for scored in run(plan, decoder, frame):
        chances = decoder.logits(scored.hidden).log_softmax(-1)
        theirs = targets[:, list(scored.positions)].unsqueeze(-1)
        total -= scored.weight * chances.gather(-1, theirs).mean()
    assert error(training_loss(decoder, plan, frame, targets, Clock()), total) <= SAME


@pytest.mark.parametrize("route", ["LRT", "Householder"])
@pytest.mark.parametrize("backward", [None, 0], ids=["all-edges", "detached"])
@pytest.mark.parametrize("weights", [(0, 0, 0, 1), (0.5, 0, 0.5)], ids=str)
def test_a_pass_of_no_weight_has_no_head_and_changes_nothing(
    weights: tuple[float, ...],
    backward: int | None,
    route: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = small_decoder(route=next(r for r in ROUTES if r.name == route)())
    plan = Jacobi(len(weights), weights, backward=backward)
    frame, targets = Frame(tokens()), tokens(seed=2)
    terms = []
    for scored in run(plan, decoder, frame):
        terms.append(scored.weight * token_losses(decoder, scored.hidden, targets).mean())
    whole = torch.stack(terms).sum()
    whole.backward()
    expected = {name: p.grad for name, p in decoder.named_parameters()}
    decoder.zero_grad()

    heads = 0
    logits = decoder.logits

    def counted(hidden: Tensor) -> Tensor:
        nonlocal heads
        heads += 1
        return logits(hidden)

    monkeypatch.setattr(decoder, "logits", counted)
    loss = training_loss(decoder, plan, frame, targets, Clock())
    loss.backward()
    assert heads == sum(weight > 0 for weight in weights)
    assert torch.equal(loss, whole)
    for name, p in decoder.named_parameters():
        assert (p.grad is None) == (expected[name] is None), name
        assert p.grad is None or torch.equal(p.grad, expected[name]), name


@pytest.mark.parametrize("subsets", [1, 2, 3, 5, 11])
def test_subsets_share_out_the_positions(subsets: int) -> None:
    """Every subset weighs the same, whatever its size; lengths need not divide evenly."""
    length = T - 1
    first, *rest = run(Interleaved(subsets), small_decoder(), Frame(tokens(length)))
    assert list(first.positions) == list(range(length))
    assert Counter(t for p in rest for t in p.positions) == Counter(range(length))
    assert [p.weight for p in (first, *rest)] == [1 / (subsets + 1)] * (subsets + 1)
    assert [p.positions[0] for p in rest] == list(range(subsets))


def test_jacobi_weights_are_relative() -> None:
    passes = run(Jacobi(3, weights=[1, 3, 6]), small_decoder(), Frame(tokens()))
    assert [p.weight for p in passes] == pytest.approx([0.1, 0.3, 0.6])


@each_trial
def test_cost_is_what_the_sweeps_evaluate(
    backbone: Case, route: Case, schedule: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = expected = 0.0
    evaluate = Decoder.evaluate

    def count(self: Decoder, unit: int, reads, at, memory, buffer):
        nonlocal counted
        counted += len(at.positions) / self.shape.units
        return evaluate(self, unit, reads, at, memory, buffer)

    monkeypatch.setattr(Decoder, "evaluate", count)
    decoder, plan, length = small_decoder(backbone(), route()), schedule(), 7
    for share, part in plan.mixture():
        with torch.no_grad():
            counted = 0.0
            run(part, decoder, Frame(tokens(length)))
        expected += share * counted
    assert plan.cost(length, decoder) == pytest.approx(expected, abs=1e-9)


def test_a_schedule_without_memory_says_so() -> None:
    assert not SinglePass.feeds_memory
    assert Jacobi.feeds_memory
    assert Interleaved.feeds_memory
