"""Time of the operations of `lrt_kernels`, forward and backward: `make kernels-bench`.

On a CPU the reference, as it is and compiled, stands beside the form that an operation is most
often written in, in ratios of one thread's CPU time, taken in turns, and beside those of other
packages that are installed (`tests.benchmarks.peers`). On a GPU the kernels are timed
beside the reference and as a share of the rate of a copy or of a matrix product. Without a GPU
nothing of a kernel is timed: what is printed instead is the least time that its bytes and products
allow on a card of given rates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lrt_lab.store import read_json, write_json
from lrt_lab.training.run import cpu_name
from tests.benchmarks import row_ops
from tests.benchmarks.kernel_cases import ON_CPU, ON_GPU, Case, Work, forms, outputs, step
from tests.benchmarks.peers import peers
from tests.benchmarks.timing import beside, interleaved, judge, seconds

COMMITTED = Path(__file__).with_suffix(".json")
BASELINE = "naive"
#: Sizes of the operations that work row by row: tokens and width here, tokens on a GPU.
TOKENS, WIDTH, GPU_TOKENS = 1024, 256, 32768
#: Bytes per second that a copy moves, and FLOPs per second of bfloat16 matrix products, on the H200
#: which predictions are made for.
COPY_RATE, MATRIX_RATE = 4.3e12, 780e12


def runs(case: Case, device: str, backends: Sequence[str]) -> dict[str, Callable[[], None]]:
    """A warm step of every form."""
    leaves = case.leaves(device)
    with torch.no_grad():
        grads = [torch.ones_like(x) for x in outputs(case.call(*leaves))]
    found = {}
    for name, form in forms(case, BASELINE, backends).items():
        found[name] = partial(step, form, leaves, grads)
        found[name]()
    for name, form in peers(case.op, device).items():
        run = partial(step, form, leaves, grads)
        try:
            run()
        except Exception as error:
            # Another package may not support this card, this Triton or this size.
            print(f"\n{case.op}: {name} is left out: {' '.join(str(error).split())}")
            continue
        found[name] = run
    return found


def on_cpu(case: Case, minutes: float) -> dict[str, Any]:
    """Speed of the reference as a multiple of the naive form's."""
    return beside(interleaved(runs(case, "cpu", ["reference"]), 60 * minutes), BASELINE)


def least(work: Work, copy: float = COPY_RATE, matrix: float = MATRIX_RATE) -> float:
    """Seconds that a pass takes where it is bound by its bytes or by its products."""
    return max(work.bytes / copy, work.flops / matrix)


def predicted() -> list[dict[str, Any]]:
    """The least time of each kernel at the GPU's shapes; nothing here is timed."""
    return [
        {
            "case": case.name,
            "pass": name,
            "gigabytes": round(work.bytes / 1e9, 3),
            "teraflops": round(work.flops / 1e12, 3),
            "milliseconds": round(1e3 * least(work), 3),
        }
        for case in ON_GPU
        for name, work in case.work.items()
    ]


def on_gpu(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Milliseconds, and the share of the least time that this card's own rates allow."""
    rows, rates = [], (copy_rate(), matrix_rate())
    for case in cases:
        bound = sum(least(work, *rates) for work in case.work.values())
        for name, run in runs(case, "cuda", ["triton", "reference"]).items():
            took = best(run)
            row = {"case": case.name, "form": name, "milliseconds": 1e3 * took}
            rows.append({**row, "of the roofline": bound / took})
    return rows


def copy_rate() -> float:
    """Bytes per second, read and written, of a copy of a gigabyte on this GPU."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / best(lambda: target.copy_(source))


def matrix_rate(size: int = 8192) -> float:
    """FLOPs per second of a square matrix product in bfloat16 on this GPU."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return 2 * size**3 / best(lambda: a @ b)


def best(run: Callable[[], object], repetitions: int = 20) -> float:
    """Least seconds of a call on a GPU, once it is warm."""
    for _ in range(3):
        run()
    return min(seconds(run, "cuda") for _ in range(repetitions))


def table(rows: Sequence[dict[str, Any]]) -> None:
    """One line per row, columns by their keys."""
    widths = [max(len(key), *(len(_cell(row[key])) for row in rows)) + 2 for key in rows[0]]
    for cells in (list(rows[0]), *([_cell(v) for v in row.values()] for row in rows)):
        print("".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


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
    parser.add_argument("--minutes", type=float, default=0.5, help="of timing on the CPU, per case")
    parser.add_argument("--commit", action="store_true", help="replace the committed numbers")
    parser.add_argument("--op", action="append", help="one operation; again for others")
    options = parser.parse_args()
    torch.set_num_threads(1)
    everything: dict[str, Any] = read_json(COMMITTED) or {}
    about = {"processor": cpu_name(), "torch": torch.__version__, "shape": "float32, one thread"}
    found: dict[str, Any] = {**about, "ops": {}}
    for case in ON_CPU:
        if options.op and case.op not in options.op:
            continue
        found["ops"][case.op] = on_cpu(case, options.minutes)
        print(f"\n{case.name}, {about['shape']}, forward and backward: speed over {BASELINE}'s")
        ratios(found["ops"][case.op])
    if not options.op:
        found["rows"] = row_ops.on_cpu(TOKENS, WIDTH, options.minutes / len(row_ops.MOVED))
        for name, rows in found["rows"].items():
            print(f"\n{name}, forward and backward: speed over the reference's")
            ratios(rows)
    committed = everything.get("cpu")
    code = judge(found, committed, "ops")
    if committed and "rows" in committed and "rows" in found:
        code |= judge(found, committed, "rows")
    known = committed or {}
    # Numbers of another processor do not stand beside these.
    kept = known if known.get("processor") == found["processor"] else {}
    ops = {**kept.get("ops", {}), **found["ops"]}
    everything["cpu"] = {**kept, **found, "ops": ops}
    if torch.cuda.is_available():
        chosen = [case for case in ON_GPU if not options.op or case.op in options.op]
        print(f"\n{torch.cuda.get_device_name()}, bfloat16, forward and backward")
        everything["cuda"] = {"device": torch.cuda.get_device_name(), "rows": on_gpu(chosen)}
        table(everything["cuda"]["rows"])
        everything["cuda"]["row kernels"] = row_ops.on_gpu(GPU_TOKENS, copy_rate(), best)
        table(everything["cuda"]["row kernels"])
    else:
        print("\nno GPU: no kernel was timed. The least time that bytes and products allow at")
        print(f"{COPY_RATE / 1e12} TB/s and {MATRIX_RATE / 1e12:.0f} TFLOP/s, in bfloat16:")
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
