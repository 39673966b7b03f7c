"""Time of the operations of `lrt_kernels`, forward and backward: `make kernels-bench`.

On a CPU the reference, as it is and compiled, stands beside the form that stacks its sources, in
ratios of one thread's CPU time, taken in turns. On a GPU the kernels are timed beside the reference
and as a share of the rate of a copy. Without a GPU nothing of a kernel is timed: what is printed
instead is the least time that its bytes allow on a card of a given copy rate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrt_kernels import depth_read
from lrt_lab.store import read_json, write_json
from lrt_lab.training.run import cpu_name
from tests.benchmarks import row_ops
from tests.benchmarks.timing import beside, interleaved, judge, seconds

TOKENS, WIDTH, SOURCES = 1024, 256, 9
COMMITTED = Path(__file__).with_suffix(".json")
BASELINE = "stacked"
#: The GPU's shape: tokens, width, and depths in sources.
GPU_TOKENS, GPU_WIDTH, GPU_SOURCES = 32768, 1024, (9, 17)
#: Bytes per second that a copy moves on the H200 which predictions are made for.
COPY_RATE = 4.3e12


def stacked(sources: Sequence[Tensor], query_SD: Tensor, bias_S: Tensor) -> Tensor:
    """The read as its formula is most often written: on one stack of sources."""
    bank = torch.stack(list(sources))
    keys = bank * torch.rsqrt(bank.square().mean(-1, keepdim=True) + 1e-6)
    logits = torch.einsum("snd,sd->sn", keys, query_SD) + bias_S.unsqueeze(-1)
    return torch.einsum("sn,snd->nd", torch.softmax(logits, 0), bank)


def inputs(tokens: int, width: int, count: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Sources allocated apart, then queries and biases in float32; all of them leaves."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=g).to(device, dtype).requires_grad_()

    sources = [normal(tokens, width, dtype=dtype) for _ in range(count)]
    return [*sources, *(normal(*s, dtype=torch.float32) for s in ((count, width), (count,)))]


def step(read: Callable[..., Tensor], leaves: Sequence[Tensor], grad: Tensor) -> None:
    """Forward, and the gradients of everything."""
    torch.autograd.grad(read(leaves[:-2], *leaves[-2:]), leaves, grad)


def on_cpu(minutes: float) -> dict[str, Any]:
    """Speed of the reference as a multiple of the stacked form's."""
    leaves = inputs(TOKENS, WIDTH, SOURCES, torch.float32, "cpu")
    forms = {
        BASELINE: stacked,
        "reference": depth_read,
        "stacked, compiled": torch.compile(stacked, fullgraph=True),
        "reference, compiled": torch.compile(depth_read, fullgraph=True),
    }
    grad = torch.ones(TOKENS, WIDTH)
    runs = {name: partial(step, form, leaves, grad) for name, form in forms.items()}
    for run in runs.values():
        run()
    return beside(interleaved(runs, 60 * minutes), BASELINE)


def moved(count: int, width: int = GPU_WIDTH, size: int = 2) -> dict[str, int]:
    """Bytes per token that a depth read must move, forward and backward.

    Forward: S sources in, the read out, and in float32 scores, inverse norms and one denominator.
    Backward: S sources in, S gradients out, the read once and its gradient twice, since do . o is
    taken first; the float32 numbers again, and do . o out and in.
    """
    kept = 4 * (2 * count + 1)
    return {
        "forward": (count + 1) * width * size + kept,
        "backward": (2 * count + 3) * width * size + kept + 8,
    }


def predicted() -> list[dict[str, Any]]:
    """The least time of each kernel at the GPU's shape; nothing here is timed."""
    return [
        {
            "sources": count,
            "pass": name,
            "gigabytes": round(size * GPU_TOKENS / 1e9, 3),
            "milliseconds": round(1e3 * size * GPU_TOKENS / COPY_RATE, 3),
        }
        for count in GPU_SOURCES
        for name, size in moved(count).items()
    ]


