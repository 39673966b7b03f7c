"""Calls of the operations that work row by row: what their kernels' tests and benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lrt_kernels import slot_compact, slot_gate, slot_reflect
from tests.kernels.interpreter import normal


@dataclass(frozen=True)
class Case:
    """One call of an operation.

    Attributes:
        op: the operation's module.
        inputs: tensors to differentiate, of so many rows, a width, and a dtype of the activations.
        call: of a backend and those tensors; several results side by side.
        gates: which inputs are gates, whose gradients may be off by more.
        gpu_width: on a card.
    """

    op: str
    inputs: Callable[[int, int, torch.dtype], list[Tensor]]
    call: Callable[..., Tensor]
    gates: tuple[int, ...] = ()
    gpu_width: int = 1024

    def on(self, backend: str) -> Callable[..., Tensor]:
        """The call of the tensors alone."""
        return lambda *x: self.call(backend, *x)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def slots(n: int, d: int, dtype: torch.dtype, count: int = 2) -> Tensor:
    return normal(n, count, d, seed=1, dtype=dtype)


CASES: dict[str, Case] = {}


CASES["slot_gate"] = Case(
    "slot_compact",
    lambda n, d, dtype: [slots(n, d, dtype, 1), normal(n, d, seed=2, dtype=dtype)],
    lambda backend, g, m: slot_gate(g, m, 1e-3, backend),
)
CASES["slot_gate, no token"] = Case(
    "slot_compact",
    lambda n, d, dtype: [slots(n, d, dtype, 3)],
    lambda backend, g: slot_gate(g, None, 1e-3, backend),
)
CASES["slot_reflect"] = Case(
    "slot_compact",
    lambda n, d, dtype: [slots(n, d, dtype, 1), 1e-3 * normal(n, 1, d, seed=2, dtype=dtype)],
    lambda backend, g, v: slot_reflect(g, v, backend=backend),
)
CASES["slot_reflect, strength"] = Case(
    "slot_compact",
    lambda n, d, dtype: [
        slots(n, d, dtype),
        normal(n, 2, d, seed=2, dtype=dtype),
        normal(n, 2, 1, seed=3, dtype=wide(dtype)),
    ],
    lambda backend, g, v, b: slot_reflect(g, v, b, backend),
    gates=(2,),
)
CASES["slot_compact"] = Case(
    "slot_compact",
    lambda n, d, dtype: [
        slots(n, d, dtype),
        normal(n, d, seed=2, dtype=dtype),
        *(normal(d, d, seed=3 + s, dtype=dtype) for s in range(2)),
    ],
    lambda backend, g, m, *w: slot_compact(g, w, m, 1e-3, backend),
)
