"""What every mixer costs beside attention: time by length, decoding, memory.

Run it from the repository's root, on a machine that does nothing else::

    python -m tests.benchmarks.mixers            compare with the committed numbers
    python -m tests.benchmarks.mixers --commit   and replace them

A decoder of width 256 and 4 blocks, float32, eager, one CPU thread. Training is one forward and
backward pass over 4096 tokens, in rows of each length: a ratio is one repetition's attention
(torch's scaled-dot-product attention) over the mixer beside it, in the thread's CPU time. Decoding
is one token after a prefix of each length, in the mixers' own buffers. Memory is what a block of
2-simplicial attention keeps for its backward pass, and how far the process's memory rises in both.

The exit code is 1 when the median of a training ratio lies below the committed spread on the same
processor, or when a decoding buffer that is to be constant has grown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lrt_lab.mixers.deltanet
from lrt_kernels import delta_rule_recurrent
from lrt_lab.decoder import Cache, Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention, DeltaNet, GatedDeltaNet, Mixer, SimplicialAttention
from lrt_lab.schedules import SinglePass
from lrt_lab.store import read_json, write_json
from lrt_lab.training.run import cpu_name
from tests.benchmarks.timing import beside, interleaved, judge, spread, step, tokens
from tests.support.saved import saved_bytes

WIDTH, BLOCKS, HEADS, VOCAB, TOKENS = 256, 4, 4, 257, 4096
LENGTHS = (256, 1024, 4096)
#: Where decoding is measured, and how many tokens one repetition decodes.
PREFIXES, DECODED = (1024, 16384), 32
#: Positions of the memory table, and the published windows.
MEMORY_LENGTH, WINDOWS = 4096, (512, 32)
COMMITTED = Path(__file__).with_suffix(".json")

BASELINE, RECURRENT = "Attention", "GatedDeltaNet, recurrent"
MIXERS: dict[str, Callable[[], Mixer | list[Mixer]]] = {
    BASELINE: lambda: Attention(HEADS),
    "DeltaNet": lambda: DeltaNet(HEADS),
    "GatedDeltaNet": lambda: GatedDeltaNet(HEADS),
    RECURRENT: lambda: GatedDeltaNet(HEADS),
    "hybrid 3:1": lambda: [*[GatedDeltaNet(HEADS) for _ in range(3)], Attention(HEADS)],
    "Simplicial every 4th": lambda: [
        *[Attention(HEADS) for _ in range(3)],
        SimplicialAttention(HEADS, window=WINDOWS[0], pair_window=WINDOWS[1]),
    ],
}
#: What is decoded, and whether its buffers are to stay as they are.
DECODERS = {BASELINE: False, "DeltaNet": True, "GatedDeltaNet": True, "hybrid 3:1": False}
#: What we aim at: (length, mixer, how many times as fast, as what).
AIMS = (
    (4096, "GatedDeltaNet", 1.0, BASELINE),
    (1024, "GatedDeltaNet", 3.0, RECURRENT),
)


def decoder(mixer: str) -> Decoder:
    """A decoder at its start values, as training meets it."""
    return Decoder(WIDTH, BLOCKS, VOCAB, mixer=MIXERS[mixer]())


@contextmanager
def recurrent() -> Iterator[None]:
    """The delta mixers run their recurrence in training, too."""
    module = lrt_lab.mixers.deltanet
    known = module.delta_rule

    def one_by_one(*inputs: Tensor | None, scale: float, chunk: int) -> tuple[Tensor, Tensor]:
        return delta_rule_recurrent(*inputs, scale=scale)  # type: ignore[arg-type]

    module.delta_rule = one_by_one  # type: ignore[assignment]
    try:
        yield
    finally:
        module.delta_rule = known


def train(mixer: str, model: Decoder, ids: Tensor) -> None:
    """One step in the form that the mixer's name says."""
    if mixer != RECURRENT:
        return step(model, ids)
    with recurrent():
        step(model, ids)


def training(length: int, budget: float) -> dict[str, Any]:
    """Speed of every mixer as a share of attention's, in rows of one length.

    Args:
        length: of a row.
        budget: seconds that it may take; at least two repetitions are made after one to warm up.
    """
    ids = tokens(TOKENS // length, length + 1, VOCAB)
    runs = {mixer: partial(train, mixer, decoder(mixer), ids) for mixer in MIXERS}
    for run in runs.values():
        run()
    return beside(interleaved(runs, budget), BASELINE)


def prefilled(model: Decoder, length: int) -> Cache:
    """A cache that holds a prefix, with room for what is decoded after it."""
    frame = Frame(tokens(1, length, VOCAB))
    (buffers,), piece = model.cache(1, length + DECODED).buffers, 1024
    for start in range(0, length, piece):
        stop = min(start + piece, length)
        out = model.sweep(frame, range(start, stop), None, buffers, reach=stop)
        buffers = {unit: model.mixers()[unit].commit(b) for unit, b in out.buffers.items()}
    return Cache(frame, (buffers,), None)


def decode(model: Decoder, cache: Cache) -> Cache:
    """Some tokens after a prefix."""
    return model.step(Frame(tokens(1, DECODED, VOCAB)), cache)[1]


def size(buffer: Any) -> int:
    """Bytes of the storages that a buffer holds, each counted once."""
    found: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, (tuple, dict)):
            for part in value.values() if isinstance(value, dict) else value:
                visit(part)
        elif hasattr(value, "__dict__"):
            visit(vars(value))

    visit(buffer)
    return sum(found.values())


