"""The depth read on a card: errors against float64 there, and the same bits twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import depth_read
from tests.kernels.interpreter import normal, on_gpu, value_and_gradients
from tests.support.compare import rms_error

pytestmark = on_gpu


def call(count: int, backend: str, masks: list[Tensor | None] | None):
    def read(*x: Tensor) -> Tensor:
        options = {"masks": masks, "norm_eps": 1e-6, "norm_gain": x[-1], "backend": backend}
        return depth_read(list(x[:count]), x[count], x[count + 1], 16.0, **options)

    return read


@pytest.mark.parametrize("rows", [1, 127, 4096])
@pytest.mark.parametrize("count", [1, 9, 33, 129])
@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize("masked", [False, True], ids=["all present", "masked"])
def test_errors(rows: int, count: int, reads: int, masked: bool) -> None:
    width = 1024 if count < 33 else 64
    inputs = [normal(rows, width, seed=j, dtype=torch.bfloat16) for j in range(count)]
    inputs += [normal(reads, count, width, seed=200), normal(count, seed=201), normal(width)]
    inputs = [x.cuda() if x.dtype == torch.bfloat16 else x.float().cuda() for x in inputs]
    masks = [None, *(normal(rows, seed=300 + j).cuda() > -0.5 for j in range(1, count))]
    chosen = masks if masked else None
    exact = value_and_gradients(call(count, "reference", chosen), inputs, torch.float64)
    ours = value_and_gradients(call(count, "auto", chosen), inputs)
    assert rms_error(ours[0], exact[0]) <= 0.005
    for actual, expected in zip(ours[1:], exact[1:], strict=True):
        if expected.abs().max() > 1e-9:
            assert rms_error(actual, expected) <= 0.008
    again = value_and_gradients(call(count, "auto", chosen), inputs)
    assert all(map(torch.equal, ours, again))
