"""Refusals of the schedules, and the clock's randomness."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Interleaved, Jacobi
from lrt_lab.schedules.interleaved import write_back
from tests.support.models import run, small_decoder, tokens


def test_at_least_one_pass() -> None:
    with pytest.raises(UserError, match=r"^schedule.count=0: there must be at least one pass$"):
        Jacobi(0)


@pytest.mark.parametrize("weights", [[1.0], [1, 1, 1], [1, -1], [0, 0], []], ids=str)
def test_one_weight_per_pass(weights: list[float]) -> None:
    line = r"^schedule.weights=\[.*\]: give 2 numbers, none negative, not all 0$"
    with pytest.raises(UserError, match=line):
        Jacobi(2, weights)


def test_weights_may_leave_a_pass_out() -> None:
    assert Jacobi(3, [0, 0, 2]).weights == [0, 0, 1]


def test_at_least_one_subset() -> None:
    line = r"^schedule.subsets=0: there must be at least one subset$"
    with pytest.raises(UserError, match=line):
        Interleaved(0)


def test_no_more_subsets_than_positions() -> None:
    line = r"^schedule.subsets=5: more than the 4 positions of a row$"
    with pytest.raises(UserError, match=line):
        run(Interleaved(5), small_decoder(), Frame(tokens(4)))


@pytest.mark.parametrize("length", [6, 7])
@pytest.mark.parametrize("positions", ["all", "even", "odd", "last"])
def test_writing_back(length: int, positions: str) -> None:
    cut = {
        "all": range(length),
        "even": range(0, length, 2),
        "odd": range(1, length, 2),
        "last": range(length - 1, length),
    }[positions]
    carried = torch.zeros(2, length, 3, 4)
    fresh = torch.randn(2, len(cut), 3, 4, generator=torch.Generator().manual_seed(0))
    after = write_back(carried, fresh, cut)
    assert torch.equal(after[:, list(cut)], fresh)
    others = [t for t in range(length) if t not in cut]
    assert not after[:, others].any() and not carried.any()


def test_a_clock_draws_by_purpose_step_and_microbatch() -> None:
    def draw(clock: Clock, purpose: str = "jitter") -> float:
        return torch.rand((), generator=clock.generator(purpose)).item()

    clock = Clock(step=3, microbatch=1, seed=5)
    assert draw(clock) == draw(Clock(3, 1, 5))
    others = [draw(Clock(4, 1, 5)), draw(Clock(3, 0, 5)), draw(Clock(3, 1, 6)), draw(clock, "mix")]
    assert draw(clock) not in others and len(set(others)) == 4
