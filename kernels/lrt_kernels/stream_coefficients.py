"""Coefficients of a connection over n residual streams, from its scores to read, write and carry.

With one position's scores m, s the source and r the destination, mHC (arXiv:2512.24880 section 4)
has K = n^2 scores of the carry and mHC-lite (arXiv:2601.05732) K = n!, those of the permutations:

    l     = beta + alpha m                       alpha one number each for read, write and carry
    read  = sigmoid(l_read) + eps_read           (n,)
    write = c sigmoid(l_write)                   (n,)
    carry = Sinkhorn(l_carry)                    (n, n), by `lrt_kernels.sinkhorn`, or
            sum_k softmax(l_carry)_k P_k         P_k the permutation matrices

Hyper-Connections (arXiv:2409.19606 section 2) score each stream and adjust learned coefficients,
with f the identity or tanh, and one scale for read and carry:

    read_s   = A_s  + alpha f(m_s,0 + shift_0)
    write_s  = B_s  + beta  f(m_s,1 + shift_1)
    carry_sr = C_sr + alpha f(m_s,2+r + shift_2+r)

Everything is float32 or wider.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_tensor
from lrt_kernels.precision import no_autocast, wide
from lrt_kernels.sinkhorn import Axis, check_options, sinkhorn

#: Numbers of one position's products with matrices, up to which a kernel holds them.
LARGEST = 4096

Three = tuple[Tensor, Tensor, Tensor]


class Sinkhorn(NamedTuple):
    """A carry that is balanced: the options of `lrt_kernels.sinkhorn`."""

    iterations: int = 20
    eps: float = 1e-6
    exact: Axis = "source"


def stream_coefficients(
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    mixing: Sinkhorn | Tensor,
    write_scale: float = 2.0,
    read_eps: float = 0.0,
    backend: Backend = "auto",
) -> Three:
    """Read, write ``(..., n)`` and carry ``(..., source, destination)`` of mHC and mHC-lite.

    Args:
        scores: m ``(..., 2 n + K)``: n of the read, n of the write, K of the carry, for `Sinkhorn`
            row by row of ``(source, destination)``; bfloat16, float16, float32 or float64.
        scale: alpha ``(3,)``.
        bias: beta ``(2 n + K,)``.
        mixing: how K logits become the carry: `Sinkhorn`, or the constants P ``(K, n, n)``.
        write_scale: c.
        read_eps: eps_read.
        backend: "auto" takes the kernels on a CUDA device and the reference elsewhere. The kernels'
            gradients are the same bits every time, and cannot be differentiated again. Matrices
            that are too many for a program take the reference: more than 128 of 5 x 5.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or value.
    """
    if isinstance(mixing, Tensor):
        n, carries = _check_matrices(mixing, scores.device)
    else:
        check_options(mixing.iterations, mixing.exact, "mixing.")
        n = round((bias.numel() + 1) ** 0.5) - 1
        carries = n * n
        if bias.dim() != 1 or n < 1 or bias.numel() != 2 * n + carries:
            raise ValueError(f"bias has shape {tuple(bias.shape)}: give (2 n + n^2,), n above 0")
    sections = (n, n, carries)
    if scores.dim() < 1:
        raise ValueError(f"scores has shape (): give (..., {sum(sections)})")
    lead = tuple(scores.shape[:-1])
    check_tensor(scores, "scores", (*lead, sum(sections)), scores.device)
    check_tensor(scale, "scale", (3,), scores.device)
    check_tensor(bias, "bias", (sum(sections),), scores.device)
    dtype = wide(scores.dtype)
    scores = scores.to(dtype)
    if choose("stream_coefficients", backend, scores.device) == "reference" or _large(mixing):
        return _reference(scores, scale, bias, mixing, sections, write_scale, read_eps)
    flat = scores.contiguous().view(-1, sum(sections))
    given = (flat, scale.to(dtype).contiguous(), bias.to(dtype).contiguous())
    matrices, balance = None, Sinkhorn()
    if isinstance(mixing, Tensor):
        matrices = mixing.to(dtype).contiguous()
    else:
        balance = mixing
    options = (balance.iterations, float(balance.eps), balance.exact == "destination")
    read, write, carry = _op(*given, matrices, *options, float(write_scale), float(read_eps))
    return read.view(*lead, n), write.view(*lead, n), carry.view(*lead, n, n)


def _check_matrices(matrices: Tensor, device: torch.device) -> tuple[int, int]:
    """n and K of matrices ``(K, n, n)``."""
    shape = tuple(matrices.shape)
    if len(shape) != 3 or shape[1] != shape[2] or 0 in shape:
        raise ValueError(f"mixing has shape {shape}: give (K, n, n), K and n above 0")
    check_tensor(matrices, "mixing", shape, device)
    if matrices.requires_grad:
        raise ValueError("mixing requires a gradient: its matrices are constants")
    return shape[1], shape[0]


def _large(mixing: Sinkhorn | Tensor) -> bool:
    """Whether a program cannot hold one position's products, padded to powers of two."""
    if not isinstance(mixing, Tensor):
        return False
    k, n, _ = mixing.shape
    return (1 << (k - 1).bit_length()) * (1 << (n * n - 1).bit_length()) > LARGEST


