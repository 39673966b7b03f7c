"""The three operations of a connection over n residual streams (arXiv:2512.24880 section 4).

With streams x_s ``(d,)`` and one unit's coefficients, s the source and r the destination:

    score:  m    = RMS(vec x) W^T                         one norm over all n d entries
    read:   u    = sum_s read_s x_s
    write:  x'_r = sum_s carry_sr x_s + write_r y

Everything is computed in float32 or wider and rounded once, to the streams' dtype: a carry that is
rounded itself, say .999 to 1, would add a gain of its own to every unit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrt_kernels.precision import no_autocast, wide


def stream_score(streams: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Scores ``(..., K)`` of streams ``(..., n, d)`` by a map ``(K, n d)``, float32 or wider."""
    with no_autocast(streams.device.type):
        dtype = wide(streams.dtype)
        flat = streams.to(dtype).reshape(-1, weight.shape[-1])
        scores: Tensor = _Score.apply(flat, weight.to(dtype), eps)
    return scores.view(*streams.shape[:-2], -1)


class _Score(torch.autograd.Function):
    """m = (x W^T) rsqrt(mean x^2 + eps): the norm is folded behind the product.

    With r the rsqrt and D the entries of a row,

        dx = (r dm) W - x r^2 (dm . m) / D,    dW = (r dm)^T x

    so no normed or squared copy of the streams is ever made, let alone kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
        inverse = torch.rsqrt(mean + eps)
        scores = (x @ weight.mT).mul_(inverse)
        ctx.save_for_backward(x, weight, inverse, scores)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, inverse, scores = ctx.saved_tensors
        shrink = (grad * scores).sum(-1, keepdim=True) * inverse.square() / -x.shape[-1]
        grad = grad * inverse
        return (x * shrink).addmm_(grad, weight), grad.mT @ x, None


def stream_read(streams: Tensor, read: Tensor) -> Tensor:
    """Mix streams ``(..., n, d)`` by coefficients ``(..., n)`` into ``(..., d)``."""
    n, d = streams.shape[-2:]
    with no_autocast(streams.device.type):
        dtype = wide(streams.dtype)
        mixed: Tensor = _Read.apply(
            streams.to(dtype).reshape(-1, n, d), read.to(dtype).reshape(-1, n)
        )
    return mixed.view(*streams.shape[:-2], d).to(streams.dtype)


class _Read(torch.autograd.Function):
    """u = read X:  dX = read (x) du,  dread = X du, one small matrix product per position."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Tensor) -> Tensor:
        ctx.save_for_backward(x, read)
        return torch.bmm(read.unsqueeze(1), x).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, read = ctx.saved_tensors
        grad = grad.unsqueeze(1)
        return read.unsqueeze(-1) * grad, torch.bmm(grad, x.mT).squeeze(1)


def stream_write(streams: Tensor, carry: Tensor, write: Tensor, y: Tensor) -> Tensor:
    """The next streams ``(..., n, d)``.

    Args:
        streams: ``(..., n, d)``.
        carry: ``(..., n, n)``, axes source and destination.
        write: ``(..., n)``, how much of y each destination takes.
        y: the unit's output ``(..., d)``.
    """
    n, d = streams.shape[-2:]
    with no_autocast(streams.device.type):
        dtype = wide(streams.dtype)
        mixed: Tensor = _Write.apply(
            streams.to(dtype).reshape(-1, n, d),
            carry.to(dtype).reshape(-1, n, n),
            write.to(dtype).reshape(-1, n),
            y.to(dtype).reshape(-1, d),
        )
    return mixed.view(streams.shape).to(streams.dtype)


class _Write(torch.autograd.Function):
    """X' = C^T X + write (x) y, and all four gradients as small matrix products.

    dX = C dX',  dC = X dX'^T,  dwrite = dX' y,  dy = write dX'
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, carry: Tensor, write: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, carry, write, y)
        return torch.bmm(carry.mT, x).addcmul_(write.unsqueeze(-1), y.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, carry, write, y = ctx.saved_tensors
        return (
            torch.bmm(carry, grad),
            torch.bmm(x, grad.mT),
            torch.bmm(y.unsqueeze(1), grad.mT).squeeze(1),
            torch.bmm(write.unsqueeze(1), grad).squeeze(1),
        )
