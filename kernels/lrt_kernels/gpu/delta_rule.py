"""Kernels of `lrt_kernels.delta_rule`: chunks are prepared at once, states carried through them.

Forward, in the words of the operation's equation, with P = Q K^T * D and c the row D_C:

    prepare   T, P, e and c of every chunk at once
    carry     R = T b (V - e K H),      O = scale (e Q H + P R),      H' = e_C H + K^T (c R)

b, e and c multiply rows. Each program of the carry has all keys and a few columns of the values,
which do not meet. Backward keeps H and R of every chunk, and runs in the opposite order: with dH'
the gradient of the state after a chunk

    carry     dR = scale P^T dO + c K dH',      Y = T^T dR,
              dH = e_C dH' + scale Q^T (e dO) - K^T (b e Y)

and then, every chunk at once,

    pairs     A = Y R^T,   B = dO R^T,   M = tril(b A * D, -1),   dV = b Y
    features  dQ = scale (e dO H^T + (B * D) K)
              dK = c R dH'^T - b e Y H^T + scale (B * D)^T Q - (M + M^T) K

Gradients of b and g are sums over the same products. B * D and M go through memory, where they are
read transposed: the transpose of a product that is still in registers is what Triton before 3.7.1
gets wrong on Hopper (github.com/fla-org/flash-linear-attention/issues/640), and room in registers
is what a kernel of both parts lacks.

Nothing is summed over programs, so all results are the same bits every time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import DTYPES, Launch, accumulator, ceil_div, power_of_two


class Inputs(NamedTuple):
    """What every kernel is given, each in one piece.

    Attributes:
        q, k: ``(B, T, H, K)``.
        v: ``(B, T, H, V)``.
        beta, log_decay: ``(B, T, H)``.
        state: ``(B, H, K, V)``.
        start: ``(B, T)`` uint8.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor | None
    state: Tensor | None
    start: Tensor | None


class Kept(NamedTuple):
    """What backward takes from forward, by chunk; products' dtype but for the last two.

    Attributes:
        states: before each chunk, ``(B, H, N, K, V)``.
        writes: R ``(B, H, N, C, V)``.
        inverse: T ``(B, H, N, C, C)``.
        scores: P, the same.
        entry: e ``(B, H, N, C)``.
        onward: c, the same.
    """

    states: Tensor
    writes: Tensor
    inverse: Tensor
    scores: Tensor
    entry: Tensor
    onward: Tensor


@triton.jit
def _decays(g, begun, DECAY: tl.constexpr, C: tl.constexpr, ACC: tl.constexpr):
    """D ``(C, C)``."""
    row, col = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    seen = (row >= col) & (begun[:, None] == begun[None, :])
    if DECAY:
        sums = tl.cumsum(tl.where(row > col, g[:, None], 0.0), 0)
        # Masked before exp, where what is not seen would overflow.
        return tl.exp(tl.where(seen, sums, float("-inf")))
    else:
        return seen.to(ACC)


