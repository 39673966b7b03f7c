"""Interleaved with several rounds: warmup without gradients, strided or contiguous subsets."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT
from lrt_lab.schedules import Interleaved, Jacobi
from tests.support.compare import SAME, error
from tests.support.models import T, exact, merged, run, small_decoder, tokens


def names(schedule: Interleaved) -> list[str]:
    with torch.no_grad():
        return [p.name for p in run(schedule, small_decoder(route=LRT()), Frame(tokens(5)))]


def test_one_round_is_the_published_schedule() -> None:
    assert names(Interleaved(2)) == ["pass 1", "subset 1", "subset 2"]
    assert names(Interleaved(2, warmup=3)) == ["pass 1", "subset 1", "subset 2"]
    assert names(Interleaved(1, rounds=2)) == ["pass 1", "round 1 subset 1", "round 2 subset 1"]


@pytest.mark.parametrize("contiguous", [False, True])
@torch.no_grad()
def test_rounds_of_one_subset_are_jacobi_passes(contiguous: bool) -> None:
    decoder, frame = small_decoder(route=LRT()), Frame(tokens())
    ours = run(Interleaved(1, 4, contiguous=contiguous), decoder, frame)
    for one, other in zip(ours, run(Jacobi(5), decoder, frame), strict=True):
        assert error(one.hidden, other.hidden) <= SAME


@pytest.mark.parametrize("warmup", [0, 1, 2])
@torch.no_grad()
def test_warmup_rounds_are_rounds(warmup: int) -> None:
    decoder, frame = small_decoder(route=LRT()), Frame(tokens())
    warmed = merged(run(Interleaved(3, 3 - warmup, warmup), decoder, frame))
    assert error(warmed, merged(run(Interleaved(3, 3), decoder, frame))) <= SAME


@pytest.mark.parametrize("rounds", [1, 2, 3])
@torch.no_grad()
def test_strided_rounds_reach_further_than_contiguous_ones(rounds: int) -> None:
    """After r rounds of S strided subsets positions up to r (S - 1) are exact: S - 1 each."""
    decoder, frame, subsets = small_decoder(route=LRT()), Frame(tokens()), 4
    truth = exact(decoder, frame)
    reached = {}
    for contiguous in (False, True):
        state = merged(run(Interleaved(subsets, rounds, contiguous=contiguous), decoder, frame))
        wrong = [t for t in range(T) if error(state[:, t], truth[:, t]) > SAME]
        reached[contiguous] = wrong[0] - 1 if wrong else T - 1
    assert reached[False] >= rounds * (subsets - 1)
    assert reached[True] >= rounds
    assert reached[True] < reached[False] or reached[False] == T - 1


def test_contiguous_subsets_share_out_the_positions() -> None:
    groups = Interleaved(4, contiguous=True).groups(10)
    assert [list(g) for g in groups] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert [list(g) for g in Interleaved(4).groups(5)] == [[0, 4], [1], [2], [3]]


@torch.no_grad()
def test_as_many_contiguous_subsets_as_positions_are_the_exact_recurrence() -> None:
    decoder, frame = small_decoder(route=LRT()), Frame(tokens())
    state = merged(run(Interleaved(T, contiguous=True), decoder, frame))
    assert error(state, exact(decoder, frame)) <= SAME


def test_no_gradient_leads_back_through_a_warmup_round() -> None:
    """What the first pass left is then out of reach: its own loss alone teaches it."""
    decoder, frame = small_decoder(route=LRT(source="top")), Frame(tokens())
    for warmup, expected in ((0, True), (1, False)):
        first, *later = run(Interleaved(2, 2, warmup), decoder, frame)
        total = sum(p.hidden.square().sum() for p in later)
        (gradient,) = torch.autograd.grad(total, first.hidden, allow_unused=True)
        assert (gradient is not None) is expected


def test_cost() -> None:
    assert Interleaved(8, 2, 1).cost(10, small_decoder()) == 40


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("rounds", 0, "there must be at least one round"),
        ("warmup", -1, r"give 0 \(none\) or more rounds"),
    ],
)
def test_refusals(option: str, value: int, line: str) -> None:
    with pytest.raises(UserError, match=rf"^schedule.{option}={value}: {line}$"):
        Interleaved(2, **{option: value})
