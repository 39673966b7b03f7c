"""What a user sees: lines in a log, a table on a terminal, numbers in words."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from lrt_lab.suite.table import Board, LineView, LiveView, view
from lrt_lab.suite.words import amount, count, duration


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def entries(number: int, seconds: float = 10.0) -> list[dict[str, Any]]:
    return [{"cell": f"c{i}", "seed": 1, "steps": 100, "seconds": seconds} for i in range(number)]


def train(step: int, loss: float = 2.5) -> dict[str, Any]:
    return {"phase": "train", "step": step, "steps": 100, "loss": loss}


def test_lines_say_start_progress_and_end(clock: Clock) -> None:
    out = io.StringIO()
    runs = entries(2)
    lines = LineView(Board(runs, done=3, jobs=1), Console(file=out, width=200))
    lines.started(runs[0], 0, resumed=False)
    for second in range(40):
        clock.now += 1
        lines.progress(0, train(second))
        lines.tick()
    lines.finished(0, {"train_seconds": 20, "eval_seconds": 3, "test": {"exact": {"loss": 2.25}}})
    lines.started(runs[1], 0, resumed=True)
    lines.failed(0, "RuntimeError: no [luck]")
    assert out.getvalue().splitlines() == [
        "start  c0 seed 1",
        "c0 seed 1 step 14/100 loss 2.5000 (3/5 runs done, about 3.1 min left)",
        "c0 seed 1 step 29/100 loss 2.5000 (3/5 runs done, about 2.9 min left)",
        "done   c0 seed 1: test loss 2.2500 in 23 s (4/5 runs done, about 40 s left)",
        "resume c1 seed 1",
        "failed c1 seed 1: RuntimeError: no [luck]",
    ]


def test_lines_name_the_slice_that_runs_are_scored_on(clock: Clock) -> None:
    out = io.StringIO()
    runs = entries(1)
    lines = view(Board(runs, 0, 1), Console(file=out, width=200), "tuning", "validation")
    lines.started(runs[0], 0, resumed=False)
    lines.finished(0, {"train_seconds": 20, "eval_seconds": 3, "test": {"exact": {"loss": 2.25}}})
    assert "c0 seed 1: validation loss 2.2500 in 23 s" in out.getvalue()


def test_a_diverged_run_is_shown_as_such(clock: Clock) -> None:
    out = io.StringIO()
    runs = entries(1)
    lines = LineView(Board(runs, done=0, jobs=1), Console(file=out, width=200))
    lines.started(runs[0], 0, resumed=False)
    lines.finished(0, {"status": "diverged", "train_seconds": 2.0, "test": None})
    assert "done   c0 seed 1: diverged in 2.0 s (1/1 runs done)" in out.getvalue()


def test_estimates_learn_from_finished_runs(clock: Clock) -> None:
    runs = entries(4, seconds=10)
    board = Board(runs, done=0, jobs=2)
    assert board.left() == pytest.approx(20)
    board.start(runs[0], 0)
    clock.now += 30
    board.stop(0, finished=True)
    # Three runs of 30 s for two jobs.
    assert board.left() == pytest.approx(45)
    board.start(runs[1], 0)
    clock.now += 20
    assert board.left() == pytest.approx(35)


def test_a_terminal_gets_a_live_table(clock: Clock) -> None:
    out = io.StringIO()
    runs = entries(1)
    console = Console(file=out, force_terminal=True, width=100, height=20, color_system=None)
    shown = view(Board(runs, done=1, jobs=1), console, "toy / quick")
    assert isinstance(shown, LiveView)
    try:
        shown.started(runs[0], 0, resumed=False)
        shown.progress(0, train(10))
        clock.now += 10
        shown.progress(0, train(20))
        shown.tick()
    finally:
        shown.close()
    text = out.getvalue()
    assert "20/100" in text
    assert "2.5000" in text
    assert "80 s" in text
    assert "1/2 runs done" in text


def test_anything_else_gets_lines(clock: Clock) -> None:
    board = Board([], done=0, jobs=1)
    assert isinstance(view(board, Console(file=io.StringIO()), "toy"), LineView)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(9.94, "9.9 s"), (80, "80 s"), (150, "2.5 min"), (7200, "2.0 h")]
    + [(200_000, "2.3 days"), (1e9, "32 years")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (1234, "1.23 k"),
        (999_600, "1.00 M"),
        (262_656, "263 k"),
        (3.2e20, "320 E"),
    ],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


def test_counts() -> None:
    assert (count(1, "run"), count(0, "run")) == ("1 run", "0 runs")
