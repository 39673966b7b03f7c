"""Every kernel's launches at the shapes of the GPU scale, planned and not run."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lrt_kernels.delta_rule import _empty
from lrt_kernels.gpu import (
    delta_rule,
    dense_aggregate,
    depth_pull,
    depth_read,
    gated_product,
    inject_kv,
    merge_cache,
    normed_scores,
    simplicial_attention,
    sinkhorn,
    slot_compact,
    stream_coefficients,
    stream_mix,
)
from lrt_kernels.gpu.launch import Launch

#: Few rows: a compiled kernel is the same for any number of them.
ROWS, WIDTH, SOURCES, HEAD = 64, 1024, 17, 128


def launches() -> Iterator[tuple[str, Launch]]:
    """What each is for, and the launch; bfloat16, float32 parameters."""
    for reads, extras in ((1, False), (1, True), (2, True)):
        name = f"R={reads}" + (" masks, norm" if extras else "")
        for launch in depth_reads(reads, extras):
            yield name, launch
    for extras in (False, True):
        for launch in depth_pulls(extras):
            yield "bias, masks" if extras else "", launch
    for gated in (False, True):
        for launch in slots(gated):
            yield "S=2" + (" token, strength" if gated else ""), launch
    for ways in (1, 4):
        for launch in dense_aggregates(ways):
            yield f"W={ways}", launch
    for launch in keys_values():
        yield f"H=1 w={HEAD}", launch
    for launch in caches():
        yield "", launch
    for launch in products():
        yield "", launch
    for dtype in (torch.bfloat16, torch.float32):
        kind = "" if dtype == torch.bfloat16 else " float32"
        for outs in (1, 4):
            for launch in streams(dtype, outs):
                yield f"n=4 R={outs}{kind}", launch
        for launch in scores(dtype, 24, 4 * WIDTH, False):
            yield f"K=24{kind}", launch
    # Hyper-Connections' coefficients, and a generator of MUDDFormer.
    for count in (6, 68):
        for launch in scores(torch.bfloat16, count, WIDTH, count == 6):
            yield f"K={count}" + (" centred" if count == 6 else ""), launch
    for launch in scaled():
        yield "n=4", launch
    for matrices in (None, 24, 120):
        for launch in coefficients(matrices):
            yield "n=4" if matrices is None else f"{matrices} matrices", launch
    for tanh in (False, True):
        for launch in adjustments(tanh):
            yield "n=4" + (" tanh" if tanh else ""), launch
    for packed in (False, True):
        for launch in simplicials(ROWS, packed):
            yield "documents" if packed else "", launch
    yield "decoding", simplicials(1, True)[0]
    for keys, values, full in (
        (128, 128, True),
        (128, 256, True),
        (256, 256, True),
        (128, 128, False),
    ):
        for launch in delta_rules(keys, values, full):
            yield f"{keys}x{values}" + (" full" if full else ""), launch
    for launch in delta_rules(128, 128, True, trained=False):
        yield "128x128 decoding", launch


def depth_reads(reads: int, extras: bool) -> list[Launch]:
    sources = [torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16) for _ in range(SOURCES)]
    query, bias = torch.zeros(reads, SOURCES, WIDTH), torch.zeros(reads, SOURCES)
    present = torch.ones(SOURCES, ROWS, dtype=torch.uint8) if extras else None
    gain, norm_eps = (torch.ones(WIDTH), 1e-6) if extras else (None, None)
    parameters: tuple[Tensor | None, ...] = (query, bias, present, gain)
    forward, (out, raw, *saved) = depth_read.plan_forward(
        sources, *parameters, 16.0, 1e-6, norm_eps
    )
    mixed = raw if extras else out
    backward, *_ = depth_read.plan_backward(
        torch.zeros_like(out), sources, *parameters, [mixed, *saved], 16.0, norm_eps
    )
    return [*forward, *backward]


def depth_pulls(extras: bool) -> list[Launch]:
    x = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)
    readers, numbers = torch.arange(SOURCES), torch.zeros(SOURCES, ROWS)
    bias = torch.zeros(SOURCES) if extras else None
    present = torch.ones(SOURCES, ROWS, dtype=torch.uint8) if extras else None
    query = torch.zeros(SOURCES, WIDTH)
    along, _ = depth_pull.plan_along(x, x)
    source, _ = depth_pull.plan_source(
        x, query, bias, [x] * SOURCES, readers, present, numbers, numbers, 16.0, 1e-6
    )
    return [*along, *source]


def slots(gated: bool) -> list[Launch]:
    g = torch.zeros(ROWS, 2, WIDTH, dtype=torch.bfloat16)
    token = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16) if gated else None
    strength = torch.zeros(ROWS, 2) if gated else None
    v = torch.zeros(2, ROWS, WIDTH, dtype=torch.bfloat16)
    gate, _ = slot_compact.plan_gate(g, token, 1e-6, True)
    gate_backward, _ = slot_compact.plan_gate_backward(v, g, token, 1e-6, True)
    reflect, _ = slot_compact.plan_reflect(g, v.transpose(0, 1), strength)
    reflect_backward, _ = slot_compact.plan_reflect_backward(g, g, v.transpose(0, 1), strength)
    return [gate, gate_backward, reflect, reflect_backward]


def dense_aggregates(ways: int) -> list[Launch]:
    sources = [torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16) for _ in range(SOURCES)]
    weights = torch.zeros(ROWS, ways, SOURCES)
    forward, sums = dense_aggregate.plan_forward(weights, sources)
    backward, _ = dense_aggregate.plan_backward(sums, weights, sources)
    return [*forward, *backward]


def keys_values() -> list[Launch]:
    k = torch.zeros(ROWS, 1, HEAD, dtype=torch.bfloat16)
    table = [torch.zeros(ROWS, HEAD // 2, dtype=torch.bfloat16) for _ in range(2)]
    mixed = (k, k, torch.zeros(ROWS, 2), k, k, *table, 1e-6)
    placed = (k, None, None, None, None, *table, 1e-6)
    return [
        plan
        for given in (mixed, placed)
        for plan in (
            inject_kv.plan_forward(*given)[0],
            inject_kv.plan_backward(k, k, *given)[0],
        )
    ]


def caches() -> list[Launch]:
    h = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)
    given = (h, h, h.float(), h.float(), torch.zeros(1), torch.zeros(1))
    return [
        merge_cache.plan_merge(*given)[0],
        merge_cache.plan_merge_backward(h, *given)[0],
        merge_cache.plan_update(None, h, h, False, 1e-6)[0],
        merge_cache.plan_update(h, h, h, False, 1e-6)[0],
    ]


def products() -> list[Launch]:
    p = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)
    return [
        gated_product.plan_forward(p, p.float(), 1e-6, p.dtype)[0],
        gated_product.plan_backward(p, p, p.float(), 1e-6)[0],
    ]


def streams(dtype: torch.dtype, outs: int) -> list[Launch]:
    x, carry = torch.zeros(ROWS, 4, WIDTH, dtype=dtype), torch.zeros(ROWS, 4, outs)
    write, y = (None, None) if outs == 1 else (torch.zeros(ROWS, outs), x[:, 0].contiguous())
    forward, mixed = stream_mix.plan_forward(x, carry, write, y)
    backward, _ = stream_mix.plan_backward(mixed, x, carry, write, y)
    return [forward, backward]


def scores(dtype: torch.dtype, count: int, width: int, centre: bool) -> list[Launch]:
    states, rows = torch.zeros(ROWS, width, dtype=dtype), torch.zeros(count, width)
    forward, saved = normed_scores.plan_forward(states, rows, 1e-6, centre)
    backward, *_ = normed_scores.plan_backward(saved[0], states, rows, saved)
    return [forward, *backward]


def scaled() -> list[Launch]:
    logits = torch.zeros(ROWS, 4, 4)
    forward, matrices = sinkhorn.plan_forward(logits, 20, 1e-6, False)
    backward, _ = sinkhorn.plan_backward(matrices, logits, 20, 1e-6, False)
    return [forward, *backward]


def coefficients(count: int | None) -> list[Launch]:
    """mHC's, or with so many permutations of 4 or 5 streams mHC-lite's."""
    n = 5 if count == 120 else 4
    matrices = None if count is None else torch.zeros(count, n, n)
    entries = 2 * n + (count or n * n)
    given = torch.zeros(ROWS, entries), torch.zeros(3), torch.zeros(entries), matrices
    balance = (20, 1e-6, False)
    forward, grads = stream_coefficients.plan_forward(*given, balance, 2.0, 1e-6)
    backward, *_ = stream_coefficients.plan_backward(grads, *given, balance, 2.0)
    return [forward, *backward]


def adjustments(tanh: bool) -> list[Launch]:
    scores, shift = torch.zeros(ROWS, 4, 6), torch.zeros(6) if tanh else None
    scales = torch.zeros(1), torch.zeros(1)
    learned = (torch.zeros(4), torch.zeros(4), torch.zeros(4, 4), *scales)
    forward, grads = stream_coefficients.plan_adjust(scores, learned, shift, tanh)
    backward, *_ = stream_coefficients.plan_adjust_backward(grads, scores, scales, shift, tanh)
    return [forward, backward]


def simplicials(positions: int, packed: bool) -> list[Launch]:
    """Eight heads on one of keys, and the published windows; the wide one is the first."""
    q = torch.zeros(1, positions, 8, 128, dtype=torch.bfloat16)
    kv = [torch.zeros(1, ROWS, 1, 128, dtype=torch.bfloat16) for _ in range(4)]
    document = torch.zeros(1, ROWS, dtype=torch.int32) if packed else None
    options = (document, (ROWS - positions, 1), (512, 32), 128**-0.5)
    forward, (out, lse) = simplicial_attention.plan_forward(q, *kv, *options)
    backward, _ = simplicial_attention.plan_backward(out, q, *kv, out, lse, *options)
    return [*forward, *backward]


def delta_rules(keys: int, values: int, full: bool, trained: bool = True) -> list[Launch]:
    """With decay, state and documents or without; for training, or what decoding has of its own."""
    q, k = (torch.zeros(1, ROWS, 2, keys, dtype=torch.bfloat16) for _ in range(2))
    v, beta = torch.zeros(1, ROWS, 2, values, dtype=torch.bfloat16), torch.zeros(1, ROWS, 2)
    state = torch.zeros(1, 2, keys, values) if full else None
    start = torch.zeros(1, ROWS, dtype=torch.uint8) if full else None
    x = delta_rule.Inputs(q, k, v, beta, beta if full else None, state, start)
    out, last, *rest = _empty(q, k, v, 32, trained)
    kept = delta_rule.Kept(*rest)
    forward = delta_rule.plan_forward(x, out, last, kept, 1.0)
    if not trained:
        return [forward[1], delta_rule.plan_step(x, out, last, 1.0)]
    backward, _ = delta_rule.plan_backward(out, last, x, kept, 1.0)
    return [*forward, *backward]
