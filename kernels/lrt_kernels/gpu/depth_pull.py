"""Kernels of `lrt_kernels.depth_pull`: a source's gradient from all of its reads, in two passes.

The first reads the source and every read's do once and writes the source's gradient; beside it the
logits' gradients, one number per read and position, and rho. The second reads the source again for
the queries' gradients: sums over rows of as many queries as a source has readers do not fit in a
program's registers beside whole rows. Programs keep partial sums, added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.depth_read import PROGRAMS, _outputs
from lrt_kernels.gpu.launch import (
    DTYPES,
    Launch,
    accumulator,
    ceil_div,
    pointers,
    power_of_two,
    rows_per_program,
)
from lrt_kernels.precision import wide

#: Rows, queries and features of one product of the second pass.
BLOCK_N, BLOCK_R, BLOCK_D = 32, 32, 64


@triton.jit(do_not_specialize=["N", "R"])
def _source(
    table,
    source,
    query,
    bias,
    reader,
    present,
    along,
    lse,
    target,
    d_logit,
    inverse,
    N,
    R,
    D,
    EPS: tl.constexpr,
    SCALE: tl.constexpr,
    GRAD: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    col = tl.arange(0, BLOCK_D)
    rows, cols = row < N, col < D
    at = row[:, None] * D + col[None, :]
    inside = rows[:, None] & cols[None, :]
    s = tl.load(source + at, mask=inside, other=0.0).to(ACC)
    rho = 1.0 / tl.sqrt(tl.sum(s * s, 1) / D + EPS)
    tl.store(inverse + row, rho, mask=rows)
    ds = tl.zeros([BLOCK_N, BLOCK_D], ACC)
    shrink = tl.zeros([BLOCK_N], ACC)
    for k in range(R):
        grad = tl.multiple_of(tl.load(table + k).to(tl.pointer_type(GRAD)), 16)
        do = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
        r = tl.load(reader + k)
        q = tl.load(query + r * D + col, mask=cols, other=0.0).to(ACC)
        c = tl.sum(q[None, :] * s, 1) * rho
        logit = c
        if bias is not None:
            logit += tl.load(bias + r).to(ACC)
        by_read = k * N.to(tl.int64) + row
        # Rows that are padding get no weight.
        weight = tl.exp(logit / SCALE - tl.load(lse + by_read, mask=rows, other=float("inf")))
        if present is not None:
            here = tl.load(present + by_read, mask=rows, other=0)
            weight = tl.where(here != 0, weight, 0.0)
        reached = tl.sum(do * s, 1) - tl.load(along + by_read, mask=rows, other=0.0)
        dl = weight * reached / SCALE
        tl.store(d_logit + by_read, dl, mask=rows)
        ds += weight[:, None] * do + (dl * rho)[:, None] * q[None, :]
        shrink += dl * c
    ds -= (shrink * rho * rho / D)[:, None] * s
    tl.store(target + at, ds.to(DTYPE), mask=inside)


@triton.jit(do_not_specialize=["N", "R", "G"])
def _queries(
    source,
    d_logit,
    inverse,
    part,
    N,
    R,
    D,
    G,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Partials of the queries' gradients, of one share of the rows and one tile of each axis."""
    tiles = tl.cdiv(D, BLOCK_D)
    tile, g = tl.program_id(0) % tiles, (tl.program_id(0) // tiles) % G
    read = (tl.program_id(0) // (tiles * G)) * BLOCK_R + tl.arange(0, BLOCK_R)
    col = tile * BLOCK_D + tl.arange(0, BLOCK_D)
    reads, cols = read < R, col < D
    total = tl.zeros([BLOCK_R, BLOCK_D], ACC)
    for block in range(g, tl.cdiv(N, BLOCK_N), G):
        row = (block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        rows = row < N
        s_in = rows[:, None] & cols[None, :]
        s = tl.load(source + row[:, None] * D + col[None, :], mask=s_in, other=0.0).to(ACC)
        dl_at = read[:, None] * N.to(tl.int64) + row[None, :]
        dl = tl.load(d_logit + dl_at, mask=reads[:, None] & rows[None, :], other=0.0)
        dl *= tl.load(inverse + row, mask=rows, other=0.0)[None, :]
        total += tl.dot(dl, s, input_precision="ieee", out_dtype=ACC)
    part_at = (g * R + read[:, None]) * D + col[None, :]
    tl.store(part + part_at, total, mask=reads[:, None] & cols[None, :])


def plan_along(grad: Tensor, out: Tensor) -> tuple[list[Launch], Tensor]:
    """The launch of do . o, ``(N,)``, of ``(N, d)`` each."""
    n, d = out.shape
    along = out.new_empty(n, dtype=wide(out.dtype))
    block_d = power_of_two(d)
    rows = rows_per_program(block_d)
    shares = max(1, min(PROGRAMS, ceil_div(n, rows)))
    args: dict[str, Tensor | int | None] = {
        **{"grad": grad, "out": out, "gain": None, "inner": None, "delta": along},
        **{"part_gain": None, "N": n, "R": 1, "D": d, "G": shares},
    }
    constants = {
        **{"NORM_EPS": None, "DTYPE": DTYPES[out.dtype], "ACC": accumulator(out.dtype)},
        **{"BLOCK_N": rows, "BLOCK_D": block_d},
    }
    warps = 8 if rows * block_d >= 4096 else 4
    launch = Launch("depth_pull along", _outputs, shares, args, constants, warps=warps)
    return [launch], along


def plan_source(
    source: Tensor,
    query: Tensor,
    bias: Tensor | None,
    grads: Sequence[Tensor],
    reader: Tensor,
    present: Tensor | None,
    along: Tensor,
    lse: Tensor,
    scale: float,
    eps: float,
) -> tuple[list[Launch], tuple[Tensor, Tensor, Tensor]]:
    """Both launches, and what they fill.

    That is the source's gradient, partials ``(G, R, d)`` of the queries', and ``(R, N)`` of the
    logits before the division.

    Args:
        source: ``(N, d)``.
        query: ``(queries, d)``.
        bias: ``(queries,)``.
        grads: R of ``(N, d)``, of one dtype.
        reader: ``(R,)`` int64, each read's row of the query.
        present: ``(R, N)`` uint8.
        along: ``(R, N)``, do . o.
        lse: ``(R, N)``.
        scale: divides the logits.
        eps: of the keys' norm.
    """
    (n, d), count = source.shape, len(grads)
    acc = accumulator(along.dtype)
    target = torch.empty_like(source)
    d_logit, inverse = torch.empty_like(along), along.new_empty(n)
    block_d = power_of_two(d)
    rows = rows_per_program(block_d)
    first = Launch(
        "depth_pull source",
        _source,
        ceil_div(n, rows),
        {
            **{"table": pointers(grads, "grads"), "source": source, "query": query, "bias": bias},
            **{"reader": reader, "present": present, "along": along, "lse": lse},
            **{"target": target, "d_logit": d_logit, "inverse": inverse},
            **{"N": n, "R": count, "D": d},
        },
        {
            **{"EPS": eps, "SCALE": scale, "GRAD": DTYPES[grads[0].dtype]},
            **{"DTYPE": DTYPES[source.dtype], "ACC": acc, "BLOCK_N": rows, "BLOCK_D": block_d},
        },
        warps=8 if rows * block_d >= 4096 else 4,
    )
    tiles, heights = ceil_div(d, BLOCK_D), ceil_div(count, BLOCK_R)
    shares = max(1, min(ceil_div(PROGRAMS, tiles * heights), ceil_div(n, BLOCK_N)))
    part = along.new_empty(shares, count, d)
    second = Launch(
        "depth_pull queries",
        _queries,
        tiles * heights * shares,
        {
            **{"source": source, "d_logit": d_logit, "inverse": inverse, "part": part},
            **{"N": n, "R": count, "D": d, "G": shares},
        },
        {"ACC": acc, "BLOCK_N": BLOCK_N, "BLOCK_R": BLOCK_R, "BLOCK_D": BLOCK_D},
        warps=8,
    )
    return [first, second], (target, part, d_logit)


def along(grad: Tensor, out: Tensor) -> Tensor:
    """Runs `plan_along`."""
    launches, filled = plan_along(grad, out)
    for launch in launches:
        launch.run()
    return filled


def source(
    source: Tensor,
    query: Tensor,
    bias: Tensor | None,
    grads: Sequence[Tensor],
    readers: Sequence[int],
    present: Tensor | None,
    along: Tensor,
    lse: Tensor,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Runs `plan_source` and adds up: gradients of source, query and bias; ``present`` is bool."""
    reader = torch.tensor(readers, dtype=torch.int64)
    if source.is_cuda:
        reader = reader.pin_memory().to(source.device, non_blocking=True)
    here = None if present is None else present.view(torch.uint8)
    bias = None if bias is None else bias.contiguous()
    launches, (target, part, d_logit) = plan_source(
        source, query.contiguous(), bias, grads, reader, here, along, lse, scale, eps
    )
    for launch in launches:
        launch.run()
    d_query = part.new_zeros(query.shape).index_add_(0, reader, part.sum(0)).to(query.dtype)
    if bias is None:
        return target, d_query, None
    d_bias = part.new_zeros(len(bias)).index_add_(0, reader, d_logit.sum(1))
    return target, d_query, d_bias.to(bias.dtype)
