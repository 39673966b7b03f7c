"""What kernel tests share: the interpreter's conditions, and both gradients of a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

#: For tests that run kernels on the CPU: tests/conftest.py turns the interpreter on without a GPU.
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="Triton's interpreter is off: a GPU is present, or TRITON_INTERPRET is not 1",
)
#: For tests that need a card; `make kernels-gpu` runs them.
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, rounded to a dtype."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def value_and_gradients(
    call: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """The output and the gradients of a fixed mixture of it, all in float64.

    Args:
        call: of the tensors, one by one.
        inputs: floating-point leaves.
        dtype: cast the inputs to it first; None keeps each one's own. The mixture's weights are
            rounded to the first input's own dtype in any case.
    """
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]
    out = call(*leaves)
    weight = normal(*out.shape, seed=9, dtype=inputs[0].dtype).to(out)
    gradients = torch.autograd.grad((out * weight).sum(), leaves, materialize_grads=True)
    return [x.detach().double() for x in (out, *gradients)]


def configure(monkeypatch: pytest.MonkeyPatch, warps: int, stages: int) -> None:
    """Launch every kernel with these from here on, whatever its plan says."""
    from lrt_kernels.gpu.launch import Launch

    run = Launch.run
    monkeypatch.setattr(Launch, "run", lambda self: run(replace(self, warps=warps, stages=stages)))


def tile(monkeypatch: pytest.MonkeyPatch, op: str, numbers: int) -> None:
    """Let a program of an operation's row kernels take so many numbers from here on."""
    monkeypatch.setattr(import_module(f"lrt_kernels.gpu.{op}"), "TILE", numbers)
