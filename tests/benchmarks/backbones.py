"""What every backbone costs beside PreNorm: time, memory and graphs, by depth.

Run it from the repository's root, on a machine that does nothing else::

    python -m tests.benchmarks.backbones            compare with the committed numbers
    python -m tests.benchmarks.backbones --commit   and replace them

One forward and backward pass of all positions, eager, one thread, width 256, 8 x 256 tokens.
Repetitions of all backbones are interleaved, and every ratio is one repetition's PreNorm over the
backbone beside it, so a machine that slows down for a while slows down both. Time is the thread's
CPU time (on a GPU, the wall-clock between two synchronisations). Memory is what a forward pass
keeps for its backward. Graphs are what torch.compile makes of the whole sweep; its speed is not
measured.

The exit code is 1 when the median of a ratio lies below the committed spread on the same processor;
on another one the numbers are only printed. It is 1, too, when a compiled sweep needs more than one
graph.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.backbones import (
    MHC,
    AttentionResiduals,
    Backbone,
    HyperConnections,
    MHCLite,
    MUDDFormer,
    PreNorm,
)
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from lrt_lab.schedules import SinglePass
from lrt_lab.store import read_json, write_json
from lrt_lab.training.run import cpu_name
from tests.support.saved import saved_bytes

WIDTH, ROWS, LENGTH, VOCAB = 256, 8, 256, 257
#: Blocks, and the share of the time that each depth gets.
DEPTHS = {4: 0.2, 8: 0.3, 16: 0.5}
#: Blocks at which graphs are counted; tracing a deep sweep takes long, and two depths are enough to
#: see a graph that depends on depth.
TRACED = (2, 4)
COMMITTED = Path(__file__).with_suffix(".json")

BASELINE = "PreNorm"
VARIANTS: dict[str, Callable[[], Backbone]] = {
    BASELINE: PreNorm,
    "DenseFormer": lambda: MUDDFormer(dynamic=False, multiway=False),
    "MUDDFormer": MUDDFormer,
    "MUDDFormer-PrePost": lambda: MUDDFormer(prepost=True),
    "HyperConnections-static": lambda: HyperConnections(dynamic=False),
    "HyperConnections": HyperConnections,
    "MHC": MHC,
    "MHCLite": MHCLite,
    "AttentionResiduals": AttentionResiduals,
    "AttentionResiduals-block": lambda: AttentionResiduals(block_size=4),
    "AttentionResiduals-heads": lambda: AttentionResiduals(heads=4),
}

#: Tokens/s as a share of PreNorm's that others report: on GPUs, with kernels or compilers of their
#: own where it says so, so they are no target for one CPU thread.
PUBLISHED = {
    "MUDDFormer": ".84 to .96 (TPU v5p, 1.3 to 6.9B, its paper)",
    "MUDDFormer-PrePost": ".53 (8 H100, 24 x 1024, compiled, hyper-connection-factory)",
    "HyperConnections-static": ".63 (the same)",
    "HyperConnections": ".51 (the same); .61 (CPU, 4 blocks, the package hyper-connections)",
    "MHC": ".53 (the same); .94 (27B, own kernels, its paper); .40 (CPU, the same package)",
    "AttentionResiduals": ".38 (the same); .61 (CPU, 4 blocks, the package attn-res)",
    "AttentionResiduals-block": ".96 or more (48B, pipelined, its paper); .72 (CPU, attn-res)",
    "AttentionResiduals-heads": ".24 (8 H100, 24 x 1024, compiled, hyper-connection-factory)",
}
#: What we aim at on a CPU at 8 blocks.
AIMS = {
    "AttentionResiduals-block": 0.85,
    "AttentionResiduals": 0.75,
    "HyperConnections": 0.75,
    "MHC": 0.65,
}


def decoder(variant: str, blocks: int, device: str) -> Decoder:
    """A decoder at its start values, as training meets it."""
    mixer = Attention(heads=4)
    return Decoder(WIDTH, blocks, VOCAB, VARIANTS[variant](), mixer=mixer).to(device)


def tokens(device: str) -> Tensor:
    """Random text ``(ROWS, LENGTH + 1)``."""
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=g).to(device)


def step(model: Decoder, ids: Tensor) -> None:
    """One forward and backward pass."""
    frame = Frame(ids[:, :-1])
    hidden = model.sweep(frame, frame.positions).hidden
    F.cross_entropy(model.logits(hidden).mT, ids[:, 1:]).backward()
    model.zero_grad()


def seconds(model: Decoder, ids: Tensor, device: str) -> float:
    """What one step takes."""
    if device == "cpu":
        began = time.thread_time()
        step(model, ids)
        return time.thread_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    step(model, ids)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(blocks: int, budget: float, device: str) -> dict[str, Any]:
    """Ratios and saved bytes of every variant at one depth.

    Args:
        blocks: the depth.
        budget: seconds that it may take; at least two repetitions are made.
        device: "cpu" or "cuda".
    """
    deadline, ids = time.monotonic() + budget, tokens(device)
    models = {variant: decoder(variant, blocks, device) for variant in VARIANTS}
    # These forward passes warm up, too.
    saved = {v: saved_bytes(model, SinglePass(), ids) for v, model in models.items()}
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    longest = 0.0
    while len(times[BASELINE]) < 2 or time.monotonic() + longest < deadline:
        began = time.monotonic()
        for variant, model in models.items():
            times[variant].append(seconds(model, ids, device))
        longest = max(longest, time.monotonic() - began)
        print(".", end="", flush=True)
    base = times[BASELINE]
    return {
        variant: {
            **spread([one / own for one, own in zip(base, found, strict=True)]),
            "seconds": round(statistics.median(found), 4),
            "saved_mib": round(saved[variant] / 2**20, 1),
        }
        for variant, found in times.items()
    }


def spread(ratios: list[float]) -> dict[str, Any]:
    """Median and range of the repetitions."""
    low, high, median = min(ratios), max(ratios), statistics.median(ratios)
    numbers = {"median": median, "low": low, "high": high}
    return {**{k: round(v, 4) for k, v in numbers.items()}, "repetitions": len(ratios)}


class Graphs:
    """A compiler's back end that compiles nothing and counts what it is given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.count += 1
        return module.forward


