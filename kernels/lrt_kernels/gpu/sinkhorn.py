"""Kernels of `lrt_kernels.sinkhorn`: whole matrices in registers, from logits to the last scaling.

A program owns some matrices and only their logits are kept. The backward pass scales them again,
keeps every u and v in a scratch that lives as long as the pass, and runs the recurrence of
`lrt_kernels.sinkhorn` in reverse.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import Launch, accumulator, ceil_div, power_of_two

#: Numbers of one program's matrices.
TILE = 1024


@triton.jit
def softmax(raw, p_in):
    """Over the last axis; what a padded entry holds is not used."""
    raw = tl.where(p_in, raw, float("-inf"))
    power = tl.exp(raw - tl.max(raw, 2)[:, :, None])
    return power / tl.sum(power, 2)[:, :, None]


@triton.jit
def scales(kernel, by_row, us, vs, vector_at, step, T, EPS: tl.constexpr):
    """u and v after T iterations, and each iteration's in a scratch where there is one."""
    u = tl.where(by_row, 1.0, 0.0).to(kernel.dtype)
    # Padded sums would be divisions by eps, or by zero.
    v = tl.where(by_row, 1.0 / tl.where(by_row, tl.sum(kernel, 1) + EPS, 1.0), 0.0)
    if us is not None:
        tl.store(us + vector_at, u, mask=by_row)
        tl.store(vs + vector_at, v, mask=by_row)
    for t in range(1, T):
        u /= tl.where(by_row, u * tl.sum(kernel * v[:, None, :], 2) + EPS, 1.0)
        v /= tl.where(by_row, v * tl.sum(kernel * u[:, :, None], 1) + EPS, 1.0)
        if us is not None:
            tl.store(us + t * step + vector_at, u, mask=by_row)
            tl.store(vs + t * step + vector_at, v, mask=by_row)
    return u, v


@triton.jit
def reverse(d_out, soft, inside, by_row, us, vs, vector_at, step, T, EPS: tl.constexpr):
    """The logits' gradient from that of the matrices and the scratch of `scales`."""
    kernel = tl.where(inside, soft + EPS, 0.0)
    # Ones where there is no matrix, since they divide.
    u = tl.load(us + (T - 1) * step + vector_at, mask=by_row, other=1.0)
    v = tl.load(vs + (T - 1) * step + vector_at, mask=by_row, other=1.0)
    along_u = d_out * u[:, :, None]
    d_kernel = along_u * v[:, None, :]
    d_v = tl.sum(along_u * kernel, 1)
    d_u = tl.sum(d_out * kernel * v[:, None, :], 2)
    for back in range(1, T):
        before = (T - 1 - back) * step + vector_at
        u_before = tl.load(us + before, mask=by_row, other=1.0)
        v_before = tl.load(vs + before, mask=by_row, other=1.0)
        square = v * v
        d_b = -square * d_v
        d_v *= EPS * square / (v_before * v_before)
        d_kernel += u[:, :, None] * d_b[:, None, :]
        d_u += tl.sum(kernel * d_b[:, None, :], 2)
        square = u * u
        d_a = -square * d_u
        d_u *= EPS * square / (u_before * u_before)
        d_kernel += d_a[:, :, None] * v_before[:, None, :]
        d_v += tl.sum(kernel * d_a[:, :, None], 1)
        u, v = u_before, v_before
    d_kernel -= (v * v * d_v)[:, None, :]
    soft = tl.where(inside, soft, 0.0)
    return soft * (d_kernel - tl.sum(soft * d_kernel, 2)[:, :, None])


