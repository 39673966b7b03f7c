"""Kernels of `lrt_kernels.dense_aggregate`: one pass over the sources forward, one backward.

A program owns a few rows and all ways. Forward it reads every source once and keeps the sums in
registers; backward it keeps the sums' gradients there instead, reads every source once and writes
its gradient once:

    ds_j = sum_c w_{c,j} du^c,        dw_{c,j} = du^c . s_j

A weight belongs to one row, so nothing is summed over programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import (
    DTYPES,
    Launch,
    accumulator,
    ceil_div,
    pointers,
    power_of_two,
    rows_per_program,
)


@triton.jit(do_not_specialize=["N", "S", "W"])
def _forward(
    table,
    sums,
    weights,
    N,
    S,
    W,
    D,
    weight_n,
    weight_w,
    weight_s,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    col, way = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_W)
    rows, cols, ways = row < N, col < D, way < W
    at = row[:, None] * D + col[None, :]
    inside = rows[:, None] & cols[None, :]
    weight_at = row[None, :] * weight_n + way[:, None] * weight_w
    weight_in = ways[:, None] & rows[None, :]
    total = tl.zeros([BLOCK_W, BLOCK_N, BLOCK_D], ACC)
    for j in range(S):
        source = tl.multiple_of(tl.load(table + j).to(tl.pointer_type(DTYPE)), 16)
        s = tl.load(source + at, mask=inside, other=0.0).to(ACC)
        w = tl.load(weights + weight_at + j * weight_s, mask=weight_in, other=0.0).to(ACC)
        total += w[:, :, None] * s[None, :, :]
    own = tl.load(sums + way, mask=ways, other=0).to(tl.pointer_type(DTYPE))
    own = tl.multiple_of(own, [16])
    sum_in = ways[:, None, None] & inside[None, :, :]
    tl.store(own[:, None, None] + at[None, :, :], total.to(DTYPE), mask=sum_in)


@triton.jit(do_not_specialize=["N", "S", "W"])
def _backward(
    table,
    grads,
    outer,
    weights,
    grad_weights,
    N,
    S,
    W,
    D,
    weight_n,
    weight_w,
    weight_s,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    col, way = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_W)
    rows, cols, ways = row < N, col < D, way < W
    at = row[:, None] * D + col[None, :]
    inside = rows[:, None] & cols[None, :]
    weight_in = ways[:, None] & rows[None, :]
    weight_at = row[None, :] * weight_n + way[:, None] * weight_w
    grad_at = (row[None, :] * W + way[:, None]) * S
    own = tl.load(outer + way, mask=ways, other=0).to(tl.pointer_type(DTYPE))
    own = tl.multiple_of(own, [16])
    sum_in = ways[:, None, None] & inside[None, :, :]
    du = tl.load(own[:, None, None] + at[None, :, :], mask=sum_in, other=0.0).to(ACC)
    for j in range(S):
        source = tl.multiple_of(tl.load(table + j).to(tl.pointer_type(DTYPE)), 16)
        target = tl.multiple_of(tl.load(grads + j).to(tl.pointer_type(DTYPE)), 16)
        s = tl.load(source + at, mask=inside, other=0.0).to(ACC)
        w = tl.load(weights + weight_at + j * weight_s, mask=weight_in, other=0.0).to(ACC)
        tl.store(target + at, tl.sum(w[:, :, None] * du, 0).to(DTYPE), mask=inside)
        dw = tl.sum(du * s[None, :, :], 2)
        tl.store(grad_weights + grad_at + j, dw, mask=weight_in)


def plan_forward(weights: Tensor, sources: Sequence[Tensor]) -> tuple[list[Launch], list[Tensor]]:
    """The launch, and the W sums ``(N, d)`` that it fills.

    Args:
        weights: ``(N, W, S)`` of any strides.
        sources: S of ``(N, d)``.
    """
    sums = [torch.empty_like(sources[0]) for _ in range(weights.shape[1])]
    tables = {"table": pointers(sources), "sums": pointers(sums)}
    return [_plan("dense_aggregate", _forward, tables, weights, sources)], sums


def plan_backward(
    grads: Sequence[Tensor], weights: Tensor, sources: Sequence[Tensor]
) -> tuple[list[Launch], list[Tensor]]:
    """The launch, and the gradients that it fills: the weights', then every source's.

    Args:
        grads: W of ``(N, d)``, each contiguous.
        others: as in `plan_forward`.
    """
    filled = [torch.empty_like(source) for source in sources]
    d_weights = weights.new_empty(weights.shape)
    tables = {
        "table": pointers(sources),
        "grads": pointers(filled),
        "outer": pointers(grads, "grads"),
        "grad_weights": d_weights,
    }
    launch = _plan("dense_aggregate backward", _backward, tables, weights, sources)
    return [launch], [d_weights, *filled]


def _plan(
    name: str, kernel: object, tensors: dict[str, Tensor], weights: Tensor, like: Sequence[Tensor]
) -> Launch:
    (n, d), (_, ways, count) = like[0].shape, weights.shape
    block_w, block_d = power_of_two(ways), power_of_two(d)
    block_n = rows_per_program(block_w * block_d)
    return Launch(
        name,
        kernel,
        ceil_div(n, block_n),
        {
            **{**tensors, "weights": weights},
            **{"N": n, "S": count, "W": ways, "D": d},
            **{f"weight_{axis}": weights.stride(i) for i, axis in enumerate("nws")},
        },
        {
            **{"DTYPE": DTYPES[like[0].dtype], "ACC": accumulator(like[0].dtype)},
            **{"BLOCK_N": block_n, "BLOCK_W": block_w, "BLOCK_D": block_d},
        },
        # Eight numbers of a source for each thread: 16 bytes of bfloat16 at a time.
        warps=max(1, min(8, block_n * block_d // 256)),
    )


def forward(weights: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """Runs `plan_forward`."""
    launches, sums = plan_forward(weights, sources)
    for launch in launches:
        launch.run()
    return sums


def backward(grads: Sequence[Tensor], weights: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """Runs `plan_backward`."""
    # Autograd hands over what it likes, pieces of one tensor too.
    grads = [grad if grad.data_ptr() % 16 == 0 else grad.clone() for grad in grads]
    launches, filled = plan_backward(grads, weights, sources)
    for launch in launches:
        launch.run()
    return filled
