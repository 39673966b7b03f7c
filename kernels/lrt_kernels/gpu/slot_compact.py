"""Kernels of `lrt_kernels.slot_compact`: gate and reflection, each one pass over the slots.

With rho = rsqrt(mean g^2 + eps) and u = do m, the gate c = rho g m has

    dg = rho (u - g rho^2 mean(u g)),                    dm = sum over slots of do rho g

and with a = (v . g) / |v|^2, e = (v . dz) / |v|^2 the reflection z = g - b a v has

    dg = dz - b e v,      dv = -b (a dz + e g - 2 a e v),      db = -a (v . dz)

so nothing is kept but g, m and v, and no gradient is a sum over positions. Directions are scaled by
their largest entry first, since the squares of small ones would vanish.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import (
    Launch,
    accumulator,
    ceil_div,
    power_of_two,
    rows_per_program,
)
from lrt_kernels.precision import wide

#: Numbers of one program: eight a thread, so that a state, its gradient and the token's stay in
#: registers.
TILE = 2048


@triton.jit(do_not_specialize=["N", "S"])
def _gate(
    slots,
    token,
    out,
    N,
    S,
    D,
    out_n,
    out_s,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    inside = (row < N) & (col < D)
    if token is not None:
        m = tl.load(token + row * D + col, mask=inside, other=0.0).to(ACC)
    for s in range(S):
        g = tl.load(slots + (row * S + s) * D + col, mask=inside, other=0.0).to(ACC)
        c = g / tl.sqrt(tl.sum(g * g, 1) / D + EPS)[:, None]
        if token is not None:
            c *= m
        tl.store(out + row * out_n + s * out_s + col, c.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N", "S"])
def _gate_backward(
    grad,
    slots,
    token,
    d_slots,
    d_token,
    N,
    S,
    D,
    grad_n,
    grad_s,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    inside = (row < N) & (col < D)
    if token is not None:
        m = tl.load(token + row * D + col, mask=inside, other=0.0).to(ACC)
        dm = tl.zeros([BLOCK_N, BLOCK_D], ACC)
    for s in range(S):
        at = (row * S + s) * D + col
        g = tl.load(slots + at, mask=inside, other=0.0).to(ACC)
        u = tl.load(grad + row * grad_n + s * grad_s + col, mask=inside, other=0.0).to(ACC)
        rho = 1.0 / tl.sqrt(tl.sum(g * g, 1) / D + EPS)[:, None]
        if token is not None:
            dm += u * g * rho
            u *= m
        shrink = tl.sum(u * g, 1)[:, None] * rho * rho / D
        tl.store(d_slots + at, (rho * (u - shrink * g)).to(d_slots.dtype.element_ty), mask=inside)
    if token is not None:
        tl.store(d_token + row * D + col, dm.to(d_token.dtype.element_ty), mask=inside)


@triton.jit
def _scaled(v, TINY: tl.constexpr):
    """v over its largest entry, that entry, and the inverse square of the former's length."""
    largest = tl.maximum(tl.max(tl.abs(v), 1), TINY)[:, None]
    u = v / largest
    square = tl.sum(u * u, 1)[:, None]
    # A missing direction: zero, not a division by zero.
    return u, largest, tl.where(square > 0, 1.0 / tl.where(square > 0, square, 1.0), 0.0)


