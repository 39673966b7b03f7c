"""Kernels of `lrt_kernels.merge_cache`: one pass over the rows each.

With s = sigmoid(l) of a gate, t = tanh(gamma), and x = h for the current gate, P for the other,

    dh = do (1 + t_cur s_cur),   dP = do t_rec s_rec,   dl = do t s (1 - s) x
    dgamma = (1 - t^2) sum over everything of do s x

A strength's gradient is one number per program, and those are added in a fixed order. The cache's
update has the gradient of its norm, or its factor alone where that carries none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import Launch, accumulator, ceil_div, power_of_two, rows_per_program
from lrt_kernels.merge_cache import GROW, SHRINK
from lrt_kernels.precision import wide

#: Numbers of one program at a time: eight a thread.
TILE = 2048
#: Programs that share the merge's backward pass; a constant, so that sums have one order.
PROGRAMS = 1024


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit(do_not_specialize=["N"])
def _merge(
    h,
    projected,
    current,
    recurrent,
    current_strength,
    recurrent_strength,
    out,
    N,
    D,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    inside = (row < N) & (col < D)
    at = row * D + col
    x = tl.load(h + at, mask=inside, other=0.0).to(ACC)
    p = tl.load(projected + at, mask=inside, other=0.0).to(ACC)
    own = _sigmoid(tl.load(current + at, mask=inside, other=0.0).to(ACC))
    other = _sigmoid(tl.load(recurrent + at, mask=inside, other=0.0).to(ACC))
    own *= _tanh(tl.load(current_strength).to(ACC))
    other *= _tanh(tl.load(recurrent_strength).to(ACC))
    tl.store(out + at, (x + own * x + other * p).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N", "G"])
def _merge_backward(
    grad,
    h,
    projected,
    current,
    recurrent,
    current_strength,
    recurrent_strength,
    d_h,
    d_projected,
    d_current,
    d_recurrent,
    partial,
    N,
    D,
    G,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    g = tl.program_id(0)
    col = tl.arange(0, BLOCK_D)[None, :]
    t_own = _tanh(tl.load(current_strength).to(ACC))
    t_other = _tanh(tl.load(recurrent_strength).to(ACC))
    sum_own = tl.zeros([BLOCK_N], ACC)
    sum_other = tl.zeros([BLOCK_N], ACC)
    for block in range(g, tl.cdiv(N, BLOCK_N), G):
        row = (block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
        inside = (row < N) & (col < D)
        at = row * D + col
        do = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
        x = tl.load(h + at, mask=inside, other=0.0).to(ACC)
        own = _sigmoid(tl.load(current + at, mask=inside, other=0.0).to(ACC))
        tl.store(d_h + at, (do + do * t_own * own).to(d_h.dtype.element_ty), mask=inside)
        reached = do * own * x
        sum_own += tl.sum(reached, 1)
        dl = reached * t_own * (1.0 - own)
        tl.store(d_current + at, dl.to(d_current.dtype.element_ty), mask=inside)
        p = tl.load(projected + at, mask=inside, other=0.0).to(ACC)
        other = _sigmoid(tl.load(recurrent + at, mask=inside, other=0.0).to(ACC))
        dp = do * t_other * other
        tl.store(d_projected + at, dp.to(d_projected.dtype.element_ty), mask=inside)
        reached = do * other * p
        sum_other += tl.sum(reached, 1)
        dl = reached * t_other * (1.0 - other)
        tl.store(d_recurrent + at, dl.to(d_recurrent.dtype.element_ty), mask=inside)
    tl.store(partial + g, tl.sum(sum_own, 0) * (1.0 - t_own * t_own))
    tl.store(partial + G + g, tl.sum(sum_other, 0) * (1.0 - t_other * t_other))


@triton.jit
def _factor(y, D, EPS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr):
    rho = 1.0 / tl.sqrt(tl.sum(y * y, 1) / D + EPS)[:, None]
    if LOW is not None:
        # Sums take the bounds in the width of rho; as arguments of a minimum they would be float32.
        zero = tl.zeros_like(rho)
        rho = tl.minimum(tl.maximum(rho, zero + LOW), zero + HIGH)
    return rho


@triton.jit(do_not_specialize=["N"])
def _update(
    grad,
    h,
    cache,
    out,
    N,
    D,
    EPS: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """R, or with ``grad`` the gradient of h + cache."""
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    inside = (row < N) & (col < D)
    at = row * D + col
    y = tl.load(h + at, mask=inside, other=0.0).to(ACC)
    if cache is not None:
        y += tl.load(cache + at, mask=inside, other=0.0).to(ACC)
    rho = _factor(y, D, EPS, LOW, HIGH)
    if grad is None:
        result = rho * y
    else:
        do = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
        if LOW is None:
            do -= y * (tl.sum(do * y, 1)[:, None] * rho * rho / D)
        result = rho * do
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def _blocks(x: Tensor) -> tuple[int, dict, int]:
    """Rows of a program, constants, warps."""
    block_d = power_of_two(x.shape[-1])
    block_n = rows_per_program(block_d, TILE)
    return (
        block_n,
        {"ACC": accumulator(wide(x.dtype)), "BLOCK_N": block_n, "BLOCK_D": block_d},
        8 if block_n * block_d >= TILE else 4,
    )


def _named(given: tuple[Tensor, ...]) -> dict[str, Tensor | int | None]:
    names = ("h", "projected", "current", "recurrent", "current_strength", "recurrent_strength")
    return dict(zip(names, given, strict=True))


def plan_merge(*given: Tensor) -> tuple[Launch, Tensor]:
    """The launch, and h' ``(N, d)``; arguments as of `lrt_kernels.merge_cache._merge`."""
    h, out = given[0], torch.empty_like(given[0])
    (n, d), (rows, constants, warps) = h.shape, _blocks(h)
    args = {**_named(given), "out": out, "N": n, "D": d}
    return Launch("merge_cache", _merge, ceil_div(n, rows), args, constants, warps), out


