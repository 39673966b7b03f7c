"""How long runs will take: from finished runs of the same scale, else from a measured rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lrt_lab.store import RunFolder

# Counted FLOPs are matrix products; small models spend as much again on everything else.
_SHARE = 0.5


def from_finished(entries: list[dict[str, Any]], folder: Path) -> list[float] | None:
    """Seconds of training and evaluation per entry, or None if no run has finished yet.

    A cell without a finished run gets the mean seconds per FLOP of those that have one.
    """
    spent: dict[str, list[float]] = {}
    flops = seconds = 0.0
    for entry in entries:
        run = RunFolder(folder / entry["folder"])
        record = run.final() if run.done else None
        if record is None or record["status"] != "finished":
            continue
        total = record["train_seconds"] + (record.get("eval_seconds") or 0.0)
        spent.setdefault(entry["cell"], []).append(total)
        flops += entry["train_flops"]
        seconds += total
    if flops <= 0:
        return None
    return [
        sum(known) / len(known)
        if (known := spent.get(entry["cell"]))
        else entry["train_flops"] * seconds / flops
        for entry in entries
    ]


def from_rate(entries: list[dict[str, Any]], rate: float) -> list[float]:
    """Seconds of training per entry at `rate` FLOP/s of matrix products, half of it reached."""
    return [entry["train_flops"] / (rate * _SHARE) for entry in entries]


def estimate(
    entries: list[dict[str, Any]], folder: Path, measure: Callable[[], float]
) -> tuple[list[float], str]:
    """Seconds per entry, and in words where they come from. `measure` gives FLOP/s, if needed."""
    known = from_finished(entries, folder)
    if known is not None:
        return known, "from finished runs of this scale, evaluation included"
    rate = measure()
    words = f"from {rate / 1e9:.3g} GFLOP/s just measured here, half of it reached; training only"
    return from_rate(entries, rate), words
