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
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

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
from tests.benchmarks.timing import beside, interleaved, judge, step, tokens
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


def measure(blocks: int, budget: float, device: str) -> dict[str, Any]:
    """Ratios and saved bytes of every variant at one depth.

    Args:
        blocks: the depth.
        budget: seconds that it may take; at least two repetitions are made.
        device: "cpu" or "cuda".
    """
    ids = tokens(ROWS, LENGTH + 1, VOCAB, device)
    models = {variant: decoder(variant, blocks, device) for variant in VARIANTS}
    # These forward passes warm up, too.
    saved = {v: saved_bytes(model, SinglePass(), ids) for v, model in models.items()}
    runs = {variant: partial(step, model, ids) for variant, model in models.items()}
    rows = beside(interleaved(runs, budget, device), BASELINE)
    return {v: {**row, "saved_mib": round(saved[v] / 2**20, 1)} for v, row in rows.items()}


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
    model, ids, counted = decoder(variant, blocks, "cpu"), tokens(1, 17, VOCAB), Graphs()
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
        code |= judge(found, everything.get(device), "depths")
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
