"""Cycle: whose turn it is, in one update and over several, and what that costs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT
from lrt_lab.schedules import Clock, Cycle, Jacobi, PassMix, SinglePass
from tests.support.models import run, small_decoder, tokens


def counts(microbatches: int, step: int) -> list[int]:
    """Number of passes of each microbatch of a step."""
    clocks = [Clock(step, micro, 1, microbatches) for micro in range(microbatches)]
    turns = [Cycle().turn(clock) for clock in clocks]
    return [turn.count for turn in turns if isinstance(turn, Jacobi)]


@pytest.mark.parametrize("step", [0, 1, 17])
def test_of_eight_microbatches_six_run_three_passes(step: int) -> None:
    assert counts(8, step) == [3] * 6 + [4] * 2
    assert Counter(counts(16, step)) == {3: 12, 4: 4}


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_fewer_microbatches_share_the_turns_between_updates(microbatches: int) -> None:
    updates = 8 // microbatches
    seen = [count for step in range(updates) for count in counts(microbatches, step)]
    assert Counter(seen) == {3: 6, 4: 2}


def test_the_published_weights_and_cost() -> None:
    three, four = Cycle().parts
    assert three.weights == pytest.approx([0.3, 0.3, 0.4])
    assert four.weights == [0, 0, 0, 1]
    assert Cycle().cost(100, small_decoder()) == pytest.approx(325)
    assert [share for share, _ in Cycle().mixture()] == [0.75, 0.25]


def test_each_turn_runs_its_schedule() -> None:
    decoder, frame = small_decoder(route=LRT()).train(), Frame(tokens())
    with torch.no_grad():
        lengths = [len(list(Cycle().passes(decoder, frame, Clock(step)))) for step in range(9)]
    assert lengths == [3] * 6 + [4] * 2 + [3]


def test_evaluation_runs_the_last_one() -> None:
    with torch.no_grad():
        assert len(run(Cycle(), small_decoder(route=LRT()), Frame(tokens()))) == 4


def test_parts_of_their_own() -> None:
    schedule = Cycle([Jacobi(2), PassMix()])
    assert schedule.turns == [1, 1]
    assert schedule.cost(100, small_decoder()) == pytest.approx((200 + 128) / 2)
    assert sum(share for share, _ in schedule.mixture()) == pytest.approx(1)
    assert not Cycle([Jacobi(2), SinglePass()]).feeds_memory


@pytest.mark.parametrize(
    ("parts", "turns"),
    [([], []), ([Jacobi()], [0]), (None, [1])],
    ids=["no-parts", "no-turns", "turns-without-parts"],
)
def test_refusals(parts: list | None, turns: list[int]) -> None:
    with pytest.raises(UserError, match=r"^schedule.turns=\[.*\]: give one number of microbatches"):
        Cycle(parts, turns)