@triton.jit
def _inverse(lower, C: tl.constexpr, ACC: tl.constexpr, SOLVE: tl.constexpr):
    """(I + lower)^-1 of a strictly lower triangle, from the inverses of ever larger blocks.

    The inverse of two blocks with L below is that of each, with -T L T below.
    """
    row, col = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    below = (row % 2 == 1) & (col == row - 1)
    inverse = tl.where(row == col, 1.0, tl.where(below, -lower, 0.0)).to(ACC)
    size = 2
    while size < C:
        below = ((row // size) % 2 == 1) & (col // size == row // size - 1)
        part = tl.dot(inverse, tl.where(below, lower, 0.0), input_precision=SOLVE)
        inverse -= tl.dot(part, inverse, input_precision=SOLVE)
        size *= 2
    return inverse


@triton.jit(do_not_specialize=["T", "N"])
def _prepare(
    q,
    k,
    beta,
    log_decay,
    start,
    inverse,
    scores,
    entry,
    onward,
    T,
    N,
    H,
    K: tl.constexpr,
    DOT: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    SOLVE: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """T, P, e and c of one chunk of one head."""
    chunk, head = tl.program_id(0) % N, (tl.program_id(0) // N).to(tl.int64)
    row, col = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    step = tl.arange(0, C)
    rows = step < T - chunk * C
    # The chunk's place is 64 bits wide, those of its rows are counted from there.
    first = ((head // H) * T + chunk * C) * H + head % H
    qk, kk = tl.zeros([C, C], ACC), tl.zeros([C, C], ACC)
    for low in range(0, K, BLOCK_K):
        feature = low + tl.arange(0, BLOCK_K)
        inside = rows[:, None] & (feature < K)[None, :]
        here = step[:, None] * (H * K) + feature[None, :]
        keys = tl.load(k + first * K + here, mask=inside, other=0.0).to(DOT)
        queries = tl.load(q + first * K + here, mask=inside, other=0.0).to(DOT)
        qk += tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        kk += tl.dot(keys, tl.trans(keys), input_precision=PRECISION)
    b = tl.load(beta + first + step * H, mask=rows, other=0.0).to(ACC)
    g, begun = tl.zeros([C], ACC), tl.zeros([C], tl.int32)
    if log_decay is not None:
        g = tl.load(log_decay + first + step * H, mask=rows, other=0.0).to(ACC)
    if start is not None:
        began = tl.load(start + (head // H) * T + chunk * C + step, mask=rows, other=0)
        begun = tl.cumsum(began.to(tl.int32), 0)
    decay = _decays(g, begun, log_decay is not None, C, ACC)
    lower = tl.where(row > col, b[:, None] * kk * decay, 0.0)
    solved = _inverse(lower, C, ACC, SOLVE)
    own = head * N + chunk
    square = row * C + col
    tl.store(inverse + own * C * C + square, solved.to(DOT))
    tl.store(scores + own * C * C + square, (qk * decay).to(DOT))
    tl.store(entry + own * C + step, tl.where(begun == 0, tl.exp(tl.cumsum(g, 0)), 0.0))
    last = tl.sum(tl.where(row == C - 1, decay, 0.0), 0)
    tl.store(onward + own * C + step, last)


@triton.jit(do_not_specialize=["T", "N"])
def _carry(
    q,
    k,
    v,
    beta,
    state,
    inverse,
    scores,
    entry,
    onward,
    out,
    last,
    states,
    writes,
    T,
    N,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    SCALE: tl.constexpr,
    DOT: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Outputs and states of one head, for some columns of the values, chunk after chunk."""
    blocks = tl.cdiv(V, BLOCK_V)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    value = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    feature, step = tl.arange(0, BLOCK_K), tl.arange(0, C)
    values, features = value < V, feature < K
    state_at = feature[:, None] * V + value[None, :]
    state_in = features[:, None] & values[None, :]
    square = step[:, None] * C + step[None, :]
    key_at = step[:, None] * (H * K) + feature[None, :]
    value_at = step[:, None] * (H * V) + value[None, :]
    kept_at = step[:, None] * V + value[None, :]
    h = tl.zeros([BLOCK_K, BLOCK_V], ACC)
    if state is not None:
        h = tl.load(state + head * K * V + state_at, mask=state_in, other=0.0).to(ACC)
    for chunk in range(N):
        own = head * N + chunk
        rows = step < T - chunk * C
        first = ((head // H) * T + chunk * C) * H + head % H
        key_in = rows[:, None] & features[None, :]
        value_in = rows[:, None] & values[None, :]
        keys = tl.load(k + first * K + key_at, mask=key_in, other=0.0).to(DOT)
        queries = tl.load(q + first * K + key_at, mask=key_in, other=0.0).to(DOT)
        new = tl.load(v + first * V + value_at, mask=value_in, other=0.0).to(ACC)
        b = tl.load(beta + first + step * H, mask=rows, other=0.0).to(ACC)
        e = tl.load(entry + own * C + step)
        c = tl.load(onward + own * C + step)
        solved = tl.load(inverse + own * C * C + square)
        score = tl.load(scores + own * C * C + square)
        known = h.to(DOT)
        if states is not None:
            tl.store(states + own * K * V + state_at, known, mask=state_in)
        read = tl.dot(keys, known, input_precision=PRECISION)
        missing = b[:, None] * (new - e[:, None] * read)
        write = tl.dot(solved, missing.to(DOT), input_precision=PRECISION)
        if writes is not None:
            tl.store(writes + own * C * V + kept_at, write.to(DOT), mask=values[None, :])
        o = e[:, None] * tl.dot(queries, known, input_precision=PRECISION)
        o += tl.dot(score, write.to(DOT), input_precision=PRECISION)
        tl.store(out + first * V + value_at, (SCALE * o).to(out.dtype.element_ty), mask=value_in)
        moved = tl.dot(tl.trans(keys), (c[:, None] * write).to(DOT), input_precision=PRECISION)
        h = tl.load(entry + own * C + C - 1) * h + moved
    tl.store(last + head * K * V + state_at, h, mask=state_in)


@triton.jit(do_not_specialize=["T", "N"])
def _carry_backward(
    d_out,
    d_last,
    q,
    k,
    beta,
    inverse,
    scores,
    entry,
    onward,
    d_states,
    solved,
    d_state,
    T,
    N,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    SCALE: tl.constexpr,
    DOT: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Y and dH' of every chunk of one head, for some columns of the values, from the last on."""
    blocks = tl.cdiv(V, BLOCK_V)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    value = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    feature, step = tl.arange(0, BLOCK_K), tl.arange(0, C)
    values, features = value < V, feature < K
    state_at = feature[:, None] * V + value[None, :]
    state_in = features[:, None] & values[None, :]
    square = step[:, None] * C + step[None, :]
    key_at = step[:, None] * (H * K) + feature[None, :]
    value_at = step[:, None] * (H * V) + value[None, :]
    kept_at = step[:, None] * V + value[None, :]
    dh = tl.zeros([BLOCK_K, BLOCK_V], ACC)
    if d_last is not None:
        dh = tl.load(d_last + head * K * V + state_at, mask=state_in, other=0.0).to(ACC)
    for done in range(N):
        chunk = N - 1 - done
        own = head * N + chunk
        rows = step < T - chunk * C
        first = ((head // H) * T + chunk * C) * H + head % H
        key_in = rows[:, None] & features[None, :]
        value_in = rows[:, None] & values[None, :]
        keys = tl.load(k + first * K + key_at, mask=key_in, other=0.0).to(DOT)
        queries = tl.load(q + first * K + key_at, mask=key_in, other=0.0).to(DOT)
        do = tl.load(d_out + first * V + value_at, mask=value_in, other=0.0).to(DOT)
        b = tl.load(beta + first + step * H, mask=rows, other=0.0).to(ACC)
        e = tl.load(entry + own * C + step)
        c = tl.load(onward + own * C + step)
        inverted = tl.load(inverse + own * C * C + square)
        score = tl.load(scores + own * C * C + square)
        after = dh.to(DOT)
        tl.store(d_states + own * K * V + state_at, after, mask=state_in)
        dr = SCALE * tl.dot(tl.trans(score), do, input_precision=PRECISION)
        dr += c[:, None] * tl.dot(keys, after, input_precision=PRECISION)
        y = tl.dot(tl.trans(inverted), dr.to(DOT), input_precision=PRECISION)
        tl.store(solved + own * C * V + kept_at, y.to(DOT), mask=values[None, :])
        entered = (e[:, None] * do.to(ACC)).to(DOT)
        read = tl.dot(tl.trans(queries), entered, input_precision=PRECISION)
        forgot = ((b * e)[:, None] * y).to(DOT)
        dh = tl.load(entry + own * C + C - 1) * dh + SCALE * read
        dh -= tl.dot(tl.trans(keys), forgot, input_precision=PRECISION)
    if d_state is not None:
        tl.store(d_state + head * K * V + state_at, dh.to(d_state.dtype.element_ty), mask=state_in)


@triton.jit(do_not_specialize=["T", "N"])
def _pairs(
    d_out,
    k,
    v,
    beta,
    log_decay,
    start,
    scores,
    writes,
    solved,
    dv,
    d_scores,
    d_lower,
    part_beta,
    part_decay,
    T,
    N,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    SCALE: tl.constexpr,
    DOT: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """dV, the gradients of Q K^T and K K^T, and what b and g get from pairs, in one chunk."""
    chunk, head = tl.program_id(0) % N, (tl.program_id(0) // N).to(tl.int64)
    step = tl.arange(0, C)
    row, col = step[:, None], step[None, :]
    rows = step < T - chunk * C
    first = ((head // H) * T + chunk * C) * H + head % H
    own = head * N + chunk
    b = tl.load(beta + first + step * H, mask=rows, other=0.0).to(ACC)
    by_score, by_write = tl.zeros([C, C], ACC), tl.zeros([C, C], ACC)
    db = tl.zeros([C], ACC)
    for low in range(0, V, BLOCK_V):
        value = low + tl.arange(0, BLOCK_V)
        values = (value < V)[None, :]
        inside = rows[:, None] & values
        value_at = step[:, None] * (H * V) + value[None, :]
        kept_at = step[:, None] * V + value[None, :]
        do = tl.load(d_out + first * V + value_at, mask=inside, other=0.0).to(DOT)
        new = tl.load(v + first * V + value_at, mask=inside, other=0.0).to(ACC)
        r = tl.load(writes + own * C * V + kept_at, mask=values, other=0.0)
        y = tl.load(solved + own * C * V + kept_at, mask=values, other=0.0)
        by_score += tl.dot(do, tl.trans(r), input_precision=PRECISION)
        by_write += tl.dot(y, tl.trans(r), input_precision=PRECISION)
        db += tl.sum(y.to(ACC) * new, 1)
        d_value = (b[:, None] * y.to(ACC)).to(dv.dtype.element_ty)
        tl.store(dv + first * V + value_at, d_value, mask=inside)
    kk = tl.zeros([C, C], ACC)
    for low in range(0, K, BLOCK_K):
        feature = low + tl.arange(0, BLOCK_K)
        inside = rows[:, None] & (feature < K)[None, :]
        key_at = step[:, None] * (H * K) + feature[None, :]
        keys = tl.load(k + first * K + key_at, mask=inside, other=0.0).to(DOT)
        kk += tl.dot(keys, tl.trans(keys), input_precision=PRECISION)
    g, begun = tl.zeros([C], ACC), tl.zeros([C], tl.int32)
    if log_decay is not None:
        g = tl.load(log_decay + first + step * H, mask=rows, other=0.0).to(ACC)
    if start is not None:
        began = tl.load(start + (head // H) * T + chunk * C + step, mask=rows, other=0)
        begun = tl.cumsum(began.to(tl.int32), 0)
    decay = _decays(g, begun, log_decay is not None, C, ACC)
    by_score *= SCALE
    by_write = tl.where(row > col, -by_write * decay, 0.0)
    square = own * C * C + row * C + col
    tl.store(d_scores + square, (by_score * decay).to(DOT))
    tl.store(d_lower + square, (b[:, None] * by_write).to(DOT))
    by_write *= kk
    db += tl.sum(by_write, 1)
    tl.store(part_beta + own * C + step, db)
    if part_decay is not None:
        # Gradients of the exponents of D: g is in those that begin before it and do not end before.
        spans = by_score * tl.load(scores + square).to(ACC) + b[:, None] * by_write
        spans = tl.cumsum(tl.where(row > col, spans, 0.0), 0, reverse=True)
        tl.store(part_decay + own * C + step, tl.sum(tl.where(row > col, spans, 0.0), 1))


@triton.jit(do_not_specialize=["T", "N"])
def _features(
    d_out,
    q,
    k,
    beta,
    entry,
    onward,
    states,
    d_states,
    writes,
    solved,
    d_scores,
    d_lower,
    part_beta,
    part_decay,
    dq,
    dk,
    d_beta,
    d_decay,
    T,
    N,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    SCALE: tl.constexpr,
    DOT: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """dQ, dK, and the gradients of b and g, in one chunk of one head."""
    chunk, head = tl.program_id(0) % N, (tl.program_id(0) // N).to(tl.int64)
    step = tl.arange(0, C)
    row, col = step[:, None], step[None, :]
    rows = step < T - chunk * C
    first = ((head // H) * T + chunk * C) * H + head % H
    own = head * N + chunk
    b = tl.load(beta + first + step * H, mask=rows, other=0.0).to(ACC)
    e = tl.load(entry + own * C + step)
    c = tl.load(onward + own * C + step)
    db = tl.load(part_beta + own * C + step)
    entered, passed = tl.zeros([C], ACC), tl.zeros([C], ACC)
    kept = tl.zeros([BLOCK_K], ACC)
    for high in range(0, K, BLOCK_K):
        feature = high + tl.arange(0, BLOCK_K)
        features = feature < K
        read = tl.zeros([C, BLOCK_K], ACC)
        known = tl.zeros([C, BLOCK_K], ACC)
        moved = tl.zeros([C, BLOCK_K], ACC)
        for low in range(0, V, BLOCK_V):
            value = low + tl.arange(0, BLOCK_V)
            values = (value < V)[None, :]
            value_at = step[:, None] * (H * V) + value[None, :]
            kept_at = step[:, None] * V + value[None, :]
            state_at = feature[:, None] * V + value[None, :]
            state_in = features[:, None] & values
            do_in = rows[:, None] & values
            do = tl.load(d_out + first * V + value_at, mask=do_in, other=0.0).to(DOT)
            r = tl.load(writes + own * C * V + kept_at, mask=values, other=0.0)
            y = tl.load(solved + own * C * V + kept_at, mask=values, other=0.0)
            h = tl.load(states + own * K * V + state_at, mask=state_in, other=0.0)
            dh = tl.load(d_states + own * K * V + state_at, mask=state_in, other=0.0)
            read += tl.dot(do, tl.trans(h), input_precision=PRECISION)
            known += tl.dot(y, tl.trans(h), input_precision=PRECISION)
            moved += tl.dot(r, tl.trans(dh), input_precision=PRECISION)
            if d_decay is not None:
                kept += tl.sum(h.to(ACC) * dh.to(ACC), 1)
        inside = rows[:, None] & features[None, :]
        key_at = step[:, None] * (H * K) + feature[None, :]
        keys = tl.load(k + first * K + key_at, mask=inside, other=0.0).to(DOT)
        queries = tl.load(q + first * K + key_at, mask=inside, other=0.0).to(DOT)
        by_score = tl.load(d_scores + own * C * C + row * C + col)
        by_lower = tl.load(d_lower + own * C * C + row * C + col)
        read *= SCALE
        d_query = e[:, None] * read + tl.dot(by_score, keys, input_precision=PRECISION)
        tl.store(dq + first * K + key_at, d_query.to(dq.dtype.element_ty), mask=inside)
        d_key = c[:, None] * moved - (b * e)[:, None] * known
        d_key += tl.dot(tl.trans(by_score), queries, input_precision=PRECISION)
        d_key += tl.dot(by_lower, keys, input_precision=PRECISION)
        d_key += tl.dot(tl.trans(by_lower), keys, input_precision=PRECISION)
        tl.store(dk + first * K + key_at, d_key.to(dk.dtype.element_ty), mask=inside)
        recalled = tl.sum(keys.to(ACC) * known, 1)
        db -= e * recalled
        if d_decay is not None:
            entered += tl.sum(queries.to(ACC) * read, 1) - b * recalled
            passed += tl.sum(keys.to(ACC) * moved, 1)
    tl.store(d_beta + first + step * H, db.to(d_beta.dtype.element_ty), mask=rows)
    if d_decay is not None:
        # Of the exponents of c and e, the last of which is the state's as well.
        dg = tl.load(part_decay + own * C + step)
        dg += tl.sum(tl.where(row > col, (c * passed)[None, :], 0.0), 1)
        entered += tl.where(step == C - 1, tl.sum(kept, 0), 0.0)
        dg += tl.cumsum(e * entered, 0, reverse=True)
        tl.store(d_decay + first + step * H, dg.to(d_decay.dtype.element_ty), mask=rows)


@triton.jit
def _step(
    q,
    k,
    v,
    beta,
    log_decay,
    state,
    start,
    out,
    last,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    SCALE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One position of one head, for some columns of the values."""
    blocks = tl.cdiv(V, BLOCK_V)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    value = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    feature = tl.arange(0, BLOCK_K)
    values, features = value < V, feature < K
    state_at = feature[:, None] * V + value[None, :]
    state_in = features[:, None] & values[None, :]
    queries = tl.load(q + head * K + feature, mask=features, other=0.0).to(ACC)
    keys = tl.load(k + head * K + feature, mask=features, other=0.0).to(ACC)
    new = tl.load(v + head * V + value, mask=values, other=0.0).to(ACC)
    h = tl.zeros([BLOCK_K, BLOCK_V], ACC)
    if state is not None:
        h = tl.load(state + head * K * V + state_at, mask=state_in, other=0.0).to(ACC)
        if log_decay is not None:
            h *= tl.exp(tl.load(log_decay + head).to(ACC))
        if start is not None:
            h = tl.where(tl.load(start + head // H) != 0, 0.0, h)
    missing = tl.load(beta + head).to(ACC) * (new - tl.sum(keys[:, None] * h, 0))
    h += keys[:, None] * missing[None, :]
    o = SCALE * tl.sum(queries[:, None] * h, 0)
    tl.store(out + head * V + value, o.to(out.dtype.element_ty), mask=values)
    tl.store(last + head * K * V + state_at, h, mask=state_in)


def plan_forward(
    x: Inputs, out: Tensor, last: Tensor, kept: Kept, scale: float
) -> tuple[Launch, Launch]:
    """Both launches; they fill the outputs, the state after them, and what is kept.

    Args:
        x: the inputs.
        out: ``(B, T, H, V)``.
        last: ``(B, H, K, V)``.
        kept: states and writes are empty where there is no backward.
        scale: of the outputs.
    """
    tiles = _tiles(x, kept)
    chunks = {"inverse": kept.inverse, "scores": kept.scores}
    chunks |= {"entry": kept.entry, "onward": kept.onward}
    prepare = Launch(
        "delta_rule prepare",
        _prepare,
        tiles.heads * tiles.sizes["N"],
        {
            **{"q": x.q, "k": x.k, "beta": x.beta, "log_decay": x.log_decay, "start": x.start},
            **chunks,
            **tiles.sizes,
        },
        {
            **{name: tiles.constants[name] for name in ("K", "C", "DOT", "ACC", "PRECISION")},
            # Rounded to bfloat16 later, so three products of narrow numbers are exact enough.
            "SOLVE": "tf32x3" if tiles.narrow else "ieee",
            "BLOCK_K": tiles.block_k,
        },
        tiles.warps,
    )
    carry = Launch(
        "delta_rule carry",
        _carry,
        tiles.heads * ceil_div(x.v.shape[3], tiles.columns),
        {
            **{"q": x.q, "k": x.k, "v": x.v, "beta": x.beta, "state": x.state},
            **chunks,
            **{"out": out, "last": last},
            "states": kept.states if kept.states.numel() else None,
            "writes": kept.writes if kept.writes.numel() else None,
            **tiles.sizes,
        },
        {
            **{**tiles.constants, "SCALE": scale},
            **{"BLOCK_K": tiles.keys, "BLOCK_V": tiles.columns},
        },
        tiles.warps,
    )
    return prepare, carry


def plan_backward(
    d_out: Tensor, d_last: Tensor, x: Inputs, kept: Kept, scale: float
) -> tuple[tuple[Launch, Launch, Launch], list[Tensor]]:
    """The launches, and the gradients that they fill: of every input but ``start``.

    Args:
        d_out: ``(B, T, H, V)``.
        d_last: ``(B, H, K, V)``.
        others: as in `plan_forward`.
    """
    tiles = _tiles(x, kept)
    d_states, solved = torch.empty_like(kept.states), torch.empty_like(kept.writes)
    filled = [x.q.new_empty(0) if y is None else torch.empty_like(y) for y in x[:6]]
    dq, dk, dv, d_beta, d_decay, d_state = filled
    constants = {**tiles.constants, "SCALE": scale}
    carry = Launch(
        "delta_rule carry backward",
        _carry_backward,
        tiles.heads * ceil_div(x.v.shape[3], tiles.columns),
        {
            **{"d_out": d_out, "d_last": d_last, "q": x.q, "k": x.k, "beta": x.beta},
            **{"inverse": kept.inverse, "scores": kept.scores},
            **{"entry": kept.entry, "onward": kept.onward},
            **{"d_states": d_states, "solved": solved},
            "d_state": None if x.state is None else d_state,
            **tiles.sizes,
        },
        {**constants, "BLOCK_K": tiles.keys, "BLOCK_V": tiles.columns},
        tiles.warps,
    )
    d_scores, d_lower = (torch.empty_like(kept.inverse) for _ in range(2))
    decays = x.log_decay is not None
    parts = {
        "part_beta": torch.empty_like(kept.entry),
        "part_decay": torch.empty_like(kept.entry) if decays else None,
    }
    shared = {
        **{"d_out": d_out, "k": x.k, "beta": x.beta, "writes": kept.writes, "solved": solved},
        **{"d_scores": d_scores, "d_lower": d_lower, **parts, **tiles.sizes},
    }
    blocks = {"BLOCK_K": tiles.block_k, "BLOCK_V": tiles.block_v}
    pairs = Launch(
        "delta_rule pairs",
        _pairs,
        tiles.heads * tiles.sizes["N"],
        {
            **{"v": x.v, "log_decay": x.log_decay, "start": x.start},
            **{"scores": kept.scores, "dv": dv, **shared},
        },
        {**constants, **blocks},
        tiles.warps,
    )
    features = Launch(
        "delta_rule features",
        _features,
        tiles.heads * tiles.sizes["N"],
        {
            **{"q": x.q, "entry": kept.entry, "onward": kept.onward},
            **{"states": kept.states, "d_states": d_states},
            **{"dq": dq, "dk": dk, "d_beta": d_beta},
            "d_decay": d_decay if decays else None,
            **shared,
        },
        {**constants, **blocks},
        tiles.warps,
    )
    return (carry, pairs, features), filled


def plan_step(x: Inputs, out: Tensor, last: Tensor, scale: float) -> Launch:
    """The launch; it fills the output of one position, T = 1, and the state after it."""
    (_, _, heads, keys), values = x.q.shape, x.v.shape[3]
    columns = min(32, power_of_two(values))
    return Launch(
        "delta_rule step",
        _step,
        x.q.shape[0] * heads * ceil_div(values, columns),
        {**x._asdict(), "out": out, "last": last, "H": heads},
        {
            **{"SCALE": scale, "ACC": accumulator(last.dtype), "K": keys, "V": values},
            **{"BLOCK_K": power_of_two(keys), "BLOCK_V": columns},
        },
    )


class Tiles(NamedTuple):
    """How chunks and features are shared out.

    Attributes:
        heads: of all rows of the batch.
        narrow: whether products are of bfloat16.
        keys: features of a key with padding, which a carry has all of.
        columns: of the values, for each program of a carry.
        block_k, block_v: features that the others take at once.
        warps: of a program.
        sizes: positions T, chunks N and heads H, as all kernels take them.
        constants: that they share.
    """

    heads: int
    narrow: bool
    keys: int
    columns: int
    block_k: int
    block_v: int
    warps: int
    sizes: dict[str, int]
    constants: dict[str, Any]


def _tiles(x: Inputs, kept: Kept) -> Tiles:
    (batch, length, heads, features), values = x.q.shape, x.v.shape[3]
    chunks, chunk = kept.inverse.shape[2:4]
    narrow = kept.inverse.dtype == torch.bfloat16
    # The least that tensor cores take is 16.
    keys, columns = (power_of_two(max(16, n)) for n in (features, values))
    tile = 64 if narrow else 32
    large = keys > 128
    return Tiles(
        batch * heads,
        narrow,
        keys,
        min(16 if large else tile // 2, columns),
        min(tile, keys),
        min(tile, columns),
        8 if large or chunk > 32 else 4,
        {"T": length, "N": chunks, "H": heads},
        {
            **{"K": features, "V": values, "C": chunk},
            **{"DOT": DTYPES[kept.inverse.dtype], "ACC": accumulator(kept.entry.dtype)},
            # Tensor cores keep as many digits of a float32 as a float16 has.
            "PRECISION": "tf32" if x.v.dtype == torch.float16 else "ieee",
        },
    )


def forward(x: Inputs, out: Tensor, last: Tensor, kept: Kept, scale: float) -> None:
    """Runs `plan_forward`."""
    x = _bytes(x)
    for launch in plan_forward(x, out, last, kept, scale):
        launch.run()


def backward(d_out: Tensor, d_last: Tensor, x: Inputs, kept: Kept, scale: float) -> list[Tensor]:
    """Runs `plan_backward`."""
    x = _bytes(x)
    launches, filled = plan_backward(d_out, d_last, x, kept, scale)
    for launch in launches:
        launch.run()
    return filled


def step(x: Inputs, out: Tensor, last: Tensor, scale: float) -> None:
    """Runs `plan_step`."""
    plan_step(_bytes(x), out, last, scale).run()


def _bytes(x: Inputs) -> Inputs:
    """``start`` as kernels load it; it comes as bool."""
    return x if x.start is None else x._replace(start=x.start.view(torch.uint8))