def _reference(
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    mixing: Sinkhorn | Tensor,
    sections: tuple[int, int, int],
    write_scale: float,
    read_eps: float,
) -> Three:
    n = sections[0]
    alpha = torch.cat([a.expand(k) for a, k in zip(scale, sections, strict=True)])
    logits = torch.addcmul(bias.to(scores.dtype), scores, alpha.to(scores.dtype))
    read, write, carry = logits.split(sections, dim=-1)
    read = torch.sigmoid(read)
    if read_eps:
        read = read + read_eps
    write = write_scale * torch.sigmoid(write)
    if not isinstance(mixing, Tensor):
        return read, write, sinkhorn(carry.unflatten(-1, (n, n)), *mixing, "reference")
    weight = torch.softmax(carry, dim=-1)
    matrices = mixing.to(weight.dtype).flatten(1)
    with no_autocast(weight.device.type):
        return read, write, (weight @ matrices).unflatten(-1, (n, n))


@torch.library.custom_op("lrt_kernels::stream_coefficients", mutates_args=())
def _op(
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    matrices: Tensor | None,
    iterations: int,
    eps: float,
    transposed: bool,
    write_scale: float,
    read_eps: float,
) -> Three:
    """Read, write ``(N, n)`` and carry ``(N, n, n)`` of scores ``(N, 2 n + K)``.

    Without matrices the carry is Sinkhorn's, of the options that `lrt_kernels.sinkhorn._op` has.
    """
    from lrt_kernels.gpu import stream_coefficients as kernels

    balance = (iterations, eps, transposed)
    return kernels.forward(scores, scale, bias, matrices, balance, write_scale, read_eps)


