"""Kernels of `lrt_kernels.depth_read`: one pass over the sources forward, one backward.

Sources are found by a table of addresses, so one compilation serves any number of them and nothing
is stacked. With the score c_rj = q_rj . s_j rho_j, rho_j = rsqrt(mean s_j^2 + eps), the logit
l_rj = (c_rj + b_rj) / scale and the read o_r = sum_j alpha_rj s_j of R queries at once:

    dl_rj = alpha_rj (do_r . s_j - do_r . o_r) / scale
    ds_j  = sum_r alpha_rj do_r + dl_rj (rho_j q_rj - c_rj rho_j^2 s_j / d)
    dq_rj = sum over rows of dl_rj rho_j s_j,        db_rj = sum over rows of dl_rj

Backward, a program owns one source and a share of the rows, so each source is read once and its
gradient written once; programs of the same rows run side by side and share do in the L2 cache.
Sums over rows are kept in registers, one partial per program, and added in a fixed order: the same
bits every time.
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
from lrt_kernels.precision import wide

#: Programs that share the backward pass: several per multiprocessor of any card, and a constant so
#: that sums are added in the same order on all of them.
PROGRAMS = 1024


@triton.jit(do_not_specialize=["N", "S", "R"])
def _forward(
    table,
    query,
    bias,
    present,
    gain,
    out,
    raw,
    score,
    inverse,
    lse,
    N,
    S,
    R,
    D,
    query_r,
    query_s,
    EPS: tl.constexpr,
    SCALE: tl.constexpr,
    NORM_EPS: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    col = tl.arange(0, BLOCK_D)
    read = tl.arange(0, BLOCK_R)
    rows, cols, reads = row < N, col < D, read < R
    at = row[:, None] * D + col[None, :]
    inside = rows[:, None] & cols[None, :]
    both = reads[:, None] & rows[None, :]
    top = tl.full([BLOCK_R, BLOCK_N], -float("inf"), ACC)
    total = tl.zeros([BLOCK_R, BLOCK_N], ACC)
    mixed = tl.zeros([BLOCK_R, BLOCK_N, BLOCK_D], ACC)
    for j in range(S):
        source = tl.multiple_of(tl.load(table + j).to(tl.pointer_type(DTYPE)), 16)
        s = tl.load(source + at, mask=inside, other=0.0).to(ACC)
        q_at = read[:, None] * query_r + j * query_s + col[None, :]
        q = tl.load(query + q_at, mask=reads[:, None] & cols[None, :], other=0.0).to(ACC)
        rho = 1.0 / tl.sqrt(tl.sum(s * s, 1) / D + EPS)
        c = tl.sum(q[:, None, :] * s[None, :, :], 2) * rho[None, :]
        tl.store(inverse + j * N.to(tl.int64) + row, rho, mask=rows)
        tl.store(score + (read[:, None] * S + j) * N.to(tl.int64) + row[None, :], c, mask=both)
        if bias is not None:
            c += tl.load(bias + read * S + j, mask=reads, other=0.0).to(ACC)[:, None]
        logit = c / SCALE
        if present is not None:
            here = tl.load(present + j * N.to(tl.int64) + row, mask=rows, other=1)
            logit = tl.where(here[None, :] != 0, logit, -float("inf"))
        new = tl.maximum(top, logit)
        # Nothing present so far: -inf less itself is no number.
        base = tl.where(new == -float("inf"), 0.0, new)
        keep, weight = tl.exp(top - base), tl.exp(logit - base)
        total = total * keep + weight
        mixed = mixed * keep[:, :, None] + weight[:, :, None] * s[None, :, :]
        top = new
    mixed = mixed / total[:, :, None]
    tl.store(lse + read[:, None] * N.to(tl.int64) + row[None, :], top + tl.log(total), mask=both)
    out_at = (row[None, :, None] * R + read[:, None, None]) * D + col[None, None, :]
    out_in = both[:, :, None] & cols[None, None, :]
    if NORM_EPS is not None:
        tl.store(raw + out_at, mixed.to(DTYPE), mask=out_in)
        mixed = mixed / tl.sqrt(tl.sum(mixed * mixed, 2) / D + NORM_EPS)[:, :, None]
        if gain is not None:
            mixed *= tl.load(gain + col, mask=cols, other=0.0).to(ACC)[None, None, :]
    tl.store(out + out_at, mixed.to(DTYPE), mask=out_in)


@triton.jit(do_not_specialize=["N", "R", "G"])
def _outputs(
    grad,
    out,
    gain,
    inner,
    delta,
    part_gain,
    N,
    R,
    D,
    G,
    NORM_EPS: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradient of the output norm, where there is one, and do . o; rows are pairs (row, read)."""
    g = tl.program_id(0)
    col = tl.arange(0, BLOCK_D)
    cols = col < D
    sum_gain = tl.zeros([BLOCK_D], ACC)
    for block in range(g, tl.cdiv(N * R, BLOCK_N), G):
        pair = (block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        pairs = pair < N * R
        at = pair[:, None] * D + col[None, :]
        inside = pairs[:, None] & cols[None, :]
        do = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
        o = tl.load(out + at, mask=inside, other=0.0).to(ACC)
        if NORM_EPS is not None:
            rho = 1.0 / tl.sqrt(tl.sum(o * o, 1) / D + NORM_EPS)
            if gain is not None:
                sum_gain += tl.sum(do * o * rho[:, None], 0)
                do *= tl.load(gain + col, mask=cols, other=0.0).to(ACC)[None, :]
            shrink = tl.sum(do * o, 1) * rho * rho / D
            do = rho[:, None] * (do - shrink[:, None] * o)
            tl.store(inner + at, do, mask=inside)
        # delta is laid out as the logits are, read by read.
        tl.store(delta + (pair % R) * N.to(tl.int64) + pair // R, tl.sum(do * o, 1), mask=pairs)
    if gain is not None:
        tl.store(part_gain + g * D + col, sum_gain, mask=cols)


@triton.jit(do_not_specialize=["N", "S", "R", "G"])
def _sources(
    table,
    grads,
    query,
    bias,
    present,
    inner,
    delta,
    score,
    inverse,
    lse,
    part_query,
    part_bias,
    N,
    S,
    R,
    D,
    G,
    query_r,
    query_s,
    SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradients of one source over a share of the rows, and partials of its queries and biases."""
    # The source runs fastest, so that programs of the same rows meet in the cache.
    j, g = tl.program_id(0) % S, tl.program_id(0) // S
    col = tl.arange(0, BLOCK_D)
    read = tl.arange(0, BLOCK_R)
    cols, reads = col < D, read < R
    source = tl.multiple_of(tl.load(table + j).to(tl.pointer_type(DTYPE)), 16)
    target = tl.multiple_of(tl.load(grads + j).to(tl.pointer_type(DTYPE)), 16)
    parameter_in = reads[:, None] & cols[None, :]
    q_at = read[:, None] * query_r + j * query_s + col[None, :]
    q = tl.load(query + q_at, mask=parameter_in, other=0.0).to(ACC)
    b = tl.zeros([BLOCK_R], ACC)
    if bias is not None:
        b = tl.load(bias + read * S + j, mask=reads, other=0.0).to(ACC)
    sum_query = tl.zeros([BLOCK_R, BLOCK_D], ACC)
    sum_bias = tl.zeros([BLOCK_R], ACC)
    for block in range(g, tl.cdiv(N, BLOCK_N), G):
        row = (block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        rows = row < N
        at = row[:, None] * D + col[None, :]
        inside = rows[:, None] & cols[None, :]
        both = reads[:, None] & rows[None, :]
        by_read = read[:, None] * N.to(tl.int64) + row[None, :]
        s = tl.load(source + at, mask=inside, other=0.0).to(ACC)
        do_at = (row[None, :, None] * R + read[:, None, None]) * D + col[None, None, :]
        do_in = both[:, :, None] & cols[None, None, :]
        do = tl.load(inner + do_at, mask=do_in, other=0.0).to(ACC)
        rho = tl.load(inverse + j * N.to(tl.int64) + row, mask=rows, other=0.0)
        c_at = (read[:, None] * S + j) * N.to(tl.int64) + row[None, :]
        c = tl.load(score + c_at, mask=both, other=0.0)
        # Rows and reads that are padding get no weight.
        away = tl.load(lse + by_read, mask=both, other=float("inf"))
        alpha = tl.exp((c + b[:, None]) / SCALE - away)
        if present is not None:
            here = tl.load(present + j * N.to(tl.int64) + row, mask=rows, other=0)
            alpha = tl.where(here[None, :] != 0, alpha, 0.0)
        reached = tl.sum(do * s[None, :, :], 2)
        dl = alpha * (reached - tl.load(delta + by_read, mask=both, other=0.0)) / SCALE
        along = dl * rho[None, :]
        shrink = tl.sum(along * c, 0) * rho / D
        ds = tl.sum(alpha[:, :, None] * do + along[:, :, None] * q[:, None, :], 0)
        ds -= shrink[:, None] * s
        tl.store(target + at, ds.to(DTYPE), mask=inside)
        sum_query += tl.sum(along[:, :, None] * s[None, :, :], 1)
        sum_bias += tl.sum(dl, 1)
    part_at = (g * R + read) * S + j
    tl.store(part_query + part_at[:, None] * D + col[None, :], sum_query, mask=parameter_in)
    if bias is not None:
        tl.store(part_bias + part_at, sum_bias, mask=reads)


def plan_forward(
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None,
    present: Tensor | None,
    gain: Tensor | None,
    scale: float,
    eps: float,
    norm_eps: float | None,
) -> tuple[list[Launch], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """The launch, and what it fills: out, raw, score, inverse, lse (`lrt_kernels.depth_read`).

    Args:
        sources: S of ``(N, d)``.
        query: ``(R, S, d)``, its last axis in one piece.
        bias: ``(R, S)``.
        present: ``(S, N)`` uint8.
        gain: ``(d,)``.
        scale: divides the logits.
        eps: of the keys' norm.
        norm_eps: of the output's norm; None is no norm.
    """
    (n, d), count, reads = sources[0].shape, len(sources), query.shape[0]
    like = sources[0]
    numbers = wide(like.dtype)
    out = like.new_empty(n, reads, d)
    raw = torch.empty_like(out) if norm_eps is not None else like.new_empty(0)
    score = like.new_empty(reads, count, n, dtype=numbers)
    inverse = like.new_empty(count, n, dtype=numbers)
    lse = like.new_empty(reads, n, dtype=numbers)
    block_r, block_d = power_of_two(reads), power_of_two(d)
    block_n = rows_per_program(block_r * block_d)
    launch = Launch(
        "depth_read",
        _forward,
        ceil_div(n, block_n),
        {
            "table": pointers(sources),
            "query": query,
            "bias": bias,
            "present": present,
            "gain": gain,
            "out": out,
            "raw": raw if norm_eps is not None else None,
            "score": score,
            "inverse": inverse,
            "lse": lse,
            **{"N": n, "S": count, "R": reads, "D": d},
            **{"query_r": query.stride(0), "query_s": query.stride(1)},
        },
        {
            **{"EPS": eps, "SCALE": scale, "NORM_EPS": norm_eps},
            **{"DTYPE": DTYPES[like.dtype], "ACC": accumulator(like.dtype)},
            **{"BLOCK_N": block_n, "BLOCK_R": block_r, "BLOCK_D": block_d},
        },
        warps=8 if block_n * block_r * block_d >= 4096 else 4,
    )
    return [launch], (out, raw, score, inverse, lse)


def plan_backward(
    grad: Tensor,
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None,
    present: Tensor | None,
    gain: Tensor | None,
    saved: Sequence[Tensor],
    scale: float,
    norm_eps: float | None,
) -> tuple[list[Launch], list[Tensor], dict[str, Tensor]]:
    """Both launches, the sources' gradients, and partials of query, bias and gain to be summed.

    Args:
        grad: ``(N, R, d)``.
        saved: the mixture before its norm, ``(N, R, d)``, then score, inverse and lse.
        others: as in `plan_forward`.
    """
    out, score, inverse, lse = saved
    (n, d), count, reads = sources[0].shape, len(sources), query.shape[0]
    like, numbers = sources[0], score.dtype
    constants = {"DTYPE": DTYPES[like.dtype], "ACC": accumulator(like.dtype)}
    block_r, block_d = power_of_two(reads), power_of_two(d)
    rows = rows_per_program(block_d)
    shares = max(1, min(PROGRAMS, ceil_div(n * reads, rows)))
    delta = like.new_empty(reads, n, dtype=numbers)
    inner = grad if norm_eps is None else torch.empty_like(grad, dtype=numbers)
    partials = {} if gain is None else {"gain": like.new_empty(shares, d, dtype=numbers)}
    outputs = Launch(
        "depth_read outputs",
        _outputs,
        shares,
        {
            **{"grad": grad, "out": out, "gain": gain},
            "inner": inner if norm_eps is not None else None,
            **{"delta": delta, "part_gain": partials.get("gain")},
            **{"N": n, "R": reads, "D": d, "G": shares},
        },
        {"NORM_EPS": norm_eps, **constants, "BLOCK_N": rows, "BLOCK_D": block_d},
        warps=8 if rows * block_d >= 4096 else 4,
    )
    rows = rows_per_program(block_r * block_d)
    shares = max(1, min(ceil_div(PROGRAMS, count), ceil_div(n, rows)))
    partials["query"] = like.new_empty(shares, reads, count, d, dtype=numbers)
    if bias is not None:
        partials["bias"] = like.new_empty(shares, reads, count, dtype=numbers)
    grads = [torch.empty_like(source) for source in sources]
    own = Launch(
        "depth_read sources",
        _sources,
        count * shares,
        {
            **{"table": pointers(sources), "grads": pointers(grads), "query": query},
            **{"bias": bias, "present": present, "inner": inner, "delta": delta},
            **{"score": score, "inverse": inverse, "lse": lse},
            **{"part_query": partials["query"], "part_bias": partials.get("bias")},
            **{"N": n, "S": count, "R": reads, "D": d, "G": shares},
            **{"query_r": query.stride(0), "query_s": query.stride(1)},
        },
        {
            "SCALE": scale,
            **constants,
            **{"BLOCK_N": rows, "BLOCK_R": block_r, "BLOCK_D": block_d},
        },
        warps=8 if rows * block_r * block_d >= 4096 else 4,
    )
    return [outputs, own], grads, partials


def forward(
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None,
    present: Tensor | None,
    gain: Tensor | None,
    scale: float,
    eps: float,
    norm_eps: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Runs `plan_forward`; ``present`` is bool."""
    launches, filled = plan_forward(
        sources, *_prepared(query, bias, present, gain), scale, eps, norm_eps
    )
    for launch in launches:
        launch.run()
    return filled


def backward(
    grad: Tensor,
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None,
    present: Tensor | None,
    gain: Tensor | None,
    saved: Sequence[Tensor],
    scale: float,
    norm_eps: float | None,
) -> list[Tensor]:
    """Runs `plan_backward` and adds up the partials."""
    launches, grads, partials = plan_backward(
        grad, sources, *_prepared(query, bias, present, gain), saved, scale, norm_eps
    )
    for launch in launches:
        launch.run()
    parameters = {"query": query, "bias": bias, "gain": gain}
    sums = [
        query.new_empty(0) if tensor is None else partials[name].sum(0).to(tensor.dtype)
        for name, tensor in parameters.items()
    ]
    return [*sums, *grads]


def _prepared(
    query: Tensor, bias: Tensor | None, present: Tensor | None, gain: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Parameters as the kernels index them; a query that sources share stays one."""
    return (
        query if query.stride(2) == 1 else query.contiguous(),
        None if bias is None else bias.contiguous(),
        None if present is None else present.view(torch.uint8),
        None if gain is None else gain.contiguous(),
    )
