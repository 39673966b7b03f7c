"""How long the suite's processes were up, and what of that was not training: the suite's overhead.

A session is one `suite run` that had something to run, from its start to the end of its last run:
planning counts, writing the report does not. It appends to `sessions.jsonl` as it goes, so that a
killed one leaves its time too: a line at the start, then the wall-clock so far every few seconds
and at the end.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lrt_lab.store import RunFolder, read_jsonl

SESSIONS = "sessions.jsonl"
_HEARTBEAT = 5.0


class Session:
    """The record of one session; `beat` as often as convenient, `end` once."""

    def __init__(self, folder: Path, jobs: int, began: float) -> None:
        """`began`: when the command started, on the monotonic clock."""
        self._path = folder / SESSIONS
        self._began = began
        started = datetime.now(UTC)
        self._name = f"{started:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}"
        self._jobs = jobs
        self._last = float("-inf")
        folder.mkdir(parents=True, exist_ok=True)
        _mend(self._path)
        self.beat()

    def beat(self) -> None:
        """Write down the wall-clock so far, if the last time is long enough ago."""
        if time.monotonic() - self._last >= _HEARTBEAT:
            self.end()

    def end(self) -> None:
        """Write down the wall-clock so far."""
        self._last = time.monotonic()
        seconds = self._last - self._began
        line = {"session": self._name, "jobs": self._jobs, "seconds": round(seconds, 3)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Overhead:
    """Seconds, summed: `slots` is jobs x wall over sessions, the others are over finished runs."""

    slots: float
    training: float
    evaluation: float
    sessions: int

    @property
    def ratio(self) -> float:
        """(jobs x wall - training - evaluation) / training."""
        return (self.slots - self.training - self.evaluation) / self.training

    def record(self) -> dict[str, float]:
        """As the report keeps it."""
        return {
            "ratio": self.ratio,
            "slot_seconds": self.slots,
            "training_seconds": self.training,
            "evaluation_seconds": self.evaluation,
            "sessions": self.sessions,
        }


def overhead(plan: dict[str, Any], folder: Path) -> Overhead | None:
    """The suite's overhead so far; None until a run has finished or if no session is on record.

    Work on runs that are not finished counts as overhead for as long as they are not.
    """
    # The last line of a session is its longest.
    sessions = {line["session"]: line for line in read_jsonl(folder / SESSIONS)}
    finals = [RunFolder(folder / entry["folder"]) for entry in plan["cells"]]
    records = [record for run in finals if run.done and (record := run.final())]
    training = sum(record["train_seconds"] for record in records)
    if not sessions or training <= 0:
        return None
    return Overhead(
        slots=sum(line["jobs"] * line["seconds"] for line in sessions.values()),
        training=training,
        evaluation=sum(record.get("eval_seconds") or 0.0 for record in records),
        sessions=len(sessions),
    )


def _mend(path: Path) -> None:
    """End a line that a kill cut short, so that it spoils only itself."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