@torch.library.custom_op("lrt_kernels::stream_coefficients_backward", mutates_args=())
def _op_backward(
    grad_read: Tensor,
    grad_write: Tensor,
    grad_carry: Tensor,
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    matrices: Tensor | None,
    iterations: int,
    eps: float,
    transposed: bool,
    write_scale: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of the scores, and of bias and scale one behind the other."""
    from lrt_kernels.gpu import stream_coefficients as kernels

    grads, balance = (grad_read, grad_write, grad_carry), (iterations, eps, transposed)
    return kernels.backward(grads, scores, scale, bias, matrices, balance, write_scale)


@_op.register_fake
def _(scores, scale, bias, matrices, *options):  # type: ignore[no-untyped-def]
    rows, count = scores.shape
    n = round((count + 1) ** 0.5) - 1 if matrices is None else matrices.shape[1]
    return scores.new_empty(rows, n), scores.new_empty(rows, n), scores.new_empty(rows, n, n)


@_op_backward.register_fake
def _(read, write, carry, scores, scale, bias, *options):  # type: ignore[no-untyped-def]
    return torch.empty_like(scores), bias.new_empty(bias.numel() + 3)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Three) -> None:
    scores, scale, bias, matrices, *ctx.options, _ = inputs
    ctx.save_for_backward(scores, scale, bias, matrices)


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    grads = tuple(grad.contiguous() for grad in grads)
    d_scores, d_parameters = _op_backward(*grads, *ctx.saved_tensors, *ctx.options)
    return d_scores, d_parameters[-3:], d_parameters[:-3], *6 * (None,)


_op.register_autograd(_differentiate, setup_context=_save)


def stream_adjustments(
    scores: Tensor,
    read: Tensor,
    write: Tensor,
    carry: Tensor,
    mix_scale: Tensor,
    write_scale: Tensor,
    shift: Tensor | None = None,
    tanh: bool = True,
    backend: Backend = "auto",
) -> Three:
    """Read, write ``(..., n)`` and carry ``(..., source, destination)`` of Hyper-Connections.

    Args:
        scores: m ``(..., n, 2 + n)``: of each stream those of the read, the write and each
            destination; bfloat16, float16, float32 or float64.
        read, write: A and B ``(n,)``.
        carry: C ``(n, n)``, axes source and destination.
        mix_scale, write_scale: alpha and beta ``(1,)``.
        shift: ``(2 + n,)``, added to every stream's scores; None is zero.
        tanh: whether f is tanh.
        backend: as of `stream_coefficients`.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype or device.
    """
    if scores.dim() < 2 or not scores.shape[-2]:
        raise ValueError(f"scores has shape {tuple(scores.shape)}: give (..., n, 2 + n), n above 0")
    *lead, n, _ = scores.shape
    check_tensor(scores, "scores", (*lead, n, 2 + n), scores.device)
    check_tensor(read, "read", (n,), scores.device)
    check_tensor(write, "write", (n,), scores.device)
    check_tensor(carry, "carry", (n, n), scores.device)
    check_tensor(mix_scale, "mix_scale", (1,), scores.device)
    check_tensor(write_scale, "write_scale", (1,), scores.device)
    if shift is not None:
        check_tensor(shift, "shift", (2 + n,), scores.device)
    dtype = wide(scores.dtype)
    scores, shift = scores.to(dtype), None if shift is None else shift.to(dtype).contiguous()
    learned = [x.to(dtype) for x in (read, write, carry, mix_scale, write_scale)]
    if choose("stream_coefficients", backend, scores.device) == "reference":
        if shift is not None:
            scores = scores + shift
        if tanh:
            scores = torch.tanh(scores)
        on_read, on_write, on_carry = scores.split([1, 1, n], dim=-1)
        read, write, carry, mix_scale, write_scale = learned
        return (
            torch.addcmul(read, on_read.squeeze(-1), mix_scale),
            torch.addcmul(write, on_write.squeeze(-1), write_scale),
            torch.addcmul(carry, on_carry, mix_scale),
        )
    flat = scores.contiguous().view(-1, n, 2 + n)
    read, write, carry = _adjust(flat, *(x.contiguous() for x in learned), shift, tanh)
    return read.view(*lead, n), write.view(*lead, n), carry.view(*lead, n, n)


@torch.library.custom_op("lrt_kernels::stream_adjustments", mutates_args=())
def _adjust(
    scores: Tensor,
    read: Tensor,
    write: Tensor,
    carry: Tensor,
    mix_scale: Tensor,
    write_scale: Tensor,
    shift: Tensor | None,
    tanh: bool,
) -> Three:
    """Read, write ``(N, n)`` and carry ``(N, n, n)`` of scores ``(N, n, 2 + n)``."""
    from lrt_kernels.gpu import stream_coefficients as kernels

    learned = (read, write, carry, mix_scale, write_scale)
    return kernels.run_adjust(scores, learned, shift, tanh)


@torch.library.custom_op("lrt_kernels::stream_adjustments_backward", mutates_args=())
def _adjust_backward(
    grad_read: Tensor,
    grad_write: Tensor,
    grad_carry: Tensor,
    scores: Tensor,
    mix_scale: Tensor,
    write_scale: Tensor,
    shift: Tensor | None,
    tanh: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the scores, and of all else in one piece.

    First ``(n, 2 + n)`` of read, write and carry side by side, then shift, mix_scale, write_scale.
    """
    from lrt_kernels.gpu import stream_coefficients as kernels

    grads = (grad_read, grad_write, grad_carry)
    return kernels.run_adjust_backward(grads, scores, (mix_scale, write_scale), shift, tanh)


@_adjust.register_fake
def _(scores, *learned):  # type: ignore[no-untyped-def]
    rows, n, _ = scores.shape
    return scores.new_empty(rows, n), scores.new_empty(rows, n), scores.new_empty(rows, n, n)


@_adjust_backward.register_fake
def _(read, write, carry, scores, *learned):  # type: ignore[no-untyped-def]
    _, n, ways = scores.shape
    return torch.empty_like(scores), scores.new_empty((n + 1) * ways + 2)


def _save_adjust(ctx: Any, inputs: tuple[Any, ...], output: Three) -> None:
    scores, _, _, _, *scales, shift, ctx.tanh = inputs
    ctx.save_for_backward(scores, *scales, shift)


def _differentiate_adjust(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    scores, *scales, shift = ctx.saved_tensors
    n, ways = scores.shape[1:]
    grads = tuple(grad.contiguous() for grad in grads)
    d_scores, d_learned = _adjust_backward(*grads, scores, *scales, shift, ctx.tanh)
    static, d_shift, *d_scales = d_learned.split([n * ways, ways, 1, 1])
    d_read, d_write, d_carry = static.view(n, ways).split([1, 1, n], dim=1)
    d_static = (d_read.squeeze(1), d_write.squeeze(1), d_carry)
    return d_scores, *d_static, *d_scales, None if shift is None else d_shift, None


_adjust.register_autograd(_differentiate_adjust, setup_context=_save_adjust)
