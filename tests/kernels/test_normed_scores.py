"""Scores over normed features and the generator's mixture: plain forms, kernels, wrong inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import gelu_mix, normed_scores
from lrt_kernels.normed_scores import _op
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error

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


@interpreted
@pytest.mark.parametrize("count", [K, 40], ids=["one kernel", "two kernels"])
def test_programs_that_own_several_blocks(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And several of each: rows and features that are not multiples of a program's."""
    from lrt_kernels.gpu import normed_scores as kernels

    monkeypatch.setattr(kernels, "PROGRAMS", 4)
    inputs = [normal(130, 70, seed=1), normal(count, 70, seed=2), normal(70, seed=3)]
    ours = value_and_gradients(lambda *x: normed_scores(*x, 1e-3, True, "triton"), inputs)
    plain = value_and_gradients(lambda *x: normed_scores(*x, 1e-3, True, "reference"), inputs)
    for actual, expected in zip(ours, plain, strict=True):
        assert error(actual, expected) <= SAME


@interpreted
@pytest.mark.parametrize("centre", [True, False], ids=["layer", "rms"])
def test_registration(centre: bool) -> None:
    x, rows = normal(2, D).requires_grad_(), normal(K, D, seed=1).requires_grad_()
    assert set(torch.library.opcheck(_op, (x, rows, 1e-6, centre)).values()) == {"SUCCESS"}


X, WEIGHT, GAIN = normal(2, D), normal(K, D), normal(D)
WRONG = {
    r"x has shape \(\): give": {"x": torch.ones(())},
    r"x has shape \(2, 0\): give": {"x": normal(2, 0)},
    "x is not contiguous along its last axis": {"x": normal(D, 2).mT},
    "x is torch.int64: give one of": {"x": X.long()},
    r"weight has shape \(6,\): give \(K, 6\)": {"weight": GAIN},
    r"weight has shape \(0, 6\): give \(K, 6\)": {"weight": normal(0, D)},
    r"weight has shape \(3, 5\), not \(3, 6\)": {"weight": normal(K, 5)},
    "weight is on meta": {"weight": WEIGHT.to("meta")},
    r"gain has shape \(3,\), not \(6,\)": {"gain": normal(K)},
    "gain is torch.int64": {"gain": GAIN.long()},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    given = {"x": X, "weight": WEIGHT, "gain": GAIN, "backend": backend}
    with pytest.raises(ValueError, match=message):
        normed_scores(**given | WRONG[message])
