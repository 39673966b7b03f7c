"""The kernels of streams on a card: every configuration, float32, and a unit of mHC as a whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import Sinkhorn, stream_coefficients, stream_read, stream_score, stream_write
from tests.kernels.interpreter import configure, normal, on_gpu, value_and_gradients
from tests.support.compare import rms_error

pytestmark = on_gpu

WIDTH = 1024


def inputs(rows: int, n: int, dtype: torch.dtype) -> list[Tensor]:
    """Streams, a unit's output, and a map to its scores."""
    x, y = normal(rows, n, WIDTH, dtype=dtype), normal(rows, WIDTH, seed=1, dtype=dtype)
    scale = (n * WIDTH) ** -0.5
    weight = scale * normal(2 * n + n * n, n * WIDTH, seed=2, dtype=torch.float32)
    return [x.cuda(), y.cuda(), weight.cuda()]


def unit(backend: str, n: int):
    """mHC's: scores, coefficients, read, and the next streams, side by side."""

    def call(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        scores = stream_score(x, weight, 1e-6, backend)
        scale, bias = scores.new_ones(3), scores.new_zeros(scores.shape[-1])
        read, write, carry = stream_coefficients(scores, scale, bias, Sinkhorn(), backend=backend)
        mixed = stream_read(x, read, backend)
        following = stream_write(x, carry, write, y, backend)
        return torch.cat([mixed.unsqueeze(-2), following], dim=-2)

    return call


def check(rows: int, n: int, dtype: torch.dtype) -> None:
    given = inputs(rows, n, dtype)
    ours = value_and_gradients(unit("triton", n), given)
    exact = value_and_gradients(unit("reference", n), given, torch.float64)
    bounds = [0.005, 0.008, 0.008, 0.02] if dtype == torch.bfloat16 else 4 * [1e-4]
    found = [rms_error(actual, expected) for actual, expected in zip(ours, exact, strict=True)]
    assert all(map(float.__le__, found, bounds)), found
    again = value_and_gradients(unit("triton", n), given)
    assert all(map(torch.equal, ours, again))


@pytest.mark.parametrize("rows", [1, 127, 4096])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_unit(rows: int, n: int, dtype: torch.dtype) -> None:
    check(rows, n, dtype)


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_configuration(warps: int, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, warps, stages)
    check(300, 4, torch.bfloat16)
