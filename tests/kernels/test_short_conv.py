"""The short convolution against torch's own, split, and across documents; the L2 norm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import l2_norm, short_conv
from tests.support.compare import SAME, error

D = 5


def random(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_torch(width: int, length: int) -> None:
    x, weight = random(2, length, D), random(D, width, seed=1)
    padded = F.pad(x.mT, (width - 1, 0))
    expected = F.silu(F.conv1d(padded, weight.unsqueeze(1), groups=D)).mT
    assert error(short_conv(x, weight), expected) <= SAME


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_split_equals_unsplit(cut: int) -> None:
    """Pieces shorter than the kernel, gradients too."""
    x, weight = random(2, 9, D).requires_grad_(), random(D, 4, seed=1).requires_grad_()
    whole = short_conv(x, weight)
    skip = min(3, cut)
    parts = [short_conv(x[:, :cut], weight), short_conv(x[:, cut - skip :], weight, skip)]
    assert error(torch.cat(parts, 1), whole) <= SAME
    cotangent = random(2, 9, D, seed=2)
    expected = torch.autograd.grad((whole * cotangent).sum(), (x, weight))
    actual = torch.autograd.grad((torch.cat(parts, 1) * cotangent).sum(), (x, weight))
    assert all(error(a, e) <= SAME for a, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize("starts", [(1,), (4,), (2, 3, 7)], ids=str)
@pytest.mark.parametrize("skip", [0, 2])
def test_documents_do_not_meet(starts: tuple[int, ...], skip: int) -> None:
    x, weight = random(1, 9, D), random(D, 4, seed=1)
    start = torch.zeros(1, 9, dtype=torch.bool)
    start[:, list(starts)] = True
    bounds = zip((0, *starts), (*starts, 9), strict=True)
    expected = torch.cat([short_conv(x[:, low:high], weight) for low, high in bounds], 1)
    assert error(short_conv(x, weight, skip, start), expected[:, skip:]) <= SAME


def test_l2_norm() -> None:
    x = random(3, 4, D)
    assert error(l2_norm(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()) <= SAME
    assert not l2_norm(torch.zeros(2, D)).any()
    assert l2_norm(x.bfloat16()).dtype == torch.bfloat16
