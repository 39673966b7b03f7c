"""Calls of the delta rule: what its kernels' tests here and on a card share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrt_kernels import delta_rule, l2_norm
from tests.kernels.interpreter import normal

#: Inputs that are gates, whose gradients may be off by more.
GATES = ("beta", "log_decay")


def inputs(
    length: int,
    batch: int = 1,
    heads: int = 1,
    keys: int = 5,
    values: int = 4,
    decay: bool = True,
    state: bool = True,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Unit keys, strengths in (0, 2), decays down to exp(-3); gates and state float32 or wider."""
    wide = torch.promote_types(dtype, torch.float32)
    row = (batch, length, heads)
    found = {
        "q": l2_norm(normal(*row, keys, seed=1)).to(dtype),
        "k": l2_norm(normal(*row, keys, seed=2)).to(dtype),
        "v": normal(*row, values, seed=3, dtype=dtype),
        "beta": 2 * torch.sigmoid(normal(*row, seed=4, dtype=wide)),
    }
    if decay:
        found["log_decay"] = -3 * torch.sigmoid(normal(*row, seed=5, dtype=wide))
    if state:
        found["state"] = normal(batch, heads, keys, values, seed=6, dtype=wide)
    return found


def results(
    backend: str, given: dict[str, Tensor], dtype: torch.dtype | None = None, **options: Any
) -> dict[str, Tensor]:
    """Outputs, the state after them, and all gradients of a fixed mixture of both, in float64.

    Args:
        backend: of the operation.
        given: its inputs by name, as of `inputs`.
        dtype: cast them to it first; the mixture's weights are rounded to the values' own.
        options: of the operation.
    """
    leaves = {name: x.detach().to(dtype or x.dtype).requires_grad_() for name, x in given.items()}
    out, last = delta_rule(**leaves, backend=backend, **options)
    weights = [normal(*x.shape, seed=9 + i).to(given["v"]) for i, x in enumerate((out, last))]
    mixture = (out * weights[0].to(out)).sum() + (last * weights[1].to(last)).sum()
    gradients = torch.autograd.grad(mixture, list(leaves.values()), materialize_grads=True)
    found = {"out": out, "last": last} | dict(zip(leaves, gradients, strict=True))
    return {name: x.detach().double() for name, x in found.items()}
