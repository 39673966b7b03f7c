"""The weighted sums on a card: errors against float64 there, and the same bits twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import dense_aggregate
from tests.kernels.interpreter import configure, normal, on_gpu, value_and_gradients
from tests.support.compare import rms_error

pytestmark = on_gpu

DEVICE = "cuda"


def call(backend: str):
    def stacked(*x: Tensor) -> Tensor:
        return torch.stack(dense_aggregate(x[-1], list(x[:-1]), backend))

    return stacked


def check(rows: int, count: int, ways: int, static: bool) -> None:
    width = 1024 if count < 33 else 64
    x = [normal(rows, width, seed=j, dtype=torch.bfloat16).to(DEVICE) for j in range(count)]
    x.append(normal(1 if static else rows, ways, count, seed=200, dtype=torch.float32).to(DEVICE))
    ours = value_and_gradients(call("triton"), x)
    exact = value_and_gradients(call("reference"), x, torch.float64)
    assert rms_error(ours[0], exact[0]) <= 0.005
    for actual, expected in zip(ours[1:], exact[1:], strict=True):
        assert rms_error(actual, expected) <= 0.008
    again = value_and_gradients(call("triton"), x)
    assert all(map(torch.equal, ours, again))


@pytest.mark.parametrize("rows", [1, 127, 4096])
@pytest.mark.parametrize("count", [1, 9, 33])
@pytest.mark.parametrize("ways", [1, 4])
@pytest.mark.parametrize("static", [False, True], ids=["per row", "static"])
def test_errors(rows: int, count: int, ways: int, static: bool) -> None:
    check(rows, count, ways, static)


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_configuration(warps: int, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, warps, stages)
    check(300, 9, 4, False)
