"""Score, read and write of n streams against their equations, in every width of number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels import stream_read, stream_score, stream_write

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
