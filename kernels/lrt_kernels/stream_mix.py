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

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_rows, check_tensor
from lrt_kernels.normed_scores import normed_scores
from lrt_kernels.precision import no_autocast, wide


def stream_score(
    streams: Tensor, weight: Tensor, eps: float = 1e-6, backend: Backend = "auto"
) -> Tensor:
    """Scores ``(..., K)`` of streams by a map, float32 or wider; by `normed_scores`.

    Args:
        streams: ``(..., n, d)``, each row in one piece; bfloat16, float16, float32 or float64.
        weight: ``(K, n d)``.
        eps: inside the root mean square.
        backend: as of `stream_write`.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(streams)
    return normed_scores(streams.flatten(-2), weight, None, eps, backend=backend)


def stream_read(streams: Tensor, read: Tensor, backend: Backend = "auto") -> Tensor:
    """One mixture of the streams, ``(..., d)`` in their dtype.

    Args:
        streams: ``(..., n, d)``, each row in one piece; bfloat16, float16, float32 or float64.
        read: ``(..., n)``.
        backend: as of `stream_write`.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(streams)
    *lead, n, d = streams.shape
    check_tensor(read, "read", (*lead, n), streams.device)
    dtype = wide(streams.dtype)
    mixed: Tensor
    if choose("stream_mix", backend, streams.device) == "triton":
        carry = read.to(dtype).reshape(-1, n, 1)
        mixed = _mix(streams.contiguous().view(-1, n, d), carry, None, None)
        return mixed.view(*lead, d)
    with no_autocast(streams.device.type):
        mixed = _Read.apply(streams.to(dtype).reshape(-1, n, d), read.to(dtype).reshape(-1, n))
    return mixed.view(*lead, d).to(streams.dtype)


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


def stream_write(
    streams: Tensor, carry: Tensor, write: Tensor, y: Tensor, backend: Backend = "auto"
) -> Tensor:
    """The next streams ``(..., n, d)``, in the streams' dtype.

    Args:
        streams: ``(..., n, d)``, each row in one piece; bfloat16, float16, float32 or float64.
        carry: ``(..., n, n)``, axes source and destination.
        write: ``(..., n)``, how much of y each destination takes.
        y: the unit's output ``(..., d)``, each row in one piece.
        backend: "auto" takes the kernels on a CUDA device and the reference elsewhere. The kernels'
            gradients are the same bits every time, and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(streams)
    *lead, n, d = streams.shape
    check_tensor(carry, "carry", (*lead, n, n), streams.device)
    check_tensor(write, "write", (*lead, n), streams.device)
    check_rows(y, "y", (*lead, d), streams.device)
    dtype = wide(streams.dtype)
    carry, write = carry.to(dtype).reshape(-1, n, n), write.to(dtype).reshape(-1, n)
    mixed: Tensor
    if choose("stream_mix", backend, streams.device) == "triton":
        flat = streams.contiguous().view(-1, n, d)
        mixed = _mix(flat, carry, write, y.contiguous().view(-1, d))
        return mixed.view(streams.shape)
    with no_autocast(streams.device.type):
        mixed = _Write.apply(
            streams.to(dtype).reshape(-1, n, d), carry, write, y.to(dtype).reshape(-1, d)
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


def _check(streams: Tensor) -> None:
    if streams.dim() < 2 or 0 in streams.shape[-2:]:
        raise ValueError(
            f"streams has shape {tuple(streams.shape)}: give (..., n, d), n and d above 0"
        )
    check_rows(streams, "streams", tuple(streams.shape), streams.device)


@torch.library.custom_op("lrt_kernels::stream_mix", mutates_args=())
def _mix(streams: Tensor, carry: Tensor, write: Tensor | None, y: Tensor | None) -> Tensor:
    """R mixtures ``(N, R, d)`` of streams ``(N, S, d)``, and of y ``(N, d)`` where it is given.

    Carry ``(N, S, R)`` and write ``(N, R)`` may have any strides.
    """
    from lrt_kernels.gpu import stream_mix as kernels

    return kernels.forward(streams, carry, write, y)


@torch.library.custom_op("lrt_kernels::stream_mix_backward", mutates_args=())
def _mix_backward(
    grad: Tensor, streams: Tensor, carry: Tensor, write: Tensor | None, y: Tensor | None
) -> list[Tensor]:
    """Gradients of streams, carry, write and y, empty where there is none."""
    from lrt_kernels.gpu import stream_mix as kernels

    return kernels.backward(grad, streams, carry, write, y)


@_mix.register_fake
def _(streams, carry, write, y):  # type: ignore[no-untyped-def]
    n, _, d = streams.shape
    return streams.new_empty(n, carry.shape[2], d)


@_mix_backward.register_fake
def _(grad, *inputs):  # type: ignore[no-untyped-def]
    return [grad.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    streams, carry, write, y = ctx.saved_tensors
    d_streams, d_carry, *unit = _mix_backward(grad.contiguous(), streams, carry, write, y)
    return (d_streams, d_carry, *(unit if y is not None else (None, None)))


_mix.register_autograd(_differentiate, setup_context=_save)
