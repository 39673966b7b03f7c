"""Runs a plan: skips what is finished, resumes what was cut, survives what breaks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lrt_lab.store import RunFolder
from lrt_lab.suite.workers import Event, Pool

# Seconds between two looks at runs that another process is working on.
_RETRY = 2.0
_TICK = 0.25


class View(Protocol):
    """What shows the runner's progress: a live table or plain lines."""

    def started(self, entry: dict[str, Any], slot: int, resumed: bool) -> None: ...
    def progress(self, slot: int, state: dict[str, Any]) -> None: ...
    def finished(self, slot: int, record: dict[str, Any]) -> None: ...
    def failed(self, slot: int, error: str) -> None: ...
    def deferred(self, slot: int) -> None: ...
    def waiting(self, number: int) -> None: ...
    def tick(self) -> None: ...


@dataclass
class Outcome:
    """How a session ended: what failed and why; `user_error` if one and the same stopped all."""

    failed: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    finished: int = 0
    user_error: str | None = None


class Runner:
    """One session's loop. `config` gives an entry's config, `about` its place in the suite."""

    def __init__(
        self,
        pool: Pool,
        folder: Path,
        view: View,
        config: Callable[[dict[str, Any]], dict[str, Any]],
        about: Callable[[dict[str, Any]], dict[str, Any]],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._folder = folder
        self._view = view
        self._config = config
        self._about = about
        self._beat = beat
        self._running: dict[int, dict[str, Any]] = {}
        self._user_errors: list[str] = []
        self._outcome = Outcome()

    def run(self, entries: list[dict[str, Any]]) -> Outcome:
        """Work until every entry is finished or failed; one failure never stops the others."""
        queue = deque(entries)
        # Runs that another process holds: looked at again once there is nothing else to do.
        held: deque[dict[str, Any]] = deque()
        look = 0.0
        while queue or self._running or held:
            if self._outcome.user_error is not None:
                queue.clear()
                held.clear()
            if held and not queue and time.monotonic() >= look:
                if not self._running:
                    self._view.waiting(len(held))
                queue, held = held, deque()
                look = time.monotonic() + _RETRY
            for slot in self._pool.idle():
                self._start_next(slot, queue, held)
            for event in self._pool.poll(_TICK):
                self._handle(event, held)
            self._beat()
            self._view.tick()
        self._common_cause()
        return self._outcome

    def _start_next(
        self, slot: int, queue: deque[dict[str, Any]], held: deque[dict[str, Any]]
    ) -> None:
        while queue:
            entry = queue.popleft()
            run = RunFolder(self._folder / entry["folder"])
            state = run.state()
            if state == "done":
                continue
            if state == "running":
                held.append(entry)
                continue
            self._running[slot] = entry
            self._view.started(entry, slot, resumed=run.checkpoint.exists())
            self._pool.submit(
                slot,
                "train",
                config=self._config(entry),
                folder=str(run.path),
                hash=entry["hash"],
                about=self._about(entry),
            )
            return

    def _handle(self, event: Event, held: deque[dict[str, Any]]) -> None:
        slot, fields = event.worker, event.fields
        if event.kind == "progress":
            self._view.progress(slot, fields)
            return
        entry = self._running.pop(slot)
        run = RunFolder(self._folder / entry["folder"])
        if event.kind == "locked":
            held.append(entry)
            self._view.deferred(slot)
            return
        # A worker that dies after DONE has done its work.
        if event.kind == "result" or (event.kind == "died" and run.done):
            self._outcome.finished += 1
            self._view.finished(slot, run.final() or {})
            return
        error = fields["error"]
        run.fail(error)
        self._outcome.failed.append((entry, error))
        self._view.failed(slot, error)
        # What the user must mend before anything can run (no corpus, say) need not be said per run.
        if fields.get("user"):
            self._user_errors.append(error)
        if self._user_errors.count(error) > 1 and self._outcome.finished == 0:
            self._outcome.user_error = error

    def _common_cause(self) -> None:
        """All that was tried met one and the same user error: it is the session's."""
        causes = {error for _, error in self._outcome.failed}
        if self._outcome.finished == 0 and len(causes) == 1 and causes <= set(self._user_errors):
            self._outcome.user_error = causes.pop()
