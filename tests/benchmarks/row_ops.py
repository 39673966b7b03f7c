"""The operations that work row by row, in `make kernels-bench`: bytes, predictions, timings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tests.benchmarks.timing import beside, interleaved
from tests.kernels.row_cases import CASES

#: Bytes per token that a call must move, forward and backward, at a width and a size of a number.
MOVED: dict[str, Callable[[int, int], tuple[int, int]]] = {
    # One slot: state and token in, gated state out; back also the gradient in and two out.
    "slot_gate": lambda d, e: (3 * d * e, 5 * d * e),
    # One slot: state and direction in, state out; back also the gradient in and two out.
    "slot_reflect": lambda d, e: (3 * d * e, 5 * d * e),
    # One K/V head of d: keys, values and memory's in, two logits, two out; back also both gradients
    # in, and one out for each input.
    "inject_kv": lambda d, e: (6 * d * e + 8, 10 * d * e + 16),
    # Three heads of d in and out; back the gradient and heads in, and one out. Angles, which rows
    # of a batch share, are left out.
    "place_heads": lambda d, e: (6 * d * e, 9 * d * e),
    # State and projected cache in, two gates' float32 logits, the state out; back also the gradient
    # in, and one out for each input.
    "merge_cache": lambda d, e: (3 * d * e + 8 * d, 5 * d * e + 16 * d),
    # State and cache in, cache out; back the gradient in and one out for each.
    "update_cache": lambda d, e: (3 * d * e, 5 * d * e),
    # Product and float32 logits in, state out; back the gradient in and one out for each.
    "gated_product": lambda d, e: (2 * d * e + 4 * d, 3 * d * e + 8 * d),
    # Four streams and a coefficient each in, their mixture out.
    "stream_read": lambda d, e: (5 * d * e + 16, 9 * d * e + 32),
    # Four streams, a unit's output and 20 coefficients in, four streams out.
    "stream_write, 4 streams": lambda d, e: (9 * d * e + 80, 14 * d * e + 160),
    # 16 numbers in and out; back also the gradient in. Not the scales that backward makes anew.
    "sinkhorn, 4 streams, exact at the source": lambda d, e: (128, 192),
    # 24 numbers in and out; back also the gradient in. Not the scales that backward makes anew.
    "stream_coefficients, balanced, exact at the source": lambda d, e: (192, 288),
}


def predicted(tokens: int, rate: float) -> list[dict[str, Any]]:
    """The least time of each kernel at a rate in bytes per second; nothing here is timed."""
    return [
        {
            "kernel": name,
            "pass": which,
            "gigabytes": round(size * tokens / 1e9, 3),
            "milliseconds": round(1e3 * size * tokens / rate, 3),
        }
        for name, moved in MOVED.items()
        for which, size in zip(
            ("forward", "backward"), moved(CASES[name].gpu_width, 2), strict=True
        )
    ]


def steps(
    name: str, tokens: int, width: int, dtype: torch.dtype, device: str, backends: dict[str, str]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Forward with the gradients of everything, by backend and compiled."""
    case = CASES[name]
    leaves = [x.to(device).requires_grad_() for x in case.inputs(tokens, width, dtype)]
    for label, backend in backends.items():
        call = case.on(backend)
        if label.endswith("compiled"):
            call = torch.compile(call, fullgraph=True)
        with torch.no_grad():
            grad = torch.ones_like(call(*leaves))

        def step(call: Callable[..., torch.Tensor] = call, grad: torch.Tensor = grad) -> object:
            return torch.autograd.grad(call(*leaves), leaves, grad)

        yield label, step


def on_cpu(tokens: int, width: int, minutes: float) -> dict[str, Any]:
    """By operation the speed of the compiled reference as a multiple of the reference's."""
    backends = {"reference": "reference", "reference, compiled": "reference"}
    found = {}
    for name in MOVED:
        torch.compiler.reset()
        runs = dict(steps(name, tokens, width, torch.float32, "cpu", backends))
        for run in runs.values():
            run()
        found[name] = beside(interleaved(runs, 60 * minutes), "reference")
    return found


def on_gpu(
    tokens: int, rate: float, best: Callable[[Callable[[], object]], float]
) -> list[dict[str, Any]]:
    """Milliseconds, bytes and the share of a copy's rate, forward with backward."""
    backends = {"triton": "triton", "reference": "reference", "reference, compiled": "reference"}
    rows = []
    for name, moved in MOVED.items():
        width = CASES[name].gpu_width
        size = tokens * sum(moved(width, 2))
        for label, run in steps(name, tokens, width, torch.bfloat16, "cuda", backends):
            took = best(partial(run))
            row = {"kernel": name, "backend": label, "milliseconds": 1e3 * took}
            rows.append({**row, "gigabytes": size / 1e9, "of the copy rate": size / took / rate})
    return rows
