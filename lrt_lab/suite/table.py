"""What a running suite looks like: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lrt_lab.suite.words import count, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

# Seconds between two progress lines in a log.
_LINE_EVERY = 15.0


@dataclass
class _Active:
    """What one slot is doing."""

    entry: dict[str, Any]
    began: float
    first_step: int | None = None
    first_time: float = 0.0
    phase: str = "start"
    step: int = 0
    loss: float | None = None

    @property
    def label(self) -> str:
        return f"{self.entry['cell']} seed {self.entry['seed']}"

    def update(self, state: dict[str, Any], now: float) -> None:
        self.phase = state["phase"]
        self.step = state.get("step", self.step)
        self.loss = state.get("loss", self.loss)
        if self.first_step is None and self.phase == "train":
            self.first_step, self.first_time = self.step, now

    def left(self, now: float) -> float | None:
        """Seconds of training left at the speed seen so far; None before there is any."""
        if self.first_step is None or self.step <= self.first_step:
            return None
        speed = (self.step - self.first_step) / (now - self.first_time)
        return max(0.0, (self.entry["steps"] - self.step) / speed)


class Board:
    """The facts behind both views: what runs where, what is done, how long the rest will take."""

    def __init__(self, entries: list[dict[str, Any]], done: int, jobs: int) -> None:
        """`entries`: the runs of this session, priced; `done`: runs finished earlier."""
        self.total = len(entries) + done
        self.done = done
        self.failures = 0
        self.active: dict[int, _Active] = {}
        self._jobs = jobs
        self._pending = {(entry["cell"], entry["seed"]): entry for entry in entries}
        self._spent = self._estimated = 0.0

    def start(self, entry: dict[str, Any], slot: int) -> None:
        self.active[slot] = _Active(entry, time.monotonic())

    def stop(self, slot: int, finished: bool) -> _Active:
        active = self.active.pop(slot)
        entry = active.entry
        self._pending.pop((entry["cell"], entry["seed"]), None)
        if finished:
            self.done += 1
            self._spent += time.monotonic() - active.began
            self._estimated += entry["seconds"]
        else:
            self.failures += 1
        return active

    def drop(self, slot: int) -> None:
        """Another process has the run after all; it stays to be done."""
        del self.active[slot]

    def left(self) -> float:
        """Seconds until all is done: the estimates, corrected by what the runs really take."""
        now = time.monotonic()
        spent, estimated = self._spent, self._estimated
        known = {slot: active.left(now) for slot, active in self.active.items()}
        for slot, left in known.items():
            if left is not None:
                spent += now - self.active[slot].began + left
                estimated += self.active[slot].entry["seconds"]
        factor = spent / estimated if estimated > 0 else 1.0
        rest = sum(entry["seconds"] for entry in self._pending.values()) * factor
        for active in self.active.values():
            # A run that takes longer than its share must not eat into the others'.
            rest -= min(now - active.began, active.entry["seconds"] * factor)
        return max(0.0, rest) / max(1, min(self._jobs, len(self._pending)))

    def summary(self) -> str:
        failed = f", {self.failures} failed" if self.failures else ""
        rest = f", about {duration(self.left())} left" if self._pending else ""
        return f"{self.done}/{self.total} runs done{failed}{rest}"


class LiveView:
    """A rich table that is redrawn in place; failures stay above it as lines."""

    def __init__(self, board: Board, console: Console, title: str) -> None:
        from rich.live import Live

        self._board, self._console, self._title = board, console, title
        self._live: Live = Live(self._draw(), console=console, auto_refresh=False, transient=True)
        self._live.start()

    def started(self, entry: dict[str, Any], slot: int, resumed: bool) -> None:
        self._board.start(entry, slot)

    def progress(self, slot: int, state: dict[str, Any]) -> None:
        self._board.active[slot].update(state, time.monotonic())

    def finished(self, slot: int, record: dict[str, Any]) -> None:
        self._board.stop(slot, finished=True)

    def failed(self, slot: int, error: str) -> None:
        active = self._board.stop(slot, finished=False)
        self._console.print(f"failed  {active.label}: {error}", style="red", markup=False)

    def deferred(self, slot: int) -> None:
        self._board.drop(slot)

    def waiting(self, number: int) -> None:
        """Nothing to add: the caption counts what is left."""

    def tick(self) -> None:
        self._live.update(self._draw(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Table:
        table = Table(title=self._title, caption=self._board.summary(), box=SIMPLE_HEAD)
        table.add_column("cell", min_width=24)
        table.add_column("seed", justify="right")
        table.add_column("step", justify="right", min_width=11)
        table.add_column("loss", justify="right", min_width=7)
        table.add_column("ETA", justify="right", min_width=8)
        now = time.monotonic()
        for _, active in sorted(self._board.active.items()):
            left = active.left(now)
            training = active.phase == "train"
            table.add_row(
                active.entry["cell"],
                str(active.entry["seed"]),
                f"{active.step}/{active.entry['steps']}" if training else active.phase,
                "" if active.loss is None else f"{active.loss:.4f}",
                duration(left) if training and left is not None else "",
            )
        return table


class LineView:
    """One line per start and end, and at most every 15 s one that says how it stands.

    `scored` is the slice that finished runs are scored on.
    """

    def __init__(self, board: Board, console: Console, scored: str = "test") -> None:
        self._board, self._console, self._scored = board, console, scored
        self._last = time.monotonic()

    def started(self, entry: dict[str, Any], slot: int, resumed: bool) -> None:
        self._board.start(entry, slot)
        self._say(f"{'resume' if resumed else 'start':6} {self._board.active[slot].label}")

    def progress(self, slot: int, state: dict[str, Any]) -> None:
        self._board.active[slot].update(state, time.monotonic())

    def finished(self, slot: int, record: dict[str, Any]) -> None:
        active = self._board.stop(slot, finished=True)
        test = (record.get("test") or {}).get("exact")
        done = record.get("status", "finished")
        result = f"{self._scored} loss {test['loss']:.4f}" if test else done
        seconds = record.get("train_seconds", 0.0) + (record.get("eval_seconds") or 0.0)
        took = f"in {duration(seconds)}"
        self._say(f"done   {active.label}: {result} {took} ({self._board.summary()})")

    def failed(self, slot: int, error: str) -> None:
        active = self._board.stop(slot, finished=False)
        self._say(f"failed {active.label}: {error}")

    def deferred(self, slot: int) -> None:
        self._board.drop(slot)

    def waiting(self, number: int) -> None:
        if time.monotonic() - self._last >= _LINE_EVERY:
            self._say(f"waiting for {count(number, 'run')} that another process is working on")

    def tick(self) -> None:
        if time.monotonic() - self._last < _LINE_EVERY or not self._board.active:
            return
        parts = [
            f"{active.label} step {active.step}/{active.entry['steps']}"
            + ("" if active.loss is None else f" loss {active.loss:.4f}")
            if active.phase == "train"
            else f"{active.label} {active.phase}"
            for _, active in sorted(self._board.active.items())
        ]
        self._say("; ".join(parts) + f" ({self._board.summary()})")

    def close(self) -> None:
        """Lines need no clearing away."""

    def _say(self, line: str) -> None:
        self._last = time.monotonic()
        self._console.print(line, markup=False)


def view(board: Board, console: Console, title: str, scored: str = "test") -> LiveView | LineView:
    """The view that suits where the output goes."""
    live = console.is_terminal
    return LiveView(board, console, title) if live else LineView(board, console, scored)
