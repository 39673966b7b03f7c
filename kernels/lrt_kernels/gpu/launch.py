"""A kernel's launch as a value: run here, or compiled ahead of time for a card that is absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel on a one-dimensional grid.

    Args:
        name: of the kernel, as tables call it.
        kernel: the jitted function.
        programs: size of the grid.
        args: tensors, integers, or None where an optional tensor is left out.
        constants: compile-time arguments.
        warps: per program.
        stages: of software pipelining.
    """

    name: str
    kernel: Any
    programs: int
    args: dict[str, Tensor | int | None]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2

    def run(self) -> None:
        """Launch on the current device, or in Triton's interpreter."""
        if self.programs:
            self.kernel[(self.programs,)](
                **self.args, **self.constants, num_warps=self.warps, num_stages=self.stages
            )


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """What a kernel computes in: float32, or float64 where its inputs are."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def pointers(tensors: Sequence[Tensor], name: str = "sources") -> Tensor:
    """Addresses of separately allocated tensors, ``(S,)`` int64 on their device.

    Kernels load 16 bytes at a time, so the addresses are multiples of 16: a view that starts
    elsewhere is a ValueError.
    """
    for i, tensor in enumerate(tensors):
        if tensor.data_ptr() % 16:
            raise ValueError(f"{name}[{i}] does not start at a multiple of 16 bytes: clone it")
    table = torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64)
    device = tensors[0].device
    if device.type == "cpu":
        return table
    # From pinned memory the copy is queued and the host does not wait.
    return table.pin_memory().to(device, non_blocking=True)


def rows_per_program(features: int, tile: int = 4096, most: int = 16) -> int:
    """Rows of ``features`` numbers, a power of two, that fill a tile."""
    return max(1, min(most, tile // features))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    result: int = triton.next_power_of_2(n)
    return result
