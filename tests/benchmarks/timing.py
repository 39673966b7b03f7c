"""What the benchmarks share: a training step, interleaved repetitions, and what is too slow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame


def tokens(rows: int, length: int, vocab: int, device: str = "cpu") -> Tensor:
    """Random text ``(rows, length)``."""
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, vocab, (rows, length), generator=g).to(device)


def step(model: Decoder, ids: Tensor) -> None:
    """One forward and backward pass over all positions; ids ``(B, T + 1)``."""
    frame = Frame(ids[:, :-1])
    hidden = model.sweep(frame, frame.positions).hidden
    F.cross_entropy(model.logits(hidden).mT, ids[:, 1:]).backward()
    model.zero_grad()


def seconds(run: Callable[[], object], device: str = "cpu") -> float:
    """The thread's CPU time of a call; on a GPU the time between two synchronisations."""
    if device == "cpu":
        began = time.thread_time()
        run()
        return time.thread_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def interleaved(
    runs: Mapping[str, Callable[[], object]], budget: float, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each call in turn, over and over: a machine that slows down slows all of them.

    Args:
        runs: calls by name.
        budget: seconds that it may take; at least two repetitions are made.
        device: "cpu" or "cuda".
    """
    deadline, longest = time.monotonic() + budget, 0.0
    shown = 0.0
    times: dict[str, list[float]] = {name: [] for name in runs}
    while min(map(len, times.values())) < 2 or time.monotonic() + longest < deadline:
        began = time.monotonic()
        for name, run in runs.items():
            times[name].append(seconds(run, device))
        now = time.monotonic()
        longest = max(longest, now - began)
        # A fast operation is repeated thousands of times.
        if now - shown > 1:
            shown = now
            print(".", end="", flush=True)
    return times


def spread(ratios: list[float]) -> dict[str, Any]:
    """Median and range of the repetitions."""
    low, high, median = min(ratios), max(ratios), statistics.median(ratios)
    numbers = {"median": median, "low": low, "high": high}
    return {**{k: round(v, 4) for k, v in numbers.items()}, "repetitions": len(ratios)}


def beside(times: dict[str, list[float]], baseline: str) -> dict[str, dict[str, Any]]:
    """Speed as a share of the baseline's in the same repetition, and the median of the seconds."""
    base = times[baseline]
    return {
        name: {
            **spread([one / own for one, own in zip(base, found, strict=True)]),
            "seconds": round(statistics.median(found), 4),
        }
        for name, found in times.items()
    }


def slower(found: dict[str, Any], committed: dict[str, Any], table: str) -> list[str]:
    """Ratios whose median lies below the committed spread."""
    lines = []
    for key, rows in found[table].items():
        for variant, row in rows.items():
            known = committed[table].get(key, {}).get(variant)
            if known and row["median"] < known["low"]:
                spread_was = f"{known['low']:.3f} to {known['high']:.3f}"
                lines.append(f"{variant}, {table} {key}: {row['median']:.3f}; was {spread_was}")
    return lines


def judge(found: dict[str, Any], committed: dict[str, Any] | None, table: str) -> int:
    """Say how the ratios of a table compare with the committed ones, as an exit code."""
    if committed is None:
        print(f"\nnothing committed for {found['processor']}: run with --commit to keep these")
        return 0
    lines = slower(found, committed, table)
    if committed["processor"] != found["processor"]:
        print(f"\ncommitted numbers are of {committed['processor']}: nothing is judged here")
        return 0
    print("\nslower than the committed spread:" if lines else "\nwithin the committed spread")
    print("\n".join(lines))
    return int(bool(lines))