def on_gpu() -> list[dict[str, Any]]:
    """Milliseconds, bytes and the share of a copy's rate, forward with backward."""
    rows, rate = [], copy_rate()
    kernels, reference = (partial(depth_read, backend=name) for name in ("triton", "reference"))
    calls = {
        "triton": kernels,
        "reference": reference,
        "reference, compiled": torch.compile(reference, fullgraph=True),
    }
    for count in GPU_SOURCES:
        leaves = inputs(GPU_TOKENS, GPU_WIDTH, count, torch.bfloat16, "cuda")
        grad = torch.ones(GPU_TOKENS, GPU_WIDTH, dtype=torch.bfloat16, device="cuda")
        size = GPU_TOKENS * sum(moved(count).values())
        for name, call in calls.items():
            took = best(partial(step, call, leaves, grad))
            row = {"sources": count, "backend": name, "milliseconds": 1e3 * took}
            rows.append({**row, "gigabytes": size / 1e9, "of the copy rate": size / took / rate})
    return rows


def copy_rate() -> float:
    """Bytes per second, read and written, of a copy of a gigabyte on this GPU."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / best(lambda: target.copy_(source))


def best(run: Callable[[], object], repetitions: int = 20) -> float:
    """Least seconds of a call on a GPU, once it is warm."""
    for _ in range(3):
        run()
    return min(seconds(run, "cuda") for _ in range(repetitions))


def table(rows: Sequence[dict[str, Any]]) -> None:
    """One line per row, columns by their keys."""
    print("".join(f"{key:>20}" for key in rows[0]))
    for row in rows:
        cells = (f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values())
        print("".join(f"{cell:>20}" for cell in cells))


def ratios(rows: dict[str, dict[str, Any]]) -> None:
    """One line per form: median and range of its speed, repetitions, milliseconds."""
    for name, row in rows.items():
        print(
            f"{name:22}{row['median']:7.2f}{row['low']:8.2f}-{row['high']:.2f}"
            f"{row['repetitions']:4}{1e3 * row['seconds']:9.2f} ms"
        )


def main() -> int:
    """Measure, print, and compare or commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=0.5, help="of timing on the CPU")
    parser.add_argument("--commit", action="store_true", help="replace the committed numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    everything: dict[str, Any] = read_json(COMMITTED) or {}
    found: dict[str, Any] = {
        "processor": cpu_name(),
        "torch": torch.__version__,
        "shape": f"{TOKENS} tokens, width {WIDTH}, {SOURCES} sources, float32, one thread",
        "ops": {"depth_read": on_cpu(options.minutes)},
        "rows": row_ops.on_cpu(TOKENS, WIDTH, options.minutes / len(row_ops.MOVED)),
    }
    print(f"\ndepth_read, forward and backward, {found['shape']}: speed over {BASELINE}'s")
    ratios(found["ops"]["depth_read"])
    for name, rows in found["rows"].items():
        print(f"\n{name}, forward and backward: speed over the reference's")
        ratios(rows)
    committed = everything.get("cpu")
    code = judge(found, committed, "ops")
    if committed and "rows" in committed:
        code |= judge(found, committed, "rows")
    everything["cpu"] = found
    if torch.cuda.is_available():
        print(f"\n{torch.cuda.get_device_name()}, {GPU_TOKENS} x {GPU_WIDTH}, bfloat16")
        everything["cuda"] = {"device": torch.cuda.get_device_name(), "rows": on_gpu()}
        table(everything["cuda"]["rows"])
        everything["cuda"]["row kernels"] = row_ops.on_gpu(GPU_TOKENS, copy_rate(), best)
        table(everything["cuda"]["row kernels"])
    else:
        print("\nno GPU: no kernel was timed. The least time that its bytes allow at")
        print(f"{COPY_RATE / 1e12} TB/s, {GPU_TOKENS} x {GPU_WIDTH} tokens in bfloat16:")
        everything["predicted, nothing timed"] = predicted()
        table(predicted())
        everything["row kernels predicted, nothing timed"] = row_ops.predicted(
            GPU_TOKENS, COPY_RATE
        )
        table(everything["row kernels predicted, nothing timed"])
    if options.commit:
        write_json(COMMITTED, everything)
        print(f"written: {COMMITTED.name}")
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
