"""Every kernel's launches at the shapes of the GPU scale, planned and not run."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lrt_kernels.gpu import (
    dense_aggregate,
    depth_read,
    gated_product,
    inject_kv,
    merge_cache,
    slot_compact,
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
