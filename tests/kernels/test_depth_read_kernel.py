"""The depth read's kernels, interpreted on the CPU, against the reference in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import depth_read
from lrt_kernels.depth_read import _op
from lrt_kernels.gpu.launch import rows_per_program
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error, rms_error

pytestmark = interpreted

WIDTH = 6
#: Rows of one program at this width.
BLOCK = rows_per_program(8)


class Case:
    """One set of inputs, and the call that both backends are given."""

    def __init__(
        self,
        rows: int,
        count: int,
        reads: int | None = None,
        shared: bool = False,
        extras: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.count, self.extras = count, extras
        wide = torch.promote_types(dtype, torch.float32)
        self.inputs = [normal(rows, WIDTH, seed=j, dtype=dtype) for j in range(count)]
        own = () if shared and reads is None else (1 if shared else count,)
        lead = () if reads is None else (reads,)
        self.inputs.append(normal(*lead, *own, WIDTH, seed=200, dtype=wide))
        self.options: dict = {}
        if extras:
            self.inputs.append(normal(*lead, count, seed=201, dtype=wide))
            self.inputs.append(normal(WIDTH, seed=202, dtype=wide))
            masks = [None, *(normal(rows, seed=300 + j) > -0.5 for j in range(1, count))]
            self.options = {"scale": 1.5, "eps": 1e-3, "masks": masks, "norm_eps": 1e-2}

    def run(self, backend: str, dtype: torch.dtype | None = None) -> list[Tensor]:
        def call(*x: Tensor) -> Tensor:
            sources, (query, *rest) = list(x[: self.count]), x[self.count :]
            bias, gain = rest or (None, None)
            return depth_read(sources, query, bias, norm_gain=gain, backend=backend, **self.options)

        return value_and_gradients(call, self.inputs, dtype)

    def same(self) -> None:
        for actual, expected in zip(self.run("triton"), self.run("reference"), strict=True):
            assert (actual - expected).abs().max() <= SAME * max(1.0, expected.abs().max())


@pytest.mark.parametrize("rows", [1, BLOCK - 1, BLOCK + 1])
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "bias, masks, norm"])
def test_ragged_rows(rows: int, extras: bool) -> None:
    Case(rows, 3, extras=extras).same()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 49, 129])
def test_any_number_of_sources(count: int) -> None:
    Case(2, count, extras=count > 1).same()


@pytest.mark.parametrize("reads", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True], ids=["per source", "shared"])
def test_several_queries(reads: int, shared: bool) -> None:
    Case(3, 3, reads, shared, extras=True).same()


@pytest.mark.parametrize(
    "dtype, bounds", [(torch.float32, (1e-6, 2e-6)), (torch.bfloat16, (5e-3, 8e-3))], ids=str
)
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "bias, masks, norm"])
def test_narrow_inputs(dtype: torch.dtype, bounds: tuple[float, float], extras: bool) -> None:
    """Against float64 on the same, already rounded inputs: the output, and the gradients."""
    case = Case(BLOCK + 1, 5, 2, extras=extras, dtype=dtype)
    ours, exact = case.run("triton"), case.run("reference", torch.float64)
    found = [rms_error(actual, expected) for actual, expected in zip(ours, exact, strict=True)]
    assert found[0] <= bounds[0]
    assert max(found[1:]) <= bounds[1]


def test_the_same_bits_twice() -> None:
    case = Case(2 * BLOCK + 1, 3, 2, extras=True, dtype=torch.float32)
    assert all(map(torch.equal, case.run("triton"), case.run("triton")))


def test_numerical_gradients() -> None:
    """Of the kernels themselves, along random directions."""
    case = Case(3, 2, 1, extras=True)
    inputs = [x.requires_grad_() for x in case.inputs]

    def call(one: Tensor, other: Tensor, query: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
        options = case.options | {"norm_gain": gain, "backend": "triton"}
        return depth_read([one, other], query, bias, **options)

    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


def test_extreme_logits_and_absent_sources() -> None:
    sources = [normal(3, WIDTH, seed=j) for j in range(3)]
    query, mask = 1e4 * normal(WIDTH, seed=5), torch.tensor([True, False, False])
    masks = [mask, None, mask]
    ours, expected = (
        depth_read(sources, query, masks=masks, backend=backend)
        for backend in ("triton", "reference")
    )
    assert error(ours, expected) <= SAME


@pytest.mark.parametrize("extras", [False, True], ids=["plain", "bias, masks, norm"])
def test_registration(extras: bool) -> None:
    sources = [normal(2, WIDTH, seed=j).requires_grad_() for j in range(2)]
    query = normal(1, 2, WIDTH, seed=5).requires_grad_()
    bias = gain = present = norm_eps = None
    if extras:
        bias, gain = normal(1, 2).requires_grad_(), normal(WIDTH).requires_grad_()
        present, norm_eps = torch.tensor([[True, True], [True, False]]), 1e-6
    found = torch.library.opcheck(_op, (sources, query, bias, present, gain, 2.0, 1e-6, norm_eps))
    assert set(found.values()) == {"SUCCESS"}
