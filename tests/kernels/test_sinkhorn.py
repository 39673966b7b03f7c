"""Sinkhorn-Knopp: published orders, exact gradients, how far from doubly stochastic it ends."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels import sinkhorn
from lrt_kernels.sinkhorn import _op
from tests.kernels.interpreter import interpreted, value_and_gradients
from tests.support.compare import SAME, error, rms_error
from tests.support.golden import golden

VARIANTS = golden("sinkhorn_variants")
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
FAR = 2e-5
AXES = {"source": -2, "destination": -1}
BACKENDS = pytest.mark.parametrize(
    "backend", ["reference", pytest.param("triton", marks=interpreted)]
)


def run(dtype: torch.dtype = torch.float64, **options) -> tuple[Tensor, Tensor]:
    """The file's logits, as [source, destination], and the gradient of sum(out * cotangent)."""
    logits = VARIANTS["logits"].to(dtype).clone().requires_grad_()
    out = sinkhorn(logits, **options)
    (out * VARIANTS["cotangent"].to(dtype)).sum().backward()
    return out.detach(), logits.grad


def random(std: float, count: int = 512) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, 4, generator=g, dtype=torch.float64) * std


@pytest.mark.parametrize("iterations", [1, 5, 20])
@pytest.mark.parametrize("eps, name", [(1e-6, "eps"), (0.0, "eps0")], ids=str)
@BACKENDS
def test_deepseek_and_paper(iterations: int, eps: float, name: str, backend: str) -> None:
    """Both normalise over destinations first; the paper, column first on [dst, src], has no eps."""
    out, gradient = run(iterations=iterations, eps=eps, backend=backend)
    assert_close(out, VARIANTS[f"out_tk_{name}_i{iterations}"], **CLOSE)
    assert_close(gradient, VARIANTS[f"grad_tk_{name}_i{iterations}"], **CLOSE)


@pytest.mark.parametrize("iterations", [1, 20])
@BACKENDS
def test_mhc_lite_authors(iterations: int, backend: str) -> None:
    out, gradient = run(iterations=iterations, eps=0.0, exact="destination", backend=backend)
    assert_close(out, VARIANTS[f"out_colrow_logdomain_i{iterations}"], **CLOSE)
    assert_close(gradient, VARIANTS[f"grad_colrow_logdomain_i{iterations}"], **CLOSE)


def test_float32() -> None:
    out, gradient = run(torch.float32)
    assert rms_error(out, VARIANTS["out_tk_eps_i20_fp32"]) <= FAR
    assert rms_error(gradient, VARIANTS["grad_tk_eps_i20_fp32"]) <= FAR


def test_liger_transposed() -> None:
    """Liger runs DeepSeek's arithmetic on [destination, source]: the other axis ends exact."""
    logits = VARIANTS["logits"].float().clone().requires_grad_()
    out = sinkhorn(logits.mT, exact="destination").mT
    (out * VARIANTS["cotangent"].float()).sum().backward()
    assert rms_error(out, VARIANTS["out_liger_i20_fp32"]) <= FAR
    assert rms_error(logits.grad, VARIANTS["grad_liger_i20_fp32"]) <= FAR


@pytest.mark.parametrize("peer", ["lucidrains_exp_i20_fp32", "lucidrains_log_i20_fp32"])
def test_peers_in_the_other_order_differ(peer: str) -> None:
    """By percents where 20 iterations do not converge, and by their order alone."""
    hard = slice(5, None)
    out, gradient = run()
    assert rms_error(out[hard], VARIANTS[f"out_{peer}"][hard]) > 1e-2
    assert rms_error(gradient[hard], VARIANTS[f"grad_{peer}"][hard]) > 1e-2
    out, gradient = run(torch.float32, eps=0.0, exact="destination")
    assert rms_error(out, VARIANTS[f"out_{peer}"]) <= FAR
    assert rms_error(gradient, VARIANTS[f"grad_{peer}"]) <= FAR


