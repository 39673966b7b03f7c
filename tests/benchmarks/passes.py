"""What K Jacobi passes cost beside K plain steps of the same backbone.

Run it from the repository's root, on a machine that does nothing else::

    python -m tests.benchmarks.passes            compare with the committed numbers
    python -m tests.benchmarks.passes --commit   and replace them

Forward, loss of every pass and backward, eager, one thread, width 128, 4 blocks, 8 x 128 tokens,
LRT with its defaults. A ratio is one repetition's step of K passes over K times the plain step (no
route, one pass) beside it, in the thread's CPU time; 1 is what the passes alone cost, the rest is
the route's own work. The exit code is 1 when a median lies above the committed spread on the same
processor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lrt_lab.backbones import AttentionResiduals, Backbone, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.schedules import Clock, Jacobi, Schedule, SinglePass
from lrt_lab.store import read_json, write_json
from lrt_lab.training.loss import training_loss
from lrt_lab.training.run import cpu_name
from tests.benchmarks.timing import spread

WIDTH, BLOCKS, ROWS, LENGTH, VOCAB = 128, 4, 8, 128, 257
PASSES = (1, 2, 3, 4)
BACKBONES: dict[str, Callable[[], Backbone]] = {
    "PreNorm": PreNorm,
    "AttentionResiduals": AttentionResiduals,
}
#: What we aim at: so many times the K plain steps at most.
AIM = 1.15
COMMITTED = Path(__file__).with_suffix(".json")


def step(decoder: Decoder, schedule: Schedule, ids: torch.Tensor) -> float:
    """CPU seconds of one forward and backward pass."""
    began = time.thread_time()
    training_loss(decoder, schedule, Frame(ids[:, :-1]), ids[:, 1:], Clock()).backward()
    decoder.zero_grad()
    return time.thread_time() - began


def measure(seconds: float) -> dict[str, dict[str, Any]]:
    """Ratios by backbone and number of passes, in so many seconds; at least two repetitions."""
    deadline = time.monotonic() + seconds
    ids = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    ratios: dict[str, dict[str, list[float]]] = {
        name: {str(count): [] for count in PASSES} for name in BACKBONES
    }
    pairs = {
        name: tuple(
            Decoder(WIDTH, BLOCKS, VOCAB, backbone(), route, Attention(heads=4))
            for route in (NoRoute(), LRT())
        )
        for name, backbone in BACKBONES.items()
    }
    for plain, _ in pairs.values():
        step(plain, SinglePass(), ids)
    longest = 0.0
    while len(ratios["PreNorm"]["1"]) < 2 or time.monotonic() + longest < deadline:
        began = time.monotonic()
        for name, (plain, routed) in pairs.items():
            for count in PASSES:
                alone = step(plain, SinglePass(), ids)
                found = step(routed, Jacobi(count), ids)
                alone = (alone + step(plain, SinglePass(), ids)) / 2
                ratios[name][str(count)].append(found / (count * alone))
        longest = max(longest, time.monotonic() - began)
        print(".", end="", flush=True)
    return {name: {count: spread(own) for count, own in by.items()} for name, by in ratios.items()}


def report(found: dict[str, dict[str, Any]]) -> None:
    """One line per backbone and number of passes."""
    print(f"\n{'':20}{'K':>3}{'time / (K plain)':>18}{'spread':>15}{'n':>4}   aim {AIM}")
    for name, by in found.items():
        for count, row in by.items():
            mark = "" if row["median"] <= AIM else "  above"
            print(
                f"{name:20}{count:>3}{row['median']:18.3f}{row['low']:8.3f}-{row['high']:.3f}"
                f"{row['repetitions']:4}{mark}"
            )


def slower(found: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """Ratios whose median lies above the committed spread."""
    return [
        f"{name}, {count} passes: {row['median']:.3f}; was at most {committed[name][count]['high']}"
        for name, by in found.items()
        for count, row in by.items()
        if row["median"] > committed[name][count]["high"]
    ]


def main() -> int:
    """Measure, print, and compare or commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=75.0, help="of timing")
    parser.add_argument("--commit", action="store_true", help="replace the committed numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, known = measure(options.seconds), read_json(COMMITTED)
    report(found)
    medians = [row["median"] for by in found.values() for row in by.values()]
    print(f"\nmedian of the medians {statistics.median(medians):.3f}")
    if options.commit:
        shape = f"width {WIDTH}, {BLOCKS} blocks, {ROWS} x {LENGTH} tokens, one thread"
        record = {"processor": cpu_name(), "torch": torch.__version__, "shape": shape}
        write_json(COMMITTED, {**record, "ratios": found})
        print(f"written: {COMMITTED}")
        return 0
    if known is None or known["processor"] != cpu_name():
        print("nothing is committed for this processor: nothing is judged here")
        return 0
    lines = slower(found, known["ratios"])
    print("\n".join(["slower than the committed spread:", *lines] if lines else ["as committed"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
