"""Scores of a state over its normed features, and coefficients that a small MLP makes of them.

Sources: Hyper-Connections, arXiv:2409.19606 section 2; MUDDFormer, arXiv:2502.12170 Eq. 6.

For a state x ``(d,)`` with mean c (or 0, for the root mean square alone), the norm's gain g and
weights W ``(K, d)``

    m = W (g (x - c) r),    r = 1 / sqrt(mean((x - c)^2) + eps)

In float32 or wider whatever the state's dtype.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrt_kernels.precision import no_autocast, wide


def normed_scores(
    x: Tensor, weight: Tensor, gain: Tensor | None = None, eps: float = 1e-6, centre: bool = False
) -> Tensor:
    """Scores ``(..., K)`` of states ``(..., d)`` by a map ``(K, d)``.

    Args:
        x: ``(..., d)``.
        weight: ``(K, d)``.
        gain: ``(d,)`` of the norm; None is ones.
        eps: inside the root.
        centre: subtract each state's mean (LayerNorm) or not (RMSNorm).
    """
    with no_autocast(x.device.type):
        dtype = wide(x.dtype)
        flat, weight = x.to(dtype).reshape(-1, x.shape[-1]), weight.to(dtype)
        gain = None if gain is None else gain.to(dtype)
        scores: Tensor = _Scores.apply(flat, weight, gain, eps, centre)
    return scores.view(*x.shape[:-1], -1)


class _Scores(torch.autograd.Function):
    """The norm is folded behind the product. With V = W g, its rows centred where x is,

        m = r (x V^T),    dx = (r dm) V - (x - c) r^2 (dm . m) / d,    dV = (r dm)^T x

    since a product with centred rows is a product with centred states. No normed copy of the states
    and no second copy of the weights is kept.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gain: Tensor | None, eps: float, centre: bool
    ) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
        mean = x.mean(-1, keepdim=True) if centre else None
        if mean is not None:
            square = square - mean.square()
        inverse = torch.rsqrt(square + eps)
        scores = (x @ _rows(weight, gain, centre).mT).mul_(inverse)
        ctx.save_for_backward(x, weight, gain, inverse, scores, mean)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, gain, inverse, scores, mean = ctx.saved_tensors
        shrink = (grad * scores).sum(-1, keepdim=True) * inverse.square() / -x.shape[-1]
        grad = grad * inverse
        dx = x * shrink if mean is None else torch.addcmul(-mean * shrink, x, shrink)
        dx = dx.addmm_(grad, _rows(weight, gain, mean is not None))
        rows = grad.mT @ x
        if mean is not None:
            rows = rows - rows.mean(-1, keepdim=True)
        if gain is None:
            return dx, rows, None, None, None
        return dx, rows * gain, (rows * weight).sum(0), None, None


def _rows(weight: Tensor, gain: Tensor | None, centre: bool) -> Tensor:
    rows = weight if gain is None else weight * gain
    return rows - rows.mean(-1, keepdim=True) if centre else rows


def gelu_mix(scores: Tensor, weight: Tensor, approximate: str = "none") -> Tensor:
    """GELU(scores) W^T, ``(..., K)`` and ``(M, K)`` to ``(..., M)``, in the scores' dtype.

    Args:
        scores: ``(..., K)``, float32 or wider.
        weight: ``(M, K)``.
        approximate: "none" or "tanh", torch's two forms of GELU.
    """
    with no_autocast(scores.device.type):
        flat = scores.reshape(-1, scores.shape[-1])
        mixed: Tensor = _GeluMix.apply(flat, weight.to(scores.dtype), approximate)
    return mixed.view(*scores.shape[:-1], -1)


class _GeluMix(torch.autograd.Function):
    """Keeps the scores alone: K grows with depth, and each number kept makes memory quadratic."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, weight: Tensor, approximate: str) -> Tensor:
        ctx.save_for_backward(scores, weight)
        ctx.approximate = approximate
        return F.linear(F.gelu(scores, approximate=approximate), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        scores, weight = ctx.saved_tensors
        features = F.gelu(scores, approximate=ctx.approximate)
        inner = torch.ops.aten.gelu_backward(grad @ weight, scores, approximate=ctx.approximate)
        return inner, grad.mT @ features, None