@triton.jit(do_not_specialize=["N", "S"])
def _reflect(
    slots,
    vectors,
    strength,
    out,
    N,
    S,
    D,
    vector_n,
    vector_s,
    TINY: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Rows are pairs (position, slot)."""
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    rows = row < N * S
    inside = rows & (col < D)
    v_at = (row // S) * vector_n + (row % S) * vector_s + col
    g = tl.load(slots + row * D + col, mask=inside, other=0.0).to(ACC)
    v, _, inverse = _scaled(tl.load(vectors + v_at, mask=inside, other=0.0).to(ACC), TINY)
    along = tl.sum(v * g, 1)[:, None] * inverse
    if strength is None:
        along *= 2.0
    else:
        along *= tl.load(strength + row, mask=rows, other=0.0).to(ACC)
    tl.store(out + row * D + col, (g - along * v).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N", "S"])
def _reflect_backward(
    grad,
    slots,
    vectors,
    strength,
    d_slots,
    d_vectors,
    d_strength,
    N,
    S,
    D,
    vector_n,
    vector_s,
    TINY: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    rows = row < N * S
    inside = rows & (col < D)
    at, v_at = row * D + col, (row // S) * vector_n + (row % S) * vector_s + col
    dz = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
    g = tl.load(slots + at, mask=inside, other=0.0).to(ACC)
    v, largest, inverse = _scaled(tl.load(vectors + v_at, mask=inside, other=0.0).to(ACC), TINY)
    a = tl.sum(v * g, 1)[:, None] * inverse
    reached = tl.sum(v * dz, 1)[:, None]
    e = reached * inverse
    if strength is None:
        b = 2.0
    else:
        b = tl.load(strength + row, mask=rows, other=0.0).to(ACC)
        d_b = -a * reached
        tl.store(d_strength + row, d_b.to(d_strength.dtype.element_ty), mask=rows)
    tl.store(d_slots + at, (dz - b * e * v).to(d_slots.dtype.element_ty), mask=inside)
    dv = -b / largest * (a * dz + e * g - 2.0 * a * e * v)
    tl.store(d_vectors + v_at, dv.to(d_vectors.dtype.element_ty), mask=inside)


def _plan(name: str, kernel: object, rows: int, slots: Tensor, args: dict, **constants) -> Launch:
    """One launch over ``rows`` rows of the slots' width."""
    n, count, d = slots.shape
    block_d = power_of_two(d)
    block_n = rows_per_program(block_d, TILE)
    return Launch(
        name,
        kernel,
        ceil_div(rows, block_n),
        {**args, "N": n, "S": count, "D": d},
        {**constants, "BLOCK_N": block_n, "BLOCK_D": block_d},
        warps=8 if block_n * block_d >= TILE else 4,
    )


def plan_gate(
    slots: Tensor, token: Tensor | None, eps: float, by_slot: bool
) -> tuple[Launch, Tensor]:
    """The launch, and c that it fills, ``(S, N, d)`` by slot or ``(N, S, d)``."""
    n, count, d = slots.shape
    dtype = slots.dtype if token is None else torch.promote_types(slots.dtype, token.dtype)
    out = slots.new_empty((count, n, d) if by_slot else (n, count, d), dtype=dtype)
    args = {"slots": slots, "token": token, "out": out, **_strides("out", out, by_slot)}
    constants = {"EPS": eps, "ACC": accumulator(dtype)}
    return _plan("slot_gate", _gate, n, slots, args, **constants), out


def plan_gate_backward(
    grad: Tensor, slots: Tensor, token: Tensor | None, eps: float, by_slot: bool
) -> tuple[Launch, tuple[Tensor, Tensor]]:
    """The launch, and the gradients of slots and token, empty without one."""
    d_slots = torch.empty_like(slots)
    d_token = slots.new_empty(0) if token is None else torch.empty_like(token)
    args = {
        **{"grad": grad, "slots": slots, "token": token, "d_slots": d_slots},
        "d_token": None if token is None else d_token,
        **_strides("grad", grad, by_slot),
    }
    constants = {"EPS": eps, "ACC": accumulator(grad.dtype)}
    launch = _plan("slot_gate backward", _gate_backward, slots.shape[0], slots, args, **constants)
    return launch, (d_slots, d_token)


def plan_reflect(slots: Tensor, vectors: Tensor, strength: Tensor | None) -> tuple[Launch, Tensor]:
    """The launch, and z ``(N, S, d)`` that it fills."""
    out = torch.empty_like(slots)
    args = {
        **{"slots": slots, "vectors": vectors, "strength": strength, "out": out},
        **_strides("vector", vectors, False),
    }
    rows = slots.shape[0] * slots.shape[1]
    return _plan("slot_reflect", _reflect, rows, slots, args, **_constants(slots, vectors)), out


def plan_reflect_backward(
    grad: Tensor, slots: Tensor, vectors: Tensor, strength: Tensor | None
) -> tuple[Launch, tuple[Tensor, Tensor, Tensor]]:
    """The launch, and the gradients of slots, vectors and strength, empty without one."""
    d_slots, d_vectors = torch.empty_like(slots), torch.empty_like(vectors)
    d_strength = slots.new_empty(0) if strength is None else torch.empty_like(strength)
    args = {
        **{"grad": grad, "slots": slots, "vectors": vectors, "strength": strength},
        **{"d_slots": d_slots, "d_vectors": d_vectors},
        "d_strength": None if strength is None else d_strength,
        **_strides("vector", vectors, False),
    }
    rows, constants = slots.shape[0] * slots.shape[1], _constants(slots, vectors)
    launch = _plan("slot_reflect backward", _reflect_backward, rows, slots, args, **constants)
    return launch, (d_slots, d_vectors, d_strength)


def _strides(name: str, x: Tensor, by_slot: bool) -> dict[str, int]:
    """Strides of position and slot."""
    return {f"{name}_n": x.stride(int(by_slot)), f"{name}_s": x.stride(int(not by_slot))}


def _constants(slots: Tensor, vectors: Tensor) -> dict:
    dtype = wide(torch.promote_types(slots.dtype, vectors.dtype))
    return {"TINY": torch.finfo(dtype).tiny, "ACC": accumulator(dtype)}


def run_gate(slots: Tensor, token: Tensor | None, eps: float, by_slot: bool) -> Tensor:
    launch, out = plan_gate(slots, token, eps, by_slot)
    launch.run()
    return out


def run_gate_backward(
    grad: Tensor, slots: Tensor, token: Tensor | None, eps: float, by_slot: bool
) -> tuple[Tensor, Tensor]:
    launch, filled = plan_gate_backward(grad, slots, token, eps, by_slot)
    launch.run()
    return filled


def run_reflect(slots: Tensor, vectors: Tensor, strength: Tensor | None) -> Tensor:
    launch, out = plan_reflect(slots, vectors, strength)
    launch.run()
    return out


def run_reflect_backward(
    grad: Tensor, slots: Tensor, vectors: Tensor, strength: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    launch, filled = plan_reflect_backward(grad, slots, vectors, strength)
    launch.run()
    return filled
