"""The kernels that work row by row, interpreted on the CPU, against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreter import interpreted, tile, value_and_gradients
from tests.kernels.row_cases import CASES, WIDTH
from tests.support.compare import SAME, error, rms_error

each_case = pytest.mark.parametrize("name", CASES)


@interpreted
@each_case
@pytest.mark.parametrize("beside", [None, -1, 1], ids=["one", "block - 1", "block + 1"])
def test_ragged_rows(name: str, beside: int | None) -> None:
    case = CASES[name]
    inputs = case.inputs(1 if beside is None else case.block + beside, WIDTH, torch.float64)
    both = (value_and_gradients(case.on(backend), inputs) for backend in ("triton", "reference"))
    for actual, expected in zip(*both, strict=True):
        assert (actual - expected).abs().max() <= SAME * max(1.0, expected.abs().max())


@interpreted
@each_case
@pytest.mark.parametrize(
    "dtype, bounds", [(torch.float32, (1e-6, 3e-6, 1e-5)), (torch.bfloat16, (5e-3, 8e-3, 2e-2))]
)
def test_narrow_inputs(name: str, dtype: torch.dtype, bounds: tuple[float, ...]) -> None:
    """Against float64 on the same, already rounded inputs: output, gradients, gates' gradients."""
    case = CASES[name]
    inputs = case.inputs(case.block + 1, WIDTH, dtype)
    ours = value_and_gradients(case.on("triton"), inputs)
    exact = value_and_gradients(case.on("reference"), inputs, torch.float64)
    found = [rms_error(actual, expected) for actual, expected in zip(ours, exact, strict=True)]
    allowed = [bounds[0], *(bounds[2 if i in case.gates else 1] for i in range(len(inputs)))]
    assert all(map(float.__le__, found, allowed)), (found, allowed)


@interpreted
@each_case
def test_any_rows_per_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs or more, however many rows each of them has."""
    case = CASES[name]
    inputs = case.inputs(5, WIDTH, torch.float64)
    expected = value_and_gradients(case.on("reference"), inputs)
    for rows in (1, 4):
        tile(monkeypatch, case.op, 8 * rows)
        for actual, wanted in zip(
            value_and_gradients(case.on("triton"), inputs), expected, strict=True
        ):
            assert (actual - wanted).abs().max() <= SAME * max(1.0, wanted.abs().max())


@interpreted
@each_case
def test_the_same_bits_twice(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(2 * case.block + 1, WIDTH, torch.float32)
    twice = (value_and_gradients(case.on("triton"), inputs) for _ in range(2))
    assert all(map(torch.equal, *twice))


@interpreted
@each_case
def test_numerical_gradients(name: str) -> None:
    """Of the kernels themselves, along random directions."""
    case = CASES[name]
    inputs = [x.requires_grad_() for x in case.inputs(2, WIDTH, torch.float64)]
    assert torch.autograd.gradcheck(case.on("triton"), inputs, fast_mode=True)


@each_case
@pytest.mark.parametrize("backend", ["auto", pytest.param("triton", marks=interpreted)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
# Of torch's own tracer, at a reference with a gradient of its own.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
def test_one_graph(name: str, backend: str) -> None:
    """Traced whole, forward and backward; a kernel's operation is not looked into."""
    torch.compiler.reset()
    case = CASES[name]
    inputs = case.inputs(2, WIDTH, torch.float64)
    compiled = torch.compile(case.on(backend), fullgraph=True, backend="aot_eager")
    both = value_and_gradients(compiled, inputs), value_and_gradients(case.on(backend), inputs)
    for actual, expected in zip(*both, strict=True):
        assert error(actual, expected) <= SAME
