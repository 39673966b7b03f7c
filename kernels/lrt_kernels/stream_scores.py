"""Scores of every stream by itself, over its normed features (Hyper-Connections, arXiv:2409.19606).

For a stream x ``(d,)`` with mean c (or 0, for the root mean square alone) and weights W ``(K, d)``

    m = W (x - c) r,    r = 1 / sqrt(mean((x - c)^2) + eps)

In float32 or wider whatever the streams' dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrt_kernels.precision import no_autocast, wide


def stream_scores(
    streams: Tensor, weight: Tensor, eps: float = 1e-5, centre: bool = True
) -> Tensor:
    """Scores ``(..., K)`` of streams ``(..., d)`` by a map ``(K, d)``.

    Args:
        streams: ``(..., d)``.
        weight: ``(K, d)``.
        eps: inside the root.
        centre: subtract each stream's mean (LayerNorm) or not (RMSNorm).
    """
    with no_autocast(streams.device.type):
        dtype = wide(streams.dtype)
        weight = weight.to(dtype)
        if centre:
            # A product with centred weights is a product with centred streams.
            weight = weight - weight.mean(-1, keepdim=True)
        flat = streams.to(dtype).reshape(-1, streams.shape[-1])
        scores: Tensor = _Scores.apply(flat, weight, eps, centre)
    return scores.view(*streams.shape[:-1], -1)


class _Scores(torch.autograd.Function):
    """The norm is folded behind the product, with W's rows centred where x is.

        dx = (r dm) W - (x - c) r^2 (dm . m) / d,    dW = (r dm)^T x

    so no normed copy of the streams is ever made, let alone kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, centre: bool) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
        mean = x.mean(-1, keepdim=True) if centre else None
        if mean is not None:
            square = square - mean.square()
        inverse = torch.rsqrt(square + eps)
        scores = (x @ weight.mT).mul_(inverse)
        ctx.save_for_backward(x, weight, inverse, scores, mean)
        return scores

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        x, weight, inverse, scores, mean = ctx.saved_tensors
        shrink = (grad * scores).sum(-1, keepdim=True) * inverse.square() / -x.shape[-1]
        grad = grad * inverse
        dx = x * shrink if mean is None else torch.addcmul(-mean * shrink, x, shrink)
        return dx.addmm_(grad, weight), grad.mT @ x, None, None
