"""The kernels that assemble a source's gradient, interpreted, against plain autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import read_scored, score_source
from lrt_kernels.backend import Backend
from lrt_kernels.gpu.depth_pull import BLOCK_D, BLOCK_N, BLOCK_R
from lrt_kernels.gpu.launch import rows_per_program
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.kernels.test_depth_pull import WIDTH, Stack, kept, same
from tests.support.compare import SAME, rms_error

pytestmark = interpreted

#: Rows of one program at this width.
BLOCK = rows_per_program(8)


class Case:
    """Sources, all of whose readers read all of them."""

    def __init__(
        self,
        rows: int,
        readers: int = 2,
        width: int = WIDTH,
        biased: bool = True,
        masked: bool = True,
        dtype: torch.dtype = torch.float64,
        count: int = 2,
    ) -> None:
        self.count = count
        wide = torch.promote_types(dtype, torch.float32)
        self.readers = readers
        self.inputs = [normal(rows, width, seed=j, dtype=dtype) for j in range(count)]
        self.inputs.append(normal(count, readers, width, seed=20, dtype=wide))
        if biased:
            self.inputs.append(normal(count, readers, seed=30, dtype=wide))
        self.masks: list[Tensor | None] | None = None
        if masked:
            self.masks = [None, *(normal(rows, seed=39 + j) > -0.5 for j in range(1, count))]

    def to(self, device: str) -> None:
        self.inputs = [x.to(device) for x in self.inputs]
        self.masks = self.masks and [None if x is None else x.to(device) for x in self.masks]

    def run(self, backend: Backend, pull: bool, dtype: torch.dtype | None = None) -> list[Tensor]:
        def call(*x: Tensor) -> Tensor:
            values, (query, *rest) = x[: self.count], x[self.count :]
            biases = rest[0].unbind() if rest else [None] * self.count
            sources = [
                score_source(value, own, bias, 1.5, 1e-3, 1, backend, pull)
                for value, own, bias in zip(values, query.unbind(), biases, strict=True)
            ]
            readers = [[r] * self.count for r in range(self.readers)]
            return torch.stack([read_scored(sources, r, self.masks) for r in readers])

        return value_and_gradients(call, self.inputs, dtype)

    def same(self) -> None:
        same(self.run("triton", True), self.run("reference", False), SAME)


@pytest.mark.parametrize("rows", [1, BLOCK - 1, BLOCK + 1, BLOCK_N + 1])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("masked", [False, True], ids=["all present", "masked"])
def test_ragged_rows(rows: int, biased: bool, masked: bool) -> None:
    Case(rows, biased=biased, masked=masked).same()


def test_more_readers_and_features_than_a_tile_has() -> None:
    Case(3, BLOCK_R + 1).same()
    Case(3, 2, BLOCK_D + 1).same()


@pytest.mark.parametrize(
    "dtype, bounds",
    [(torch.float32, (1e-6, 2e-6, 2e-6)), (torch.bfloat16, (5e-3, 8e-3, 2e-2))],
    ids=str,
)
def test_narrow_inputs(dtype: torch.dtype, bounds: tuple[float, float, float]) -> None:
    """Reads, sources' gradients and those of queries and biases, against float64.

    The interpreter cuts the last bits off a bfloat16 where a card rounds them.
    """
    case = Case(BLOCK + 1, dtype=dtype, count=5)
    ours, exact = case.run("triton", True), case.run("reference", False, torch.float64)
    found = [rms_error(actual, expected) for actual, expected in zip(ours, exact, strict=True)]
    assert found[0] <= bounds[0]
    assert max(found[1:6]) <= bounds[1]
    assert max(found[6:]) <= bounds[2]


def test_the_same_bits_twice() -> None:
    case = Case(2 * BLOCK_N + 1, 3, dtype=torch.float32)
    assert all(map(torch.equal, case.run("triton", True), case.run("triton", True)))


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_a_stack_of_readers(biased: bool) -> None:
    """As the kernels read, so they pull, through sources of sources."""
    ours = Stack(biased=biased, backend="triton")
    same(ours.gradients(True), Stack(biased=biased).gradients(False), 1e-12)


def test_a_source_narrower_than_the_reads() -> None:
    """An embedding that autocast leaves wide is read beside it."""
    inputs = [
        normal(3, WIDTH, dtype=torch.float32),
        normal(3, WIDTH, seed=1, dtype=torch.bfloat16),
        normal(2, WIDTH, seed=2, dtype=torch.float32),
    ]

    def call(backend: Backend, pull: bool):
        def reads(*x: Tensor) -> Tensor:
            sources = [score_source(y, x[2], None, backend=backend, pull=pull) for y in x[:2]]
            return torch.stack([read_scored(sources, [r, r]) for r in range(2)])

        return reads

    ours = value_and_gradients(call("triton", True), inputs)
    exact = value_and_gradients(call("reference", False), inputs, torch.float64)
    for actual, expected in zip(ours, exact, strict=True):
        assert rms_error(actual, expected) <= 4e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_more_is_kept(dtype: torch.dtype) -> None:
    stack, totals = Stack(dtype=dtype, backend="triton"), []
    for pull in (True, False):
        with kept() as sizes:
            stack.run(pull, stack.leaves())
        totals.append(sum(sizes.values()))
    assert totals[0] < totals[1]


@pytest.mark.parametrize(
    "name, second, mask",
    [
        (r"sources\[1\]", normal(3, WIDTH), normal(2) > 0),
        (r"masks\[1\]", normal(2, WIDTH), normal(3) > 0),
        (r"masks\[1\]", normal(2, WIDTH), normal(2)),
    ],
)
def test_wrong_arguments_are_named(name: str, second: Tensor, mask: Tensor) -> None:
    query = normal(1, WIDTH)
    sources = [
        score_source(x, query, backend="triton", pull=True) for x in (normal(2, WIDTH), second)
    ]
    with pytest.raises(ValueError, match=f"^{name} "):
        read_scored(sources, [0, 0], [None, mask])


def test_numerical_gradients() -> None:
    stack = Stack(blind=None, backend="triton")
    call = lambda *leaves: stack.run(True, list(leaves))  # noqa: E731
    assert torch.autograd.gradcheck(call, stack.leaves(), fast_mode=True)
