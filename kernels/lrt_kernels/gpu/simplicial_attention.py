"""Kernels of `lrt_kernels.simplicial_attention`: over tiles of queries, and over tiles of keys.

The rows of a tile of queries are pairs (position, head) of one key head, the heads of a position
side by side, so that few heads or few positions still fill a matrix product. The narrow window's
positions k are taken one by one, elementwise, and for each of them the wide window's in tiles. With
a_k = q * k'_k and c_k = do * v'_k,

    S_k = scale a_k K^T,        P_k = exp(S_k - lse),        o = sum_k (P_k V) * v'_k
    dS_k = scale P_k * (c_k V^T - delta),                    delta = do . o

    dq = sum_k (dS_k K) * k'_k,      dk'_k = sum over rows of q * (dS_k K)
                                     dv'_k = sum over rows of do * (P_k V)
    dK = sum_k dS_k^T a_k,           dV = sum_k P_k^T c_k

The first three gradients share their products, so one kernel over tiles of queries makes them, and
what a tile adds to k' and v' is written apart and added up tile by tile. The last two have a kernel
over tiles of keys. There are no atomics: the same bits every time.

Backward, scores stand keys first. A tile that was loaded, or written to shared memory, is then
either operand of a product, and no registers hold one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.backend import interpreted
from lrt_kernels.gpu.launch import (
    DTYPES,
    Launch,
    accumulator,
    ceil_div,
    power_of_two,
    rows_per_program,
)
from lrt_kernels.precision import wide

#: Rows of a tile of queries, forward and backward, and positions of a tile of keys, at most: for
#: WIDTH features of two bytes, and fewer in proportion for more, so that they fit registers.
FORWARD, BACKWARD, KEYS, WIDTH = 64, 32, 64, 128
#: Bytes for what tiles add to k' and v', unless one key head needs more.
SCRATCH = 1 << 28

# A position that sees none. Distances are compared as unsigned numbers, where what is later is far.
FAR = tl.constexpr(-(1 << 30))
# What changes from call to call must not compile a kernel anew.
CHANGING = ["START", "STEP", "P", "N", "W1", "W2", "G", "PAIR", "SPAN"]


@triton.jit(do_not_specialize=CHANGING)
def _forward(
    q,
    k1,
    k2,
    v1,
    v2,
    document,
    out,
    lse,
    START,
    STEP,
    P,
    N,
    W1,
    W2,
    G,
    R: tl.constexpr,
    D: tl.constexpr,
    SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
    OPERAND: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(P * R, BLOCK_M)
    m, pair = tl.program_id(0) % tiles * BLOCK_M, tl.program_id(0) // tiles
    b, g = (pair // G).to(tl.int64), pair % G
    row = m + tl.arange(0, BLOCK_M)
    rows = row < P * R
    first = START + m // R * STEP
    i = tl.where(rows, START + row // R * STEP, FAR)
    last = START + (tl.minimum(m + BLOCK_M, P * R) - 1) // R * STEP
    col, step = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_J)
    cols = col < D
    # Offsets within a tile are 32 bits wide, and those of tiles 64.
    base = (b * P + m // R) * G * R + g * R
    at = (row // R - m // R) * G * R + row % R
    within = at[:, None] * D + col[None, :]
    inside = rows[:, None] & cols[None, :]
    kv_base = (b * N * G + g) * D
    own = i
    if document is not None:
        document += b * N
        own = tl.load(document + i, mask=rows, other=0)
    query = tl.load(q + base * D + within, mask=inside, other=0.0).to(OPERAND)
    top = tl.full([BLOCK_M], -float("inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], ACC)
    for k in range(tl.maximum(first - W2 + 1, 0), last + 1):
        near = (i - k).to(tl.uint32, bitcast=True) < W2.to(tl.uint32)
        if document is not None:
            near = near & (own == tl.load(document + k))
        mine = tl.where(near, i, FAR)
        pair_at = kv_base + tl.cast(k, tl.int64) * G * D
        pair_k = tl.load(k2 + pair_at + col, mask=cols, other=0.0).to(OPERAND)
        a = query * pair_k[None, :]
        before = top
        part = tl.zeros([BLOCK_M, BLOCK_D], ACC)
        # Of the rows that see k. Bounds that vary with k also keep addresses out of registers.
        begin = tl.maximum(tl.maximum(first, k) - W1 + 1, 0)
        for j0 in range(begin, tl.minimum(last, k + W2 - 1) + 1, BLOCK_J):
            j = j0 + step
            here = (j <= last)[:, None] & cols[None, :]
            kv_at = j[:, None] * (G * D) + col[None, :]
            keys = tl.load(k1 + kv_base + kv_at, mask=here, other=0.0).to(OPERAND)
            values = tl.load(v1 + kv_base + kv_at, mask=here, other=0.0).to(OPERAND)
            s = tl.dot(a, tl.trans(keys), input_precision="ieee", out_dtype=ACC) * SCALE
            back = (mine[:, None] - j[None, :]).to(tl.uint32, bitcast=True)
            seen = back < W1.to(tl.uint32)
            if document is not None:
                theirs = tl.load(document + j, mask=j <= last, other=0)
                seen = seen & (own[:, None] == theirs[None, :])
            s = tl.where(seen, s, -float("inf"))
            new = tl.maximum(top, tl.max(s, 1))
            # Nothing seen so far: -inf less itself is no number.
            safe = tl.where(new == -float("inf"), 0.0, new)
            keep, p = tl.exp(top - safe), tl.exp(s - safe[:, None])
            total = total * keep + tl.sum(p, 1)
            p = p.to(OPERAND)
            part = part * keep[:, None]
            part = tl.dot(p, values, part, input_precision="ieee", out_dtype=ACC)
            top = new
        pair_v = tl.load(v2 + pair_at + col, mask=cols, other=0.0).to(ACC)
        keep = tl.exp(before - tl.where(top == -float("inf"), 0.0, top))
        mixed = mixed * keep[:, None] + part * pair_v[None, :]
    # Rows that are padding see nothing.
    total = tl.where(rows, total, 1.0)
    tl.store(lse + base + at, top + tl.log(total), mask=rows)
    mixed = mixed / total[:, None]
    tl.store(out + base * D + within, mixed.to(DTYPE), mask=inside)


@triton.jit(do_not_specialize=CHANGING)
def _queries(
    q,
    k1,
    k2,
    v1,
    v2,
    document,
    grad,
    out,
    lse,
    delta,
    dq,
    part_k,
    part_v,
    START,
    STEP,
    P,
    N,
    W1,
    W2,
    G,
    PAIR,
    SPAN,
    R: tl.constexpr,
    D: tl.constexpr,
    SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
    OPERAND: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradients of a tile of queries, do . o, and what the tile adds to every k' and v' it sees."""
    tiles = tl.cdiv(P * R, BLOCK_M)
    m, pair = tl.program_id(0) % tiles * BLOCK_M, PAIR + tl.program_id(0) // tiles
    b, g = (pair // G).to(tl.int64), pair % G
    row = m + tl.arange(0, BLOCK_M)
    rows = row < P * R
    first = START + m // R * STEP
    i = tl.where(rows, START + row // R * STEP, FAR)
    last = START + (tl.minimum(m + BLOCK_M, P * R) - 1) // R * STEP
    col, step = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_J)
    cols = col < D
    base = (b * P + m // R) * G * R + g * R
    at = (row // R - m // R) * G * R + row % R
    within = at[:, None] * D + col[None, :]
    inside = rows[:, None] & cols[None, :]
    kv_base = (b * N * G + g) * D
    own = i
    if document is not None:
        document += b * N
        own = tl.load(document + i, mask=rows, other=0)
    do = tl.load(grad + base * D + within, mask=inside, other=0.0)
    o = tl.load(out + base * D + within, mask=inside, other=0.0)
    inner = tl.sum(do.to(ACC) * o.to(ACC), 1)
    tl.store(delta + base + at, inner, mask=rows)
    away = tl.load(lse + base + at, mask=rows, other=0.0)
    total = tl.zeros([BLOCK_D, BLOCK_M], ACC)
    low = first - W2 + 1
    for k in range(tl.maximum(low, 0), last + 1):
        near = (i - k).to(tl.uint32, bitcast=True) < W2.to(tl.uint32)
        if document is not None:
            near = near & (own == tl.load(document + k))
        mine = tl.where(near, i, FAR)
        pair_at = kv_base + tl.cast(k, tl.int64) * G * D
        pair_k = tl.load(k2 + pair_at + col, mask=cols, other=0.0).to(OPERAND)
        pair_v = tl.load(v2 + pair_at + col, mask=cols, other=0.0).to(OPERAND)
        # Loaded again where they are needed again: there are no registers to keep them in.
        query = tl.load(q + base * D + within, mask=inside, other=0.0).to(OPERAND)
        do = tl.load(grad + base * D + within, mask=inside, other=0.0).to(OPERAND)
        a = query * pair_k[None, :]
        c = do * pair_v[None, :]
        from_keys = tl.zeros([BLOCK_D, BLOCK_M], ACC)
        from_values = tl.zeros([BLOCK_D, BLOCK_M], ACC)
        # Of the rows that see k. Bounds that vary with k also keep addresses out of registers.
        begin = tl.maximum(tl.maximum(first, k) - W1 + 1, 0)
        for j0 in range(begin, tl.minimum(last, k + W2 - 1) + 1, BLOCK_J):
            j = j0 + step
            here = (j <= last)[:, None] & cols[None, :]
            kv_at = j[:, None] * (G * D) + col[None, :]
            keys = tl.load(k1 + kv_base + kv_at, mask=here, other=0.0).to(OPERAND)
            values = tl.load(v1 + kv_base + kv_at, mask=here, other=0.0).to(OPERAND)
            s = tl.dot(keys, tl.trans(a), input_precision="ieee", out_dtype=ACC) * SCALE
            back = (mine[None, :] - j[:, None]).to(tl.uint32, bitcast=True)
            seen = back < W1.to(tl.uint32)
            if document is not None:
                theirs = tl.load(document + j, mask=j <= last, other=0)
                seen = seen & (theirs[:, None] == own[None, :])
            p = tl.exp(tl.where(seen, s - away[None, :], -float("inf")))
            dp = tl.dot(values, tl.trans(c), input_precision="ieee", out_dtype=ACC)
            ds = (p * (dp - inner[None, :]) * SCALE).to(OPERAND)
            p = p.to(OPERAND)
            k_t, v_t = tl.trans(keys), tl.trans(values)
            from_keys = tl.dot(k_t, ds, from_keys, input_precision="ieee", out_dtype=ACC)
            from_values = tl.dot(v_t, p, from_values, input_precision="ieee", out_dtype=ACC)
        total += from_keys * pair_k.to(ACC)[:, None]
        part_at = (tl.program_id(0).to(tl.int64) * SPAN + (k - low)) * D
        query = tl.load(q + base * D + within, mask=inside, other=0.0).to(OPERAND)
        k_sum = tl.sum(from_keys * tl.trans(query).to(ACC), 1)
        tl.store(part_k + part_at + col, k_sum, mask=cols)
        do = tl.load(grad + base * D + within, mask=inside, other=0.0).to(OPERAND)
        v_sum = tl.sum(from_values * tl.trans(do).to(ACC), 1)
        tl.store(part_v + part_at + col, v_sum, mask=cols)
    tl.store(dq + base * D + within, tl.trans(total.to(DTYPE)), mask=inside)


@triton.jit(do_not_specialize=CHANGING)
def _sums(
    part_k,
    part_v,
    dk2,
    dv2,
    START,
    STEP,
    P,
    N,
    W2,
    G,
    PAIR,
    SPAN,
    R: tl.constexpr,
    D: tl.constexpr,
    DTYPE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradients of k' and v': what the tiles of queries add, first tile first."""
    tiles, blocks = tl.cdiv(P * R, BLOCK_M), tl.cdiv(N, BLOCK_N)
    n, local = tl.program_id(0) % blocks * BLOCK_N, tl.program_id(0) // blocks
    b, g = ((PAIR + local) // G).to(tl.int64), (PAIR + local) % G
    k, col = n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    cols = col < D
    sum_k = tl.zeros([BLOCK_N, BLOCK_D], ACC)
    sum_v = tl.zeros([BLOCK_N, BLOCK_D], ACC)
    begin = tl.cdiv(tl.maximum(n - START, 0), STEP) * R
    stop = tl.minimum(tl.cdiv(n + BLOCK_N - 1 + W2 - START, STEP), P) * R
    for tile in range(begin // BLOCK_M, tl.cdiv(stop, BLOCK_M)):
        m = tile * BLOCK_M
        low = START + m // R * STEP - W2 + 1
        last = START + (tl.minimum(m + BLOCK_M, P * R) - 1) // R * STEP
        wrote = (k >= tl.maximum(low, 0)) & (k <= last) & (k < N)
        slot = (local * tiles + tile).to(tl.int64) * SPAN + (k - low)
        at, inside = slot[:, None] * D + col[None, :], wrote[:, None] & cols[None, :]
        sum_k += tl.load(part_k + at, mask=inside, other=0.0)
        sum_v += tl.load(part_v + at, mask=inside, other=0.0)
    at = ((b * N + k) * G + g)[:, None] * D + col[None, :]
    inside = (k < N)[:, None] & cols[None, :]
    tl.store(dk2 + at, sum_k.to(DTYPE), mask=inside)
    tl.store(dv2 + at, sum_v.to(DTYPE), mask=inside)


@triton.jit(do_not_specialize=CHANGING)
def _keys(
    q,
    k1,
    k2,
    v1,
    v2,
    document,
    grad,
    lse,
    delta,
    dk1,
    dv1,
    START,
    STEP,
    P,
    N,
    W1,
    W2,
    G,
    R: tl.constexpr,
    D: tl.constexpr,
    SCALE: tl.constexpr,
    DTYPE: tl.constexpr,
    OPERAND: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradients of a tile of k and v."""
    tiles = tl.cdiv(N, BLOCK_J)
    j0, pair = tl.program_id(0) % tiles * BLOCK_J, tl.program_id(0) // tiles
    b, g = (pair // G).to(tl.int64), pair % G
    j, col = j0 + tl.arange(0, BLOCK_J), tl.arange(0, BLOCK_D)
    cols = col < D
    here = (j < N)[:, None] & cols[None, :]
    kv_base = (b * N * G + g) * D
    tile_at = kv_base + j0.to(tl.int64) * G * D
    kv_at = tl.arange(0, BLOCK_J)[:, None] * G * D + col[None, :]
    keys = tl.load(k1 + tile_at + kv_at, mask=here, other=0.0).to(OPERAND)
    values = tl.load(v1 + tile_at + kv_at, mask=here, other=0.0).to(OPERAND)
    theirs = j
    if document is not None:
        document += b * N
        theirs = tl.load(document + j, mask=j < N, other=0)
    sum_k = tl.zeros([BLOCK_J, BLOCK_D], ACC)
    sum_v = tl.zeros([BLOCK_J, BLOCK_D], ACC)
    # The queries that see one of the keys, and all positions that those see in the narrow window.
    end = j0 + BLOCK_J - 1 + W1
    begin = tl.cdiv(tl.maximum(j0 - START, 0), STEP)
    stop = tl.minimum(tl.cdiv(end - START, STEP), P)
    low = tl.maximum(START + begin * STEP - W2 + 1, 0)
    for k in range(low, START + (stop - 1) * STEP + 1):
        pair_at = kv_base + tl.cast(k, tl.int64) * G * D
        pair_k = tl.load(k2 + pair_at + col, mask=cols, other=0.0).to(OPERAND)
        pair_v = tl.load(v2 + pair_at + col, mask=cols, other=0.0).to(OPERAND)
        begin = tl.cdiv(tl.maximum(tl.maximum(k, j0) - START, 0), STEP) * R
        far = tl.minimum(tl.cdiv(tl.minimum(k + W2, end) - START, STEP), P) * R
        for m in range(begin, far, BLOCK_M):
            # From a position's first head on.
            row = tl.arange(0, BLOCK_M) + m % R
            rows = m - m % R + row < far
            place = m // R + row // R
            i = START + place * STEP
            base = (b * P + m // R) * G * R + g * R
            at = row // R * G * R + row % R
            within = at[:, None] * D + col[None, :]
            inside = rows[:, None] & cols[None, :]
            query = tl.load(q + base * D + within, mask=inside, other=0.0).to(OPERAND)
            do = tl.load(grad + base * D + within, mask=inside, other=0.0).to(OPERAND)
            inner = tl.load(delta + base + at, mask=rows, other=0.0)
            away = tl.load(lse + base + at, mask=rows, other=0.0)
            a = query * pair_k[None, :]
            c = do * pair_v[None, :]
            s = tl.dot(keys, tl.trans(a), input_precision="ieee", out_dtype=ACC) * SCALE
            # Every row here sees k, but for documents.
            near = rows
            if document is not None:
                own = tl.load(document + i, mask=rows, other=0)
                near = near & (own == tl.load(document + k))
            mine = tl.where(near, i, FAR)
            back = (mine[None, :] - j[:, None]).to(tl.uint32, bitcast=True)
            seen = back < W1.to(tl.uint32)
            if document is not None:
                seen = seen & (theirs[:, None] == own[None, :])
            p = tl.exp(tl.where(seen, s - away[None, :], -float("inf")))
            dp = tl.dot(values, tl.trans(c), input_precision="ieee", out_dtype=ACC)
            ds = (p * (dp - inner[None, :]) * SCALE).to(OPERAND)
            p = p.to(OPERAND)
            sum_v = tl.dot(p, c, sum_v, input_precision="ieee", out_dtype=ACC)
            sum_k = tl.dot(ds, a, sum_k, input_precision="ieee", out_dtype=ACC)
    tl.store(dk1 + tile_at + kv_at, sum_k.to(DTYPE), mask=here)
    tl.store(dv1 + tile_at + kv_at, sum_v.to(DTYPE), mask=here)


def plan_forward(
    q: Tensor,
    k1: Tensor,
    k2: Tensor,
    v1: Tensor,
    v2: Tensor,
    document: Tensor | None,
    where: tuple[int, int],
    windows: tuple[int, int],
    scale: float,
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    """The launch, and what it fills: the outputs ``(B, P, H, d)`` and lse ``(B, P, H)``.

    Args:
        q: queries ``(B, P, H, d)``; every tensor is in one piece.
        k1, k2: keys ``(B, N, G, d)``.
        v1, v2: values, the same.
        document: ``(B, N)`` int32; None is one document.
        where: the first query's position, and the step to the next one's.
        windows: of k1 and k2; the first, taken in tiles, is best the wider one.
        scale: of the scores.
    """
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=wide(q.dtype))
    blocks = _blocks(q, k1, FORWARD)
    if document is not None:
        # Those of a tile's keys take registers, too.
        blocks["BLOCK_J"] = max(16, blocks["BLOCK_J"] // 2)
    launch = Launch(
        "simplicial",
        _forward,
        _tiles(q, k1, blocks) * k1.shape[0] * k1.shape[2],
        {
            **{"q": q, "k1": k1, "k2": k2, "v1": v1, "v2": v2, "document": document},
            **{"out": out, "lse": lse},
            **_sizes(q, k1, where, windows),
        },
        {**_constants(q, k1, scale), **blocks},
        warps=_warps(blocks),
    )
    return [launch], (out, lse)


def plan_backward(
    grad: Tensor,
    q: Tensor,
    k1: Tensor,
    k2: Tensor,
    v1: Tensor,
    v2: Tensor,
    out: Tensor,
    lse: Tensor,
    document: Tensor | None,
    where: tuple[int, int],
    windows: tuple[int, int],
    scale: float,
) -> tuple[list[Launch], list[Tensor]]:
    """The launches, in order, and the gradients of q, k1, k2, v1 and v2 that they fill.

    Args:
        grad: of the outputs ``(B, P, H, d)``.
        out, lse: of `plan_forward`.
        others: as in `plan_forward`.
    """
    inputs = {"q": q, "k1": k1, "k2": k2, "v1": v1, "v2": v2}
    filled = {f"d{name}": torch.empty_like(x) for name, x in inputs.items()}
    delta = torch.empty_like(lse)
    blocks, d = _blocks(q, k1, BACKWARD), q.shape[-1]
    sizes, constants = _sizes(q, k1, where, windows), _constants(q, k1, scale)
    common = {**inputs, "document": document, "grad": grad, "lse": lse, "delta": delta, **sizes}
    tiles, (batch, length, groups, _) = _tiles(q, k1, blocks), k1.shape
    # Positions that a tile sees in the narrow window: its rows' own, and the window before them.
    span = windows[1] + where[1] * ceil_div(blocks["BLOCK_M"] - 1, constants["R"])
    pairs, bytes_of_one = batch * groups, 2 * lse.element_size() * tiles * span * d
    slab = max(1, min(pairs, SCRATCH // bytes_of_one))
    parts = {name: lse.new_empty(slab, tiles, span, d) for name in ("part_k", "part_v")}
    rows = rows_per_program(power_of_two(d))
    launches = []
    for pair in range(0, pairs, slab):
        own, here = min(slab, pairs - pair), {"PAIR": pair, "SPAN": span}
        launches += [
            Launch(
                "simplicial queries",
                _queries,
                tiles * own,
                {**common, "out": out, "dq": filled["dq"], **parts, **here},
                {**constants, **blocks},
                warps=_warps(blocks),
            ),
            Launch(
                "simplicial sums",
                _sums,
                ceil_div(length, rows) * own,
                {
                    **{**parts, "dk2": filled["dk2"], "dv2": filled["dv2"], **here},
                    **{name: size for name, size in sizes.items() if name != "W1"},
                },
                {
                    **{name: constants[name] for name in ("R", "D", "DTYPE", "ACC")},
                    **{"BLOCK_M": blocks["BLOCK_M"], "BLOCK_N": rows},
                    "BLOCK_D": power_of_two(d),
                },
            ),
        ]
    launches.append(
        Launch(
            "simplicial keys",
            _keys,
            ceil_div(length, blocks["BLOCK_J"]) * pairs,
            {**common, "dk1": filled["dk1"], "dv1": filled["dv1"]},
            {**constants, **blocks},
            warps=_warps(blocks),
        )
    )
    return launches, list(filled.values())


def forward(*args: Any) -> tuple[Tensor, Tensor]:
    """Runs `plan_forward`."""
    launches, filled = plan_forward(*args)
    for launch in launches:
        launch.run()
    return filled


def backward(*args: Any) -> list[Tensor]:
    """Runs `plan_backward`."""
    launches, filled = plan_backward(*args)
    for launch in launches:
        launch.run()
    return filled


def _blocks(q: Tensor, k1: Tensor, rows: int) -> dict[str, int]:
    """Sizes of tiles; a matrix product takes 16 of anything at least."""
    block_d = max(16, power_of_two(q.shape[-1]))
    have = q.shape[1] * q.shape[2] // k1.shape[2]
    narrower = ceil_div(block_d * q.element_size(), 2 * WIDTH)
    return {
        "BLOCK_M": max(16, min(rows // narrower, power_of_two(have))),
        "BLOCK_J": max(16, KEYS // narrower),
        "BLOCK_D": block_d,
    }


def _warps(blocks: dict[str, int]) -> int:
    return 8 if blocks["BLOCK_M"] * blocks["BLOCK_D"] >= BACKWARD * WIDTH else 4


def _tiles(q: Tensor, k1: Tensor, blocks: dict[str, int]) -> int:
    """Tiles of the queries of one key head."""
    return ceil_div(q.shape[1] * q.shape[2] // k1.shape[2], blocks["BLOCK_M"])


def _sizes(
    q: Tensor, k1: Tensor, where: tuple[int, int], windows: tuple[int, int]
) -> dict[str, int]:
    return {
        **{"START": where[0], "STEP": where[1], "P": q.shape[1], "N": k1.shape[1]},
        **{"W1": windows[0], "W2": windows[1], "G": k1.shape[2]},
    }


def _constants(q: Tensor, k1: Tensor, scale: float) -> dict[str, Any]:
    dtype = DTYPES[q.dtype]
    # The interpreter multiplies narrow numbers bit pattern by bit pattern, and truncates them.
    exact = interpreted() and q.device.type == "cpu"
    return {
        **{"R": q.shape[2] // k1.shape[2], "D": q.shape[3], "SCALE": scale},
        **{"DTYPE": dtype, "OPERAND": DTYPES[wide(q.dtype)] if exact else dtype},
        "ACC": accumulator(q.dtype),
    }
