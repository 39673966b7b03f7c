"""MUDDFormer's weighted sums: the formula, the interpreted kernels, registration, wrong inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import dense_aggregate
from lrt_kernels.dense_aggregate import _op
from lrt_kernels.gpu.launch import rows_per_program
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error, rms_error

WIDTH = 6
#: Rows of one program with 4 ways at this width.
BLOCK = rows_per_program(4 * 8)


def inputs(
    rows: int, count: int, ways: int = 4, dtype: torch.dtype = torch.float64, static: bool = False
) -> list[Tensor]:
    """Sources ``(rows, WIDTH)``, then weights ``(rows or 1, ways, count)``, float32 or wider."""
    wide = torch.promote_types(dtype, torch.float32)
    sources = [normal(rows, WIDTH, seed=j, dtype=dtype) for j in range(count)]
    return [*sources, normal(1 if static else rows, ways, count, seed=100, dtype=wide)]


def call(backend: str):
    def stacked(*x: Tensor) -> Tensor:
        return torch.stack(dense_aggregate(x[-1], list(x[:-1]), backend))

    return stacked


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_formula(count: int, shape: tuple[int, ...]) -> None:
    sources = [normal(*shape, WIDTH, seed=j) for j in range(count)]
    weights = normal(*shape, 4, count, seed=100)
    expected = torch.einsum("...ws,s...d->w...d", weights, torch.stack(sources))
    assert error(torch.stack(dense_aggregate(weights, sources)), expected) <= SAME


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=interpreted)])
def test_one_set_of_weights_for_all_rows(backend: str) -> None:
    sources = [normal(2, 3, WIDTH, seed=j) for j in range(3)]
    for lead in ((1, 1), (2, 1), (1, 3)):
        weights = normal(*lead, 4, 3, seed=100)
        inputs = [*sources, weights]
        got = value_and_gradients(call(backend), inputs)
        whole = value_and_gradients(
            lambda *x: call("reference")(*x[:-1], x[-1].expand(2, 3, 4, 3)), inputs
        )
        assert all(error(a, e) <= SAME for a, e in zip(got, whole, strict=True))


def test_sums_are_rounded_once() -> None:
    narrow = inputs(5, 7, dtype=torch.bfloat16)
    wide = [x.float() for x in narrow]
    out = call("reference")(*narrow)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, call("reference")(*wide).bfloat16())


@interpreted
@pytest.mark.parametrize("rows", [1, BLOCK - 1, BLOCK + 1])
@pytest.mark.parametrize("ways, count", [(4, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("static", [False, True], ids=["per row", "static"])
def test_kernels(rows: int, ways: int, count: int, static: bool) -> None:
    x = inputs(rows, count, ways, static=static)
    both = value_and_gradients(call("triton"), x), value_and_gradients(call("reference"), x)
    assert all(error(actual, expected) <= SAME for actual, expected in zip(*both, strict=True))


@interpreted
def test_many_sources_and_ways() -> None:
    x = inputs(1, 33, 5)
    both = value_and_gradients(call("triton"), x), value_and_gradients(call("reference"), x)
    assert all(error(actual, expected) <= SAME for actual, expected in zip(*both, strict=True))


@interpreted
@pytest.mark.parametrize(
    "dtype, bounds", [(torch.float32, (1e-6, 2e-6)), (torch.bfloat16, (5e-3, 8e-3))], ids=str
)
@pytest.mark.parametrize("static", [False, True], ids=["per row", "static"])
def test_narrow_inputs(dtype: torch.dtype, bounds: tuple[float, float], static: bool) -> None:
    """Against float64 on the same, already rounded inputs: the sums, and the gradients."""
    x = inputs(BLOCK + 1, 5, dtype=dtype, static=static)
    ours = value_and_gradients(call("triton"), x)
    exact = value_and_gradients(call("reference"), x, torch.float64)
    found = [rms_error(actual, expected) for actual, expected in zip(ours, exact, strict=True)]
    assert found[0] <= bounds[0]
    assert max(found[1:]) <= bounds[1]
    again = value_and_gradients(call("triton"), x)
    assert all(map(torch.equal, ours, again))


@interpreted
def test_some_sums_without_a_gradient() -> None:
    x = [y.requires_grad_() for y in inputs(3, 2)]
    for backend in ("triton", "reference"):
        sums = dense_aggregate(x[-1], x[:-1], backend)
        found = torch.autograd.grad(sums[1].square().sum(), x)
        if backend == "triton":
            ours = found
    assert all(error(a, e) <= SAME for a, e in zip(ours, found, strict=True))


@interpreted
@pytest.mark.parametrize("static", [False, True], ids=["per row", "static"])
def test_numerical_gradients(static: bool) -> None:
    """Of the kernels themselves, along random directions."""
    x = [y.requires_grad_() for y in inputs(3, 2, static=static)]
    assert torch.autograd.gradcheck(call("triton"), x, fast_mode=True)


@interpreted
def test_registration() -> None:
    *sources, weights = (y.requires_grad_() for y in inputs(2, 3))
    found = torch.library.opcheck(_op, (weights, sources))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["auto", pytest.param("triton", marks=interpreted)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_one_graph(backend: str) -> None:
    x = inputs(4, 3)
    compiled = torch.compile(call(backend), fullgraph=True, backend="aot_eager")
    both = value_and_gradients(compiled, x), value_and_gradients(call(backend), x)
    assert all(error(actual, expected) <= SAME for actual, expected in zip(*both, strict=True))


SOURCES = [normal(2, 4, seed=j) for j in range(3)]
WRONG = {
    "sources is empty": {"sources": []},
    r"sources\[1\] has shape \(2, 5\), not \(2, 4\)": {"sources": [SOURCES[0], normal(2, 5)]},
    r"sources\[1\] is torch.float32": {"sources": [SOURCES[0], SOURCES[1].float()]},
    r"sources\[0\] is not contiguous": {"sources": [normal(4, 2).mT]},
    r"weights has shape \(2, 4, 2\), not \(2, 4, 3\)": {"weights": normal(2, 4, 2)},
    r"weights has shape \(3, 4, 3\), not \(2, 4, 3\)": {"weights": normal(3, 4, 3)},
    r"weights has shape \(4, 3\): give \(2,\), ways, 3": {"weights": normal(4, 3)},
    r"weights has shape \(2, 0, 3\): give": {"weights": normal(2, 0, 3)},
    "weights is torch.int64: give one of": {"weights": torch.ones(2, 4, 3).long()},
    "weights is on meta": {"weights": normal(2, 4, 3).to("meta")},
    "backend='cuda': give auto, reference or triton": {"backend": "cuda"},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
def test_wrong_inputs_are_named(message: str) -> None:
    known = {"weights": normal(2, 4, 3), "sources": SOURCES}
    with pytest.raises(ValueError, match=message):
        dense_aggregate(**known | WRONG[message])