@contextmanager
def fresh() -> Iterator[None]:
    """Forget earlier graphs, before and after."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def graphs(variant: str, blocks: int) -> int:
    """Graphs that two calls of a compiled whole sweep need: 1, or something depends on depth."""
    model, ids, counted = decoder(variant, blocks, "cpu"), tokens("cpu")[:1, :17], Graphs()
    frame = Frame(ids[:, :-1])
    with fresh():
        compiled = torch.compile(
            lambda: model.sweep(frame, frame.positions).hidden, backend=counted
        )
        for _ in range(2):
            compiled()
    return counted.count


def compiled_graphs() -> dict[str, dict[str, int]]:
    """`graphs` of every variant. Only tracing is needed, so no C++ compiler."""
    return {v: {str(blocks): graphs(v, blocks) for blocks in TRACED} for v in VARIANTS}


def report(found: dict[str, Any], device: str) -> None:
    """Everything, one table per depth."""
    for blocks, rows in found["depths"].items():
        print(f"\n{device}, {blocks} blocks: tokens/s as a share of {BASELINE}'s")
        print(f"{'':26}{'median':>7}{'spread':>15}{'n':>3}{'saved MiB':>11}  aim  published")
        for variant, row in rows.items():
            aim = AIMS.get(variant) if blocks == "8" and device == "cpu" else None
            print(
                f"{variant:26}{row['median']:7.3f}{row['low']:8.3f}-{row['high']:.3f}"
                f"{row['repetitions']:4}{row['saved_mib']:11.1f}  "
                f"{f'{aim:.2f}' if aim else '    '} {PUBLISHED.get(variant, '')}"
            )
    print(f"\nsaved MiB at twice the depth, over that at the depth ({found['shape']})")
    depths = list(found["depths"])
    for variant in VARIANTS:
        sizes = [found["depths"][blocks][variant]["saved_mib"] for blocks in depths]
        ratios = [two / one for one, two in zip(sizes, sizes[1:], strict=False)]
        print(f"{variant:26}" + " ".join(f"{ratio:6.3f}" for ratio in ratios))
    if found["graphs"]:
        print(f"\ngraphs that two calls of a compiled sweep need, at {TRACED} blocks")
        for variant, counts in found["graphs"].items():
            print(f"{variant:26}" + " ".join(f"{counts[b]:3}" for b in counts))


def slower(found: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """Ratios whose median lies below the committed spread."""
    lines = []
    for blocks, rows in found["depths"].items():
        for variant, row in rows.items():
            known = committed["depths"].get(blocks, {}).get(variant)
            if known and row["median"] < known["low"]:
                spread_was = f"{known['low']:.3f} to {known['high']:.3f}"
                lines.append(f"{variant}, {blocks} blocks: {row['median']:.3f}; was {spread_was}")
    return lines


def judge(found: dict[str, Any], committed: dict[str, Any] | None) -> int:
    """Say how these numbers compare with the committed ones, as an exit code."""
    if committed is None:
        print(f"\nnothing committed for {found['processor']}: run with --commit to keep these")
        return 0
    lines = slower(found, committed)
    if committed["processor"] != found["processor"]:
        print(f"\ncommitted numbers are of {committed['processor']}: nothing is judged here")
        return 0
    print("\nslower than the committed spread:" if lines else "\nwithin the committed spread")
    print("\n".join(lines))
    return int(bool(lines))


def main() -> int:
    """Measure, print, and compare or commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=4.0, help="of timing, on each device")
    parser.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS), help="blocks")
    parser.add_argument("--commit", action="store_true", help="replace the committed numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Graphs are counted first: a timing run is long, and this fails early.
    print("counting graphs, then timing", flush=True)
    counts = compiled_graphs()
    whole = sum(DEPTHS.get(blocks, 0.3) for blocks in options.depths)
    everything: dict[str, Any] = read_json(COMMITTED) or {}
    code = 0
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        found: dict[str, Any] = {
            "processor": cpu_name() if device == "cpu" else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "shape": f"width {WIDTH}, {ROWS} x {LENGTH} tokens, one thread",
            "depths": {
                str(blocks): measure(
                    blocks, 60 * options.minutes * DEPTHS.get(blocks, 0.3) / whole, device
                )
                for blocks in options.depths
            },
            "graphs": counts if device == "cpu" else {},
        }
        report(found, device)
        code |= judge(found, everything.get(device))
        everything[device] = found
    more = {v: n for v, by in counts.items() for n in by.values() if n > 1}
    for variant in more:
        print(f"{variant} needs more than one graph")
    if options.commit:
        write_json(COMMITTED, everything)
        print(f"written: {COMMITTED}")
        return 0
    return code | bool(more)


if __name__ == "__main__":
    sys.exit(main())
