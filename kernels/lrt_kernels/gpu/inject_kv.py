"""Kernels of `lrt_kernels.inject_kv`: rows are pairs (position, head), in halves of their features.

Backward undoes the steps in turn from k, v, gates and memory alone. With the mixed key k, rho =
rsqrt(mean k^2 + eps), and u its gradient before the rotation,

    dk = rho (u - k rho^2 mean(u k)),   dk_local = g_local dk,   dM_k = g_recurrent dk
    dl = g (1 - g / 2) (dk . k_local + dv . v_local)             for g = 2 sigmoid(l)

and the same with M_k and M_v for the recurrent gate.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import Launch, accumulator, ceil_div, power_of_two, rows_per_program
from lrt_kernels.precision import wide

#: Numbers of one program: eight a thread.
TILE = 2048


@triton.jit
def _gate(logits, at, rows, ACC: tl.constexpr):
    return 2.0 / (1.0 + tl.exp(-tl.load(logits + at, mask=rows, other=0.0).to(ACC)))


@triton.jit(do_not_specialize=["N", "H", "M"])
def _forward(
    k,
    v,
    logits,
    memory_k,
    memory_v,
    cos,
    sin,
    out_k,
    out_v,
    N,
    H,
    W,
    HALF,
    M,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_W)[None, :]
    rows = row < N * H
    # The second half is one shorter where the width is odd.
    in1, in2 = rows & (col < HALF), rows & (col < W - HALF)
    at1 = row * W + col
    at2 = at1 + HALF
    k1 = tl.load(k + at1, mask=in1, other=0.0).to(ACC)
    k2 = tl.load(k + at2, mask=in2, other=0.0).to(ACC)
    if logits is not None:
        gate_at = (row // H) * 2 * H + row % H
        local = _gate(logits, gate_at, rows, ACC)
        recurrent = _gate(logits, gate_at + H, rows, ACC)
        k1, k2 = k1 * local, k2 * local
        if memory_k is not None:
            k1 += recurrent * tl.load(memory_k + at1, mask=in1, other=0.0).to(ACC)
            k2 += recurrent * tl.load(memory_k + at2, mask=in2, other=0.0).to(ACC)
    if EPS is not None:
        rho = 1.0 / tl.sqrt((tl.sum(k1 * k1, 1) + tl.sum(k2 * k2, 1)) / W + EPS)[:, None]
        k1, k2 = k1 * rho, k2 * rho
    if cos is not None:
        angle = (row // H) % M * HALF + col
        c = tl.load(cos + angle, mask=in1, other=0.0).to(ACC)
        s = tl.load(sin + angle, mask=in1, other=0.0).to(ACC)
        k1, k2 = k1 * c + k2 * s, k2 * c - k1 * s
    tl.store(out_k + at1, k1.to(out_k.dtype.element_ty), mask=in1)
    tl.store(out_k + at2, k2.to(out_k.dtype.element_ty), mask=in2)
    if v is not None:
        v1 = tl.load(v + at1, mask=in1, other=0.0).to(ACC) * local
        v2 = tl.load(v + at2, mask=in2, other=0.0).to(ACC) * local
        if memory_v is not None:
            v1 += recurrent * tl.load(memory_v + at1, mask=in1, other=0.0).to(ACC)
            v2 += recurrent * tl.load(memory_v + at2, mask=in2, other=0.0).to(ACC)
        tl.store(out_v + at1, v1.to(out_v.dtype.element_ty), mask=in1)
        tl.store(out_v + at2, v2.to(out_v.dtype.element_ty), mask=in2)


@triton.jit(do_not_specialize=["N", "H", "M"])
def _backward(
    grad_k,
    grad_v,
    k,
    v,
    logits,
    memory_k,
    memory_v,
    cos,
    sin,
    d_k,
    d_v,
    d_logits,
    d_memory_k,
    d_memory_v,
    N,
    H,
    W,
    HALF,
    M,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_W)[None, :]
    rows = row < N * H
    in1, in2 = rows & (col < HALF), rows & (col < W - HALF)
    at1 = row * W + col
    at2 = at1 + HALF
    own1 = tl.load(k + at1, mask=in1, other=0.0).to(ACC)
    own2 = tl.load(k + at2, mask=in2, other=0.0).to(ACC)
    k1, k2 = own1, own2
    if logits is not None:
        gate_at = (row // H) * 2 * H + row % H
        local = _gate(logits, gate_at, rows, ACC)
        recurrent = _gate(logits, gate_at + H, rows, ACC)
        k1, k2 = k1 * local, k2 * local
        if memory_k is not None:
            m1 = tl.load(memory_k + at1, mask=in1, other=0.0).to(ACC)
            m2 = tl.load(memory_k + at2, mask=in2, other=0.0).to(ACC)
            k1, k2 = k1 + recurrent * m1, k2 + recurrent * m2
    u1 = tl.load(grad_k + at1, mask=in1, other=0.0).to(ACC)
    u2 = tl.load(grad_k + at2, mask=in2, other=0.0).to(ACC)
    if cos is not None:
        angle = (row // H) % M * HALF + col
        c = tl.load(cos + angle, mask=in1, other=0.0).to(ACC)
        s = tl.load(sin + angle, mask=in1, other=0.0).to(ACC)
        u1, u2 = u1 * c - u2 * s, u1 * s + u2 * c
    if EPS is not None:
        rho = 1.0 / tl.sqrt((tl.sum(k1 * k1, 1) + tl.sum(k2 * k2, 1)) / W + EPS)[:, None]
        shrink = (tl.sum(u1 * k1, 1) + tl.sum(u2 * k2, 1))[:, None] * rho * rho / W
        u1, u2 = rho * (u1 - shrink * k1), rho * (u2 - shrink * k2)
    if logits is None:
        tl.store(d_k + at1, u1.to(d_k.dtype.element_ty), mask=in1)
        tl.store(d_k + at2, u2.to(d_k.dtype.element_ty), mask=in2)
    else:
        tl.store(d_k + at1, (local * u1).to(d_k.dtype.element_ty), mask=in1)
        tl.store(d_k + at2, (local * u2).to(d_k.dtype.element_ty), mask=in2)
        d_local = tl.sum(u1 * own1, 1) + tl.sum(u2 * own2, 1)
        d_recurrent = tl.zeros([BLOCK_N], ACC)
        if memory_k is not None:
            d_recurrent += tl.sum(u1 * m1, 1) + tl.sum(u2 * m2, 1)
            element = d_memory_k.dtype.element_ty
            tl.store(d_memory_k + at1, (recurrent * u1).to(element), mask=in1)
            tl.store(d_memory_k + at2, (recurrent * u2).to(element), mask=in2)
        w1 = tl.load(grad_v + at1, mask=in1, other=0.0).to(ACC)
        w2 = tl.load(grad_v + at2, mask=in2, other=0.0).to(ACC)
        own1 = tl.load(v + at1, mask=in1, other=0.0).to(ACC)
        own2 = tl.load(v + at2, mask=in2, other=0.0).to(ACC)
        d_local += tl.sum(w1 * own1, 1) + tl.sum(w2 * own2, 1)
        tl.store(d_v + at1, (local * w1).to(d_v.dtype.element_ty), mask=in1)
        tl.store(d_v + at2, (local * w2).to(d_v.dtype.element_ty), mask=in2)
        if memory_v is not None:
            m1 = tl.load(memory_v + at1, mask=in1, other=0.0).to(ACC)
            m2 = tl.load(memory_v + at2, mask=in2, other=0.0).to(ACC)
            d_recurrent += tl.sum(w1 * m1, 1) + tl.sum(w2 * m2, 1)
            element = d_memory_v.dtype.element_ty
            tl.store(d_memory_v + at1, (recurrent * w1).to(element), mask=in1)
            tl.store(d_memory_v + at2, (recurrent * w2).to(element), mask=in2)
        dl = d_local[:, None] * local * (1.0 - 0.5 * local)
        dr = d_recurrent[:, None] * recurrent * (1.0 - 0.5 * recurrent)
        tl.store(d_logits + gate_at, dl.to(d_logits.dtype.element_ty), mask=rows)
        tl.store(d_logits + gate_at + H, dr.to(d_logits.dtype.element_ty), mask=rows)


def _plan(
    name: str, kernel: object, k: Tensor, cos: Tensor | None, norm_eps: float | None, args: dict
) -> Launch:
    n, heads, width = k.shape
    half = ceil_div(width, 2)
    block_w = power_of_two(half)
    block_n = rows_per_program(2 * block_w, TILE)
    return Launch(
        name,
        kernel,
        ceil_div(n * heads, block_n),
        {
            **args,
            **{"N": n, "H": heads, "W": width, "HALF": half},
            "M": 1 if cos is None else cos.shape[0],
        },
        {
            **{"EPS": norm_eps, "ACC": accumulator(wide(k.dtype))},
            **{"BLOCK_N": block_n, "BLOCK_W": block_w},
        },
        warps=8 if 2 * block_n * block_w >= TILE else 4,
    )


def plan_forward(
    k: Tensor,
    v: Tensor | None,
    logits: Tensor | None,
    memory_k: Tensor | None,
    memory_v: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    norm_eps: float | None,
) -> tuple[Launch, tuple[Tensor, Tensor]]:
    """The launch, and k' and v' that it fills; arguments as of `lrt_kernels.inject_kv._op`."""
    out_k, out_v = torch.empty_like(k), k.new_empty(0) if v is None else torch.empty_like(v)
    args = {
        **{"k": k, "v": v, "logits": logits, "memory_k": memory_k, "memory_v": memory_v},
        **{"cos": cos, "sin": sin, "out_k": out_k, "out_v": None if v is None else out_v},
    }
    name = "place_heads" if logits is None else "inject_kv"
    return _plan(name, _forward, k, cos, norm_eps, args), (out_k, out_v)


def plan_backward(
    grad_k: Tensor,
    grad_v: Tensor,
    k: Tensor,
    v: Tensor | None,
    logits: Tensor | None,
    memory_k: Tensor | None,
    memory_v: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    norm_eps: float | None,
) -> tuple[Launch, list[Tensor]]:
    """The launch, and the gradients of k, v, logits and both memories."""
    given = {"k": k, "v": v, "logits": logits, "memory_k": memory_k, "memory_v": memory_v}
    grads = {
        f"d_{name}": k.new_empty(0) if x is None else torch.empty_like(x)
        for name, x in given.items()
    }
    args = {
        **{"grad_k": grad_k, "grad_v": None if v is None else grad_v},
        **given,
        **{"cos": cos, "sin": sin},
        **{f"d_{name}": None if x is None else grads[f"d_{name}"] for name, x in given.items()},
    }
    name = "place_heads backward" if logits is None else "inject_kv backward"
    return _plan(name, _backward, k, cos, norm_eps, args), list(grads.values())


def forward(*given) -> tuple[Tensor, Tensor]:
    """Runs `plan_forward`."""
    launch, filled = plan_forward(*given)
    launch.run()
    return filled


def backward(*given) -> list[Tensor]:
    """Runs `plan_backward`."""
    launch, grads = plan_backward(*given)
    launch.run()
    return grads
