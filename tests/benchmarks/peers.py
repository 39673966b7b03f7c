"""Other packages' forms of the operations, where they are installed, for `make kernels-bench`.

fla-core (flash-linear-attention), liger-kernel and flash-attn-res; none is needed for anything. On
a CPU their references in plain PyTorch, on a GPU their kernels. Their depth reads have one query
for all sources and no bias; those that want sources in one piece are given a stack, which is part
of their time, since models have them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import torch
from torch import Tensor

#: A call of an operation's leaves, as those of `kernel_cases` are.
Form = Callable[..., Tensor | tuple[Tensor, ...]]
EPS = 1e-6


def installed(package: str) -> bool:
    return find_spec(package) is not None


def peers(op: str, device: str) -> Mapping[str, Form]:
    """Their forms of an operation, by name."""
    made = {"depth_read": depth_reads, "delta_rule": delta_rules}.get(op)
    return {} if made is None else made(device)


def depth_reads(device: str) -> dict[str, Form]:
    """Of sources, a query for each, of which they take the first, and biases."""
    found: dict[str, Form] = {}
    if installed("fla"):
        from fla.ops.attnres.fused import fused_attnres
        from fla.ops.attnres.naive import naive_attnres

        attnres = naive_attnres if device == "cpu" else fused_attnres
        found["fla-core"] = lambda *x: attnres(x[-2][0], x[:-2], torch.ones_like(x[-2][0]))
    if device == "cpu":
        return found
    if installed("liger_kernel"):
        from liger_kernel.ops.attn_res import LigerAttnResFunction

        def liger(*x: Tensor) -> Tensor:
            gain = torch.ones_like(x[-2][0])
            read: Tensor = LigerAttnResFunction.apply(torch.stack(x[:-2]), x[-2][0], gain, EPS)
            return read

        found["liger-kernel"] = liger
    if installed("flash_attn_res"):
        from flash_attn_res import phase_1_batched_attention_triton_op

        def flash(*x: Tensor) -> Tensor:
            # The first of two phases, which reads a block's sources by all of its queries.
            stacked = torch.stack(x[:-2]).unsqueeze(1)
            read: Tensor = phase_1_batched_attention_triton_op(stacked, x[-2][:1], EPS)[0]
            return read[0, 0]

        found["flash-attn-res"] = flash
    return found


def delta_rules(device: str) -> dict[str, Form]:
    """Of queries, keys, values, strengths and logarithms of the decay."""
    if not installed("fla"):
        return {}
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

    def rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        named = {"g": g, "beta": beta, "scale": 1.0, "output_final_state": True}
        chunked = chunk_gated_delta_rule
        if device == "cpu":
            chunked, named = naive_chunk_gated_delta_rule, {**named, "chunk_size": 32}
        found: tuple[Tensor, ...] = chunked(q, k, v, **named)
        return found

    return {"fla-core": rule}
