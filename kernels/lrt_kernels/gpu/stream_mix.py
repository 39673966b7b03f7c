"""Kernels of `lrt_kernels.stream_mix`: mixtures of n streams, one pass forward and one backward.

    out_r = sum_s carry_sr x_s + write_r y

is the next streams, and with one r and no y a unit's read. A program owns a few positions and all
r: forward it keeps the sums in registers, backward their gradients,

    dx_s = sum_r carry_sr dout_r,      dcarry_sr = x_s . dout_r,
    dy = sum_r write_r dout_r,         dwrite_r = y . dout_r

so that every stream is read once, and its gradient written once. A coefficient belongs to one
position: nothing is summed over programs.
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

#: Numbers of one program's sums.
TILE = 4096


@triton.jit(do_not_specialize=["N", "S", "R"])
def _forward(
    streams,
    carry,
    write,
    y,
    out,
    N,
    S,
    R,
    D,
    carry_n,
    carry_s,
    carry_r,
    write_n,
    write_r,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    col, r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_R)
    inside = (row < N)[:, None] & (col < D)[None, :]
    by_r = (r < R)[:, None] & (row < N)[None, :]
    total = tl.zeros([BLOCK_R, BLOCK_N, BLOCK_D], ACC)
    if y is not None:
        b_at = r[:, None] * write_r + row[None, :] * write_n
        b = tl.load(write + b_at, mask=by_r, other=0.0).to(ACC)
        unit = tl.load(y + row[:, None] * D + col[None, :], mask=inside, other=0.0).to(ACC)
        total += b[:, :, None] * unit[None, :, :]
    for s in range(S):
        c_at = r[:, None] * carry_r + row[None, :] * carry_n + s * carry_s
        c = tl.load(carry + c_at, mask=by_r, other=0.0).to(ACC)
        x_at = (row[:, None] * S + s) * D + col[None, :]
        x = tl.load(streams + x_at, mask=inside, other=0.0).to(ACC)
        total += c[:, :, None] * x[None, :, :]
    out_at = (row[None, :] * R + r[:, None])[:, :, None] * D + col[None, None, :]
    out_in = (r < R)[:, None, None] & inside[None, :, :]
    tl.store(out + out_at, total.to(out.dtype.element_ty), mask=out_in)


@triton.jit(do_not_specialize=["N", "S", "R"])
def _backward(
    grad,
    streams,
    carry,
    write,
    y,
    d_streams,
    d_carry,
    d_write,
    d_y,
    N,
    S,
    R,
    D,
    carry_n,
    carry_s,
    carry_r,
    write_n,
    write_r,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    col, r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_R)
    inside = (row < N)[:, None] & (col < D)[None, :]
    by_r = (r < R)[:, None] & (row < N)[None, :]
    out_at = (row[None, :] * R + r[:, None])[:, :, None] * D + col[None, None, :]
    out_in = (r < R)[:, None, None] & inside[None, :, :]
    do = tl.load(grad + out_at, mask=out_in, other=0.0).to(ACC)
    if y is not None:
        b_at = r[:, None] * write_r + row[None, :] * write_n
        b = tl.load(write + b_at, mask=by_r, other=0.0).to(ACC)
        at = row[:, None] * D + col[None, :]
        unit = tl.load(y + at, mask=inside, other=0.0).to(ACC)
        dy = tl.sum(b[:, :, None] * do, 0)
        tl.store(d_y + at, dy.to(d_y.dtype.element_ty), mask=inside)
        db = tl.sum(do * unit[None, :, :], 2)
        tl.store(
            d_write + row[None, :] * R + r[:, None], db.to(d_write.dtype.element_ty), mask=by_r
        )
    for s in range(S):
        c_at = r[:, None] * carry_r + row[None, :] * carry_n + s * carry_s
        c = tl.load(carry + c_at, mask=by_r, other=0.0).to(ACC)
        x_at = (row[:, None] * S + s) * D + col[None, :]
        x = tl.load(streams + x_at, mask=inside, other=0.0).to(ACC)
        dx = tl.sum(c[:, :, None] * do, 0)
        tl.store(d_streams + x_at, dx.to(d_streams.dtype.element_ty), mask=inside)
        dc = tl.sum(do * x[None, :, :], 2)
        dc_at = (row[None, :] * S + s) * R + r[:, None]
        tl.store(d_carry + dc_at, dc.to(d_carry.dtype.element_ty), mask=by_r)


def plan_forward(
    streams: Tensor, carry: Tensor, write: Tensor | None, y: Tensor | None
) -> tuple[Launch, Tensor]:
    """The launch, and the mixtures ``(N, R, d)`` that it fills.

    Args:
        streams: x ``(N, S, d)``, in one piece.
        carry: ``(N, S, R)``, of any strides.
        write: ``(N, R)``, of any strides, or None.
        y: ``(N, d)``, in one piece, or None.
    """
    out = streams.new_empty(streams.shape[0], carry.shape[2], streams.shape[2])
    return _plan("stream_mix", _forward, {"out": out}, streams, carry, write, y), out


def plan_backward(
    grad: Tensor, streams: Tensor, carry: Tensor, write: Tensor | None, y: Tensor | None
) -> tuple[Launch, list[Tensor]]:
    """The launch, and the gradients that it fills; those of write and y are empty without y.

    Args:
        grad: ``(N, R, d)``, in one piece.
        streams: as in `plan_forward`, like the others.
    """
    filled = {
        "d_streams": torch.empty_like(streams),
        "d_carry": carry.new_empty(carry.shape),
        "d_write": None if write is None else write.new_empty(write.shape),
        "d_y": None if y is None else torch.empty_like(y),
    }
    tensors = {"grad": grad, **filled}
    launch = _plan("stream_mix backward", _backward, tensors, streams, carry, write, y)
    return launch, [streams.new_empty(0) if x is None else x for x in filled.values()]


def _plan(
    name: str,
    kernel: object,
    tensors: dict[str, Tensor | None],
    streams: Tensor,
    carry: Tensor,
    write: Tensor | None,
    y: Tensor | None,
) -> Launch:
    (n, count, d), outs = streams.shape, carry.shape[2]
    block_r, block_d = power_of_two(outs), power_of_two(d)
    block_n = rows_per_program(block_r * block_d, TILE)
    return Launch(
        name,
        kernel,
        ceil_div(n, block_n),
        {
            **{**tensors, "streams": streams, "carry": carry, "write": write, "y": y},
            **{"N": n, "S": count, "R": outs, "D": d},
            **{f"carry_{axis}": carry.stride(i) for i, axis in enumerate("nsr")},
            **{
                f"write_{axis}": 0 if write is None else write.stride(i)
                for i, axis in enumerate("nr")
            },
        },
        {
            "ACC": accumulator(streams.dtype),
            **{"BLOCK_N": block_n, "BLOCK_R": block_r, "BLOCK_D": block_d},
        },
        # At most 32 sums a thread.
        warps=max(1, min(8, block_n * block_r * block_d // 1024)),
    )


def forward(streams: Tensor, carry: Tensor, write: Tensor | None, y: Tensor | None) -> Tensor:
    """Runs `plan_forward`."""
    launch, out = plan_forward(streams, carry, write, y)
    launch.run()
    return out


def backward(
    grad: Tensor, streams: Tensor, carry: Tensor, write: Tensor | None, y: Tensor | None
) -> list[Tensor]:
    """Runs `plan_backward`."""
    launch, filled = plan_backward(grad, streams, carry, write, y)
    launch.run()
    return filled