def plan_merge_backward(grad: Tensor, *given: Tensor) -> tuple[Launch, list[Tensor], Tensor]:
    """The launch, the gradients of the rows, and partials ``(2, programs)`` of the strengths'."""
    h = given[0]
    (n, d), (rows, constants, warps) = h.shape, _blocks(h)
    shares = max(1, min(PROGRAMS, ceil_div(n, rows)))
    grads = [torch.empty_like(x) for x in given[:4]]
    partial = h.new_empty(2, shares, dtype=wide(h.dtype))
    names = ("d_h", "d_projected", "d_current", "d_recurrent")
    args: dict[str, Tensor | int | None] = {
        **{"grad": grad, **_named(given), **dict(zip(names, grads, strict=True))},
        **{"partial": partial, "N": n, "D": d, "G": shares},
    }
    name = "merge_cache backward"
    return Launch(name, _merge_backward, shares, args, constants, warps), grads, partial


def plan_update(
    grad: Tensor | None, h: Tensor, cache: Tensor | None, clamped: bool, eps: float
) -> tuple[Launch, Tensor]:
    """The launch, and R ``(N, d)``, or with ``grad`` the gradient of h + cache."""
    dtype = h.dtype if cache is None else torch.promote_types(h.dtype, cache.dtype)
    out = torch.empty_like(h, dtype=dtype if grad is None else grad.dtype)
    (n, d), (rows, constants, warps) = h.shape, _blocks(h)
    low, high = (SHRINK, GROW) if clamped else (None, None)
    constants |= {"ACC": accumulator(wide(dtype)), "EPS": eps, "LOW": low, "HIGH": high}
    name = "update_cache" if grad is None else "update_cache backward"
    args = {"grad": grad, "h": h, "cache": cache, "out": out, "N": n, "D": d}
    return Launch(name, _update, ceil_div(n, rows), args, constants, warps), out


def run_merge(*given: Tensor) -> Tensor:
    launch, out = plan_merge(*given)
    launch.run()
    return out


def run_merge_backward(grad: Tensor, *given: Tensor) -> list[Tensor]:
    launch, grads, partial = plan_merge_backward(grad, *given)
    launch.run()
    sums = (own.sum(0, keepdim=True) for own in partial)
    return [*grads, *(own.to(x.dtype) for own, x in zip(sums, given[4:], strict=True))]


def run_update(h: Tensor, cache: Tensor | None, clamped: bool, eps: float) -> Tensor:
    launch, out = plan_update(None, h, cache, clamped, eps)
    launch.run()
    return out


def run_update_backward(
    grad: Tensor, h: Tensor, cache: Tensor | None, clamped: bool, eps: float
) -> Tensor:
    launch, out = plan_update(grad, h, cache, clamped, eps)
    launch.run()
    return out
