"""Score, read and write of n streams: equations, widths of numbers, registration, wrong inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels import stream_read, stream_score, stream_write
from lrt_kernels.stream_mix import _mix
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error

STREAMS, WIDTH = 3, 5


def random(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


@pytest.fixture(params=[(), (4,), (2, 4)], ids=str)
def parts(request: pytest.FixtureRequest) -> tuple[Tensor, ...]:
    """Streams, carry [source, destination], read, write and y, with any leading axes."""
    lead, n, d = request.param, STREAMS, WIDTH
    shapes = ((*lead, n, d), (*lead, n, n), (*lead, n), (*lead, n), (*lead, d))
    return tuple(random(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))


def test_the_equations(parts: tuple[Tensor, ...]) -> None:
    x, carry, read, write, y = parts
    weight = random(7, STREAMS * WIDTH, seed=9)
    vec = x.flatten(-2)
    normed = vec / torch.sqrt(vec.square().mean(-1, keepdim=True) + 0.1)
    assert_close(stream_score(x, weight, 0.1), normed @ weight.mT)
    assert_close(stream_read(x, read), sum(read[..., s, None] * x[..., s, :] for s in range(3)))
    following = stream_write(x, carry, write, y)
    for r in range(STREAMS):
        arrives = sum(carry[..., s, r, None] * x[..., s, :] for s in range(STREAMS))
        assert_close(following[..., r, :], arrives + write[..., r, None] * y)


def test_the_gradients(parts: tuple[Tensor, ...]) -> None:
    x, carry, read, write, y = parts
    weight = random(7, STREAMS * WIDTH, seed=9).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: stream_score(x, w, 0.1), (x, weight))
    assert torch.autograd.gradcheck(stream_read, (x, read))
    assert torch.autograd.gradcheck(stream_write, (x, carry, write, y))


def test_narrow_streams_are_rounded_once() -> None:
    """A carry of .999 is not a carry of 1: it must not be rounded before it is used."""
    x = random(64, STREAMS, WIDTH).bfloat16()
    carry = (0.999 * torch.eye(STREAMS)).expand(64, -1, -1)
    zero = torch.zeros(64, STREAMS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = stream_score(x, random(7, STREAMS * WIDTH).float())
        following = stream_write(x, carry, zero, torch.zeros(64, WIDTH, dtype=torch.bfloat16))
        read = stream_read(x, carry[..., 0])
    assert scores.dtype == torch.float32
    assert following.dtype == read.dtype == torch.bfloat16
    assert torch.equal(following, (0.999 * x.float()).bfloat16())
    assert torch.equal(read, (0.999 * x[:, 0].float()).bfloat16())


@interpreted
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_any_number_of_streams(n: int) -> None:
    x, read, write, y = normal(2, n, WIDTH), normal(2, n), normal(2, n, seed=1), normal(2, WIDTH)
    carry = normal(2, n, n, seed=2)
    for call, inputs in ((stream_read, (x, read)), (stream_write, (x, carry, write, y))):
        both = (
            value_and_gradients(lambda *z, call=call, b=backend: call(*z, backend=b), inputs)
            for backend in ("triton", "reference")
        )
        for actual, expected in zip(*both, strict=True):
            assert error(actual, expected) <= SAME


@interpreted
def test_one_set_of_coefficients_for_all_positions() -> None:
    """As Hyper-Connections' static form hands them over: expanded, not copied."""
    x, y = normal(2, 3, STREAMS, WIDTH), normal(2, 3, WIDTH, seed=1)
    coefficients = normal(STREAMS, STREAMS, seed=2), normal(STREAMS, seed=3)

    def call(backend: str):
        def following(carry: Tensor, write: Tensor) -> Tensor:
            carry, write = carry.mT.expand(2, 3, -1, -1), write.expand(2, 3, -1)
            return stream_write(x, carry, write, y, backend)

        return following

    both = (value_and_gradients(call(backend), coefficients) for backend in ("triton", "reference"))
    for actual, expected in zip(*both, strict=True):
        assert error(actual, expected) <= SAME


@interpreted
def test_rows_apart() -> None:
    """Some of more streams, whose positions are not next to one another."""
    more, y = normal(4, 5, WIDTH), normal(4, WIDTH, seed=1)
    some, whole = more[:, :STREAMS], more[:, :STREAMS].contiguous()
    carry, write, weight = normal(4, 3, 3), normal(4, 3), normal(7, STREAMS * WIDTH)
    for backend in ("triton", "reference"):
        assert error(stream_read(some, write, backend), stream_read(whole, write)) <= SAME
        found = stream_write(some, carry, write, y, backend)
        assert error(found, stream_write(whole, carry, write, y)) <= SAME
        found = stream_score(some, weight, backend=backend)
        assert error(found, stream_score(whole, weight)) <= SAME


@interpreted
@pytest.mark.parametrize("unit", [False, True], ids=["read", "write"])
def test_registration(unit: bool) -> None:
    leaves = [normal(3, STREAMS, WIDTH), normal(3, STREAMS, STREAMS if unit else 1)]
    leaves += [normal(3, STREAMS), normal(3, WIDTH)] if unit else []
    args = [x.requires_grad_() for x in leaves] + [None] * (0 if unit else 2)
    assert set(torch.library.opcheck(_mix, tuple(args)).values()) == {"SUCCESS"}


X, CARRY, COEFFICIENTS, Y = normal(2, 3, 4), normal(2, 3, 3), normal(2, 3), normal(2, 4)
WRONG = {
    r"streams has shape \(4,\): give": {"streams": normal(4)},
    r"streams has shape \(2, 0, 4\): give": {"streams": normal(2, 0, 4)},
    "streams is not contiguous along its last axis": {"streams": normal(2, 4, 3).mT},
    "streams is torch.int64: give one of": {"streams": X.long()},
    r"carry has shape \(2, 3, 2\), not \(2, 3, 3\)": {"carry": normal(2, 3, 2)},
    "carry is on meta": {"carry": CARRY.to("meta")},
    r"write has shape \(3,\), not \(2, 3\)": {"write": normal(3)},
    r"y has shape \(2, 3, 4\), not \(2, 4\)": {"y": X},
    "y is not contiguous along its last axis": {"y": normal(4, 2).mT},
    "y is torch.int64": {"y": Y.long()},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    given = {"streams": X, "carry": CARRY, "write": COEFFICIENTS, "y": Y, "backend": backend}
    with pytest.raises(ValueError, match=message):
        stream_write(**given | WRONG[message])


def test_wrong_maps_and_reads_are_named() -> None:
    with pytest.raises(ValueError, match=r"weight has shape \(7, 4\), not \(7, 12\)"):
        stream_score(X, normal(7, 4))
    with pytest.raises(ValueError, match=r"streams has shape \(4,\): give"):
        stream_score(normal(4), normal(7, 4))
    with pytest.raises(ValueError, match=r"read has shape \(2, 4\), not \(2, 3\)"):
        stream_read(X, Y)