def test_a_peer_at_low_temperature_differs() -> None:
    out, gradient = run(iterations=10)
    name = "tokenbender_i10_tau005_first"
    assert rms_error(out[0], VARIANTS[f"out_{name}"]) > 0.1
    assert rms_error(gradient[0], VARIANTS[f"grad_{name}"]) > 0.1


@pytest.mark.parametrize("eps", [1e-6, 0.0, 1e-2])
@pytest.mark.parametrize("exact", AXES)
@pytest.mark.parametrize("std", [1.0, 4.0, 12.0])
def test_the_gradient_is_exact(std: float, exact: str, eps: float) -> None:
    logits = random(std, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 20, eps, exact), logits)


@pytest.mark.parametrize("exact", AXES)
@pytest.mark.parametrize(
    "std, least, most", [(1, 0, 1e-4), (2, 5e-3, 0.05), (4, 0.03, 0.1), (8, 0.05, 0.3)]
)
def test_how_doubly_stochastic_it_is(std: float, least: float, most: float, exact: str) -> None:
    """The axis normalised last is exact; the other one is off, by percents for large logits."""
    out = sinkhorn(random(std), eps=0.0, exact=exact)
    other = "destination" if exact == "source" else "source"
    assert (out.sum(AXES[exact]) - 1).abs().max() <= 1e-12
    assert least <= (out.sum(AXES[other]) - 1).abs().max() <= most
    # eps costs the exact axis as much as it is large.
    guarded = sinkhorn(random(std), exact=exact)
    assert (guarded.sum(AXES[exact]) - 1).abs().max() <= 1.1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_it_is_computed_wide(dtype: torch.dtype) -> None:
    logits = random(1.0, 8).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sinkhorn(logits)
    wide = torch.promote_types(dtype, torch.float32)
    assert out.dtype == wide
    assert (out.sum(-2) - 1).abs().max() <= 2e-6
    out.sum().backward()
    assert logits.grad.dtype == dtype


@BACKENDS
def test_extreme_logits_stay_finite(backend: str) -> None:
    """A destination that no source wants: eps keeps the division from 0 / 0."""
    logits = torch.zeros(1, 4, 4)
    logits[..., 0] = -1e4
    logits.requires_grad_()
    out = sinkhorn(logits, backend=backend)
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(logits.grad).all()


def test_shapes() -> None:
    logits = random(1.0, 6)
    assert_close(sinkhorn(logits.view(2, 3, 4, 4)).view(6, 4, 4), sinkhorn(logits))
    assert_close(sinkhorn(logits[0]), sinkhorn(logits)[0])
    assert sinkhorn(logits[:, :1, :1], eps=0.0).eq(1).all()


@interpreted
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_any_size(n: int) -> None:
    g = torch.Generator().manual_seed(0)
    logits = [torch.randn(2, n, n, generator=g, dtype=torch.float64)]
    for eps in (0.0, 1e-2):
        both = (
            value_and_gradients(
                lambda x, b=backend, eps=eps: sinkhorn(x, 3, eps, backend=b), logits
            )
            for backend in ("triton", "reference")
        )
        for actual, expected in zip(*both, strict=True):
            assert error(actual, expected) <= SAME


@interpreted
@pytest.mark.parametrize("transposed", [False, True])
def test_registration(transposed: bool) -> None:
    logits = random(1.0, 2).requires_grad_()
    found = torch.library.opcheck(_op, (logits, 2, 1e-6, transposed))
    assert set(found.values()) == {"SUCCESS"}


WRONG = {
    r"logits has shape \(4,\): give": {"logits": torch.ones(4)},
    r"logits has shape \(2, 3, 4\): give": {"logits": torch.ones(2, 3, 4)},
    r"logits has shape \(2, 0, 0\): give": {"logits": torch.ones(2, 0, 0)},
    "logits is torch.int64: give one of": {"logits": torch.ones(4, 4).long()},
    "iterations=0: give at least 1": {"iterations": 0},
    "exact='rows': give source or destination": {"exact": "rows"},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    with pytest.raises(ValueError, match=message):
        sinkhorn(**{"logits": torch.ones(4, 4), "backend": backend} | WRONG[message])