@torch.no_grad()
def decoding(mixer: str, budget: float) -> dict[str, Any]:
    """State and time per token at both prefixes, and the ratio of the times."""
    model = decoder(mixer)
    caches = {str(length): prefilled(model, length) for length in PREFIXES}
    # Also warms up.
    kib = {at: size(decode(model, cache).buffers) / 2**10 for at, cache in caches.items()}
    times = interleaved({at: partial(decode, model, c) for at, c in caches.items()}, budget)
    near, far = times.values()
    return {
        "state_kib": {at: round(value, 1) for at, value in kib.items()},
        "ms_per_token": {
            at: round(1e3 * statistics.median(found) / DECODED, 3) for at, found in times.items()
        },
        "times_as_long": spread([late / early for early, late in zip(near, far, strict=True)]),
    }


def resident(peak: bool = False) -> int:
    """Bytes of this process in memory now, or at most since `forget_peak`."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10


def memory() -> dict[str, Any]:
    """What one block of 2-simplicial attention takes at the published windows, one row, in MiB."""
    mixer = SimplicialAttention(HEADS, window=WINDOWS[0], pair_window=WINDOWS[1])
    model = Decoder(WIDTH, 1, VOCAB, mixer=mixer)
    step(model, tokens(1, 65, VOCAB))
    ids = tokens(1, MEMORY_LENGTH + 1, VOCAB)
    saved = saved_bytes(model, SinglePass(), ids)
    # Linux: the peak starts again from what is held now.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    step(model, ids)
    found = {
        "saved": saved,
        "peak": resident(peak=True) - before,
        "scores of one head": 4 * MEMORY_LENGTH * WINDOWS[0] * WINDOWS[1],
    }
    return {name: round(value / 2**20, 1) for name, value in found.items()}


def aims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, and what the medians of the seconds say."""
    lines = []
    for length, mixer, aim, other in AIMS:
        rows = found["lengths"].get(str(length))
        if rows:
            reached = round(rows[other]["seconds"] / rows[mixer]["seconds"], 2)
            what = f"{mixer} beside {other} at {length}"
            lines.append({"what": what, "aim": aim, "reached": reached})
    return lines


def report(found: dict[str, Any]) -> None:
    """Everything, as tables."""
    print(f"\n{found['shape']}")
    for length, rows in found["lengths"].items():
        print(f"\nrows of {length}: tokens/s as a share of {BASELINE}'s")
        print(f"{'':26}{'median':>7}{'spread':>15}{'n':>4}{'tokens/s':>10}")
        for mixer, row in rows.items():
            print(
                f"{mixer:26}{row['median']:7.3f}{row['low']:8.3f}-{row['high']:.3f}"
                f"{row['repetitions']:5}{TOKENS / row['seconds']:10.0f}"
            )
    for aim in found["aims"]:
        verdict = "reached" if aim["reached"] >= aim["aim"] else "short"
        print(f"\n{aim['what']}: {aim['reached']:.2f} x, aim {aim['aim']:.0f} x: {verdict}")
    near, far = map(str, PREFIXES)
    print(f"\ndecoding one token after {near} and {far} others")
    print(f"{'':16}{'state KiB':>22}{'ms/token':>16}{'times as long':>15}{'spread':>13}{'n':>4}")
    for mixer, row in found["decoding"].items():
        state, ms, ratio = row["state_kib"], row["ms_per_token"], row["times_as_long"]
        print(
            f"{mixer:16}{state[near]:11.1f}{state[far]:11.1f}{ms[near]:8.2f}{ms[far]:8.2f}"
            f"{ratio['median']:15.3f}{ratio['low']:7.2f}-{ratio['high']:.2f}{ratio['repetitions']:5}"
        )
    first, second = WINDOWS
    print(
        f"\none block of SimplicialAttention, {MEMORY_LENGTH} positions, windows {first}, {second}"
    )
    print(", ".join(f"{name} {value:.1f} MiB" for name, value in found["memory"].items()))


def grown(found: dict[str, Any]) -> list[str]:
    """Decoders whose buffers are to be constant and are not."""
    near, far = map(str, PREFIXES)
    rows = found["decoding"]
    sizes = {mixer: rows[mixer]["state_kib"] for mixer, constant in DECODERS.items() if constant}
    return [mixer for mixer, state in sizes.items() if state[near] != state[far]]


def main() -> int:
    """Measure, print, and compare or commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=4.0, help="of timing")
    parser.add_argument("--commit", action="store_true", help="replace the committed numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    budget = 60 * options.minutes
    found: dict[str, Any] = {
        "processor": cpu_name(),
        "torch": torch.__version__,
        "shape": f"width {WIDTH}, {BLOCKS} blocks, {TOKENS} tokens, one thread",
        # First, while the process is small.
        "memory": memory(),
        "lengths": {str(n): training(n, 0.25 * budget) for n in LENGTHS},
        "decoding": {mixer: decoding(mixer, 0.06 * budget) for mixer in DECODERS},
    }
    found["aims"] = aims(found)
    report(found)
    larger = grown(found)
    for mixer in larger:
        print(f"{mixer}: its buffer grows with the prefix")
    if options.commit:
        write_json(COMMITTED, found)
        print(f"written: {COMMITTED}")
        return 0
    return judge(found, read_json(COMMITTED), "lengths") | bool(larger)


if __name__ == "__main__":
    sys.exit(main())