@triton.jit(do_not_specialize=["N", "T"])
def _forward(
    logits,
    out,
    us,
    vs,
    N,
    SIZE,
    T,
    stride_q,
    stride_p,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    i = tl.arange(0, BLOCK)
    real = (i < SIZE)[None, :]
    inside = (row < N)[:, None, None] & real[:, :, None] & real[:, None, :]
    by_row = (row < N)[:, None] & real
    at = (
        row[:, None, None] * SIZE * SIZE + i[None, :, None] * stride_q + i[None, None, :] * stride_p
    )
    vector_at = row[:, None] * SIZE + i[None, :]
    step = N.to(tl.int64) * SIZE
    raw = tl.load(logits + at, mask=inside, other=0.0).to(ACC)
    kernel = tl.where(inside, softmax(raw, real[:, None, :]) + EPS, 0.0)
    u, v = scales(kernel, by_row, us, vs, vector_at, step, T, EPS)
    if out is not None:
        tl.store(out + at, kernel * u[:, :, None] * v[:, None, :], mask=inside)


@triton.jit(do_not_specialize=["N", "T"])
def _backward(
    grad,
    logits,
    us,
    vs,
    d_logits,
    N,
    SIZE,
    T,
    stride_q,
    stride_p,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    i = tl.arange(0, BLOCK)
    real = (i < SIZE)[None, :]
    inside = (row < N)[:, None, None] & real[:, :, None] & real[:, None, :]
    by_row = (row < N)[:, None] & real
    at = (
        row[:, None, None] * SIZE * SIZE + i[None, :, None] * stride_q + i[None, None, :] * stride_p
    )
    vector_at = row[:, None] * SIZE + i[None, :]
    step = N.to(tl.int64) * SIZE
    raw = tl.load(logits + at, mask=inside, other=0.0).to(ACC)
    d_out = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
    soft = softmax(raw, real[:, None, :])
    d_raw = reverse(d_out, soft, inside, by_row, us, vs, vector_at, step, T, EPS)
    tl.store(d_logits + at, d_raw.to(d_logits.dtype.element_ty), mask=inside)


def plan_forward(
    logits: Tensor, iterations: int, eps: float, transposed: bool
) -> tuple[Launch, Tensor]:
    """The launch, and the matrices that it fills.

    Args:
        logits: ``(N, n, n)``, in one piece, axes (q, p), or (p, q) if transposed.
        iterations: T.
        eps: in every denominator.
        transposed: which of the two axes is p, the softmax'.
    """
    out = torch.empty_like(logits)
    tensors = {"out": out, "us": None, "vs": None}
    return _plan("sinkhorn", _forward, tensors, logits, iterations, eps, transposed), out


def plan_backward(
    grad: Tensor, logits: Tensor, iterations: int, eps: float, transposed: bool
) -> tuple[list[Launch], Tensor]:
    """Both launches, the recurrence again and its reverse, and the logits' gradient.

    Args:
        grad: ``(N, n, n)``, in one piece.
        logits: as in `plan_forward`, like the others.
    """
    n, size, _ = logits.shape
    us, vs = logits.new_empty(2, iterations, n, size)
    d_logits = torch.empty_like(logits)
    options = (logits, iterations, eps, transposed)
    scratch = {"us": us, "vs": vs}
    again = _plan("sinkhorn scales", _forward, {**scratch, "out": None}, *options)
    tensors = {**scratch, "grad": grad, "d_logits": d_logits}
    return [again, _plan("sinkhorn backward", _backward, tensors, *options)], d_logits


def _plan(
    name: str,
    kernel: object,
    tensors: dict[str, Tensor | None],
    logits: Tensor,
    iterations: int,
    eps: float,
    transposed: bool,
) -> Launch:
    n, size, _ = logits.shape
    block = power_of_two(size)
    block_n = max(1, TILE // block**2)
    strides = (1, size) if transposed else (size, 1)
    return Launch(
        name,
        kernel,
        ceil_div(n, block_n),
        {
            **{**tensors, "logits": logits},
            **{"N": n, "SIZE": size, "T": iterations},
            **dict(zip(("stride_q", "stride_p"), strides, strict=True)),
        },
        {
            **{"EPS": eps, "ACC": accumulator(logits.dtype)},
            **{"BLOCK_N": block_n, "BLOCK": block},
        },
    )


def forward(logits: Tensor, iterations: int, eps: float, transposed: bool) -> Tensor:
    """Runs `plan_forward`."""
    launch, out = plan_forward(logits, iterations, eps, transposed)
    launch.run()
    return out


def backward(grad: Tensor, logits: Tensor, iterations: int, eps: float, transposed: bool) -> Tensor:
    """Runs `plan_backward`."""
    launches, d_logits = plan_backward(grad, logits, iterations, eps, transposed)
    for launch in launches:
        launch.run()
    return d_logits
