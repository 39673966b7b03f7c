"""2-simplicial attention on a card: errors against float64 there, and the same bits twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import simplicial_attention
from lrt_kernels.gpu import simplicial_attention as kernels
from tests.kernels.interpreter import configure, normal, on_gpu, value_and_gradients
from tests.support.compare import rms_error

pytestmark = on_gpu


def check(
    windows: tuple[int, int],
    positions: range,
    heads: int = 8,
    kv_heads: int = 1,
    size: int = 128,
    packed: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    bounds: tuple[float, float] = (0.005, 0.008),
) -> None:
    batch, length = 2, positions[-1] + 1
    x = [normal(batch, len(positions), heads, size, seed=1, dtype=dtype)]
    x += [normal(batch, length, kv_heads, size, seed=2 + n, dtype=dtype) for n in range(4)]
    x = [y.cuda() for y in x]
    document = torch.arange(length, device="cuda").expand(batch, -1) // 37 if packed else None

    def on(backend: str):
        def call(q: Tensor, *kv: Tensor) -> Tensor:
            pairs = (kv[0], kv[1]), (kv[2], kv[3])
            return simplicial_attention(q, *pairs, windows, positions, document, backend=backend)

        return call

    ours = value_and_gradients(on("auto"), x)
    exact = value_and_gradients(on("reference"), x, torch.float64)
    assert rms_error(ours[0], exact[0]) <= bounds[0]
    for actual, expected in zip(ours[1:], exact[1:], strict=True):
        assert rms_error(actual, expected) <= bounds[1]
    assert all(map(torch.equal, ours, value_and_gradients(on("auto"), x)))


@pytest.mark.parametrize("windows", [(512, 32), (32, 512), (64, 1), (7, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("length", [1, 127, 600])
@pytest.mark.parametrize("packed", [False, True], ids=["one document", "documents"])
def test_errors(windows: tuple[int, int], length: int, packed: bool) -> None:
    check(windows, range(length), packed=packed)


@pytest.mark.parametrize(
    "heads, kv_heads, size", [(8, 8, 64), (6, 2, 96), (64, 1, 128), (3, 1, 20), (2, 1, 256)]
)
def test_shapes(heads: int, kv_heads: int, size: int) -> None:
    check((40, 6), range(150), heads, kv_heads, size)


@pytest.mark.parametrize("positions", [range(300, 301), range(200, 300), range(3, 300, 4)], ids=str)
def test_positions(positions: range) -> None:
    check((100, 8), positions, packed=True)


@pytest.mark.parametrize(
    "dtype, bound", [(torch.float16, 2e-3), (torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str
)
def test_dtypes(dtype: torch.dtype, bound: float) -> None:
    check((40, 6), range(150), dtype=dtype, bounds=(bound, bound))


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("tiles", [(16, 16, 16), (32, 16, 32), (64, 32, 64)], ids=str)
def test_every_configuration(
    warps: int, stages: int, tiles: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, tile in zip(("FORWARD", "BACKWARD", "KEYS"), tiles, strict=True):
        monkeypatch.setattr(kernels, name, tile)
    configure(monkeypatch, warps, stages)
    check((100, 8), range(150), packed=True)
