"""Scores over normed features and the generator's mixture, against their plain forms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import gelu_mix, normed_scores
from tests.support.compare import error

D, K = 6, 3


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 4, D), (K, D), (D,))
    x, weight, gain = (
        torch.randn(s, generator=g, dtype=torch.float64).requires_grad_() for s in shapes
    )
    return x, weight, gain


@pytest.mark.parametrize("centre", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize("gained", [True, False], ids=["gain", "no gain"])
def test_scores_are_a_product_with_the_normed_state(centre: bool, gained: bool) -> None:
    x, weight, gain = inputs()
    norm = F.layer_norm if centre else F.rms_norm
    plain = F.linear(norm(x, (D,), gain if gained else None, eps=1e-3), weight)
    ours = normed_scores(x, weight, gain if gained else None, 1e-3, centre)
    assert error(ours, plain) <= 1e-12
    leaves = (x, weight, gain) if gained else (x, weight)
    cotangent = torch.randn_like(plain)
    for one, two in zip(
        torch.autograd.grad(ours, leaves, cotangent),
        torch.autograd.grad(plain, leaves, cotangent),
        strict=True,
    ):
        assert error(one, two) <= 1e-12


@pytest.mark.parametrize("centre", [True, False], ids=["layer", "rms"])
def test_a_constant_or_zero_state_has_finite_gradients(centre: bool) -> None:
    _, weight, gain = inputs()
    x = torch.stack([torch.zeros(D), torch.full((D,), 3.0)]).double().requires_grad_()
    scores = normed_scores(x, weight, gain, 1e-6, centre)
    assert torch.isfinite(scores).all()
    scores.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_mixture(approximate: str) -> None:
    scores, weight, _ = inputs()
    plain = F.linear(F.gelu(scores, approximate=approximate), weight)
    ours = gelu_mix(scores, weight, approximate)
    assert error(ours, plain) <= 1e-12
    cotangent = torch.randn_like(plain)
    for one, two in zip(
        torch.autograd.grad(ours, (scores, weight), cotangent),
        torch.autograd.grad(plain, (scores, weight), cotangent),
        strict=True,
    ):
        assert error(one, two) <= 1e-12


def test_narrow_states_are_widened() -> None:
    x, weight, gain = (t.detach().float() for t in inputs())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = gelu_mix(normed_scores(x.bfloat16(), weight, gain), weight[:, :K])
    assert mixed.dtype == torch.float32
    assert torch.equal(
        mixed, gelu_mix(normed_scores(x.bfloat16().float(), weight, gain), weight[:, :K])
    )
