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

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_rows, check_tensor
from lrt_kernels.precision import no_autocast, wide


def normed_scores(
    x: Tensor,
    weight: Tensor,
    gain: Tensor | None = None,
    eps: float = 1e-6,
    centre: bool = False,
    backend: Backend = "auto",
) -> Tensor:
    """Scores ``(..., K)`` of states ``(..., d)`` by a map ``(K, d)``.

    Args:
        x: ``(..., d)``, each row in one piece; bfloat16, float16, float32 or float64.
        weight: ``(K, d)``.
        gain: ``(d,)`` of the norm; None is ones.
        eps: inside the root.
        centre: subtract each state's mean (LayerNorm) or not (RMSNorm).
        backend: "auto" takes the kernels on a CUDA device and the reference elsewhere. The kernels'
            gradients are the same bits every time, and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    if x.dim() < 1 or not x.shape[-1]:
        raise ValueError(f"x has shape {tuple(x.shape)}: give (..., d), d above 0")
    d = x.shape[-1]
    check_rows(x, "x", tuple(x.shape), x.device)
    if weight.dim() != 2 or not len(weight):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give (K, {d}), K above 0")
    check_tensor(weight, "weight", (len(weight), d), x.device)
    if gain is not None:
        check_tensor(gain, "gain", (d,), x.device)
    with no_autocast(x.device.type):
        dtype = wide(x.dtype)
        weight, gain = weight.to(dtype), None if gain is None else gain.to(dtype)
        scores: Tensor
        if choose("normed_scores", backend, x.device) == "reference":
            scores = _Scores.apply(x.to(dtype).reshape(-1, d), weight, gain, eps, centre)
        else:
            rows = _rows(weight, gain, centre).contiguous()
            scores, *_ = _op(x.contiguous().view(-1, d), rows, float(eps), centre)
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


@torch.library.custom_op("lrt_kernels::normed_scores", mutates_args=())
def _op(x: Tensor, rows: Tensor, eps: float, centre: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Scores ``(N, K)`` of ``(N, d)`` by `_rows`, r ``(N,)`` and c ``(N,)``, empty if not centred.

    Rows and all results are in x's dtype or float32, the wider.
    """
    from lrt_kernels.gpu import normed_scores as kernels

    return kernels.forward(x, rows, eps, centre)


@torch.library.custom_op("lrt_kernels::normed_scores_backward", mutates_args=())
def _op_backward(
    grad: Tensor, x: Tensor, rows: Tensor, scores: Tensor, inverse: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and rows."""
    from lrt_kernels.gpu import normed_scores as kernels

    return kernels.backward(grad, x, rows, (scores, inverse, mean))


@_op.register_fake
def _(x, rows, eps, centre):  # type: ignore[no-untyped-def]
    n = x.shape[0]
    return rows.new_empty(n, len(rows)), rows.new_empty(n), rows.new_empty(n if centre else 0)


@_op_backward.register_fake
def _(grad, x, rows, scores, inverse, mean):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), torch.empty_like(rows)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, rows, _, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(x, rows, *output)


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return *_op_backward(grad.contiguous(), *ctx.saved_tensors), None, None


_op.register_autograd(_differentiate, setup_context=_save)


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
