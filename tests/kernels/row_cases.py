"""Calls of the operations that work row by row: what their kernels' tests and benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from lrt_kernels import (
    Placement,
    Sinkhorn,
    gated_product,
    inject_kv,
    merge_cache,
    normed_scores,
    place_heads,
    sinkhorn,
    slot_compact,
    slot_gate,
    slot_reflect,
    stream_adjustments,
    stream_coefficients,
    stream_read,
    stream_score,
    stream_write,
    update_cache,
)
from lrt_kernels.gpu.launch import rows_per_program
from tests.kernels.interpreter import normal

#: In the interpreter; a program's tile is 8 wide.
WIDTH = 6


@dataclass(frozen=True)
class Case:
    """One call of an operation.

    Attributes:
        op: the operation's module.
        inputs: tensors to differentiate, of so many rows, a width, and a dtype of the activations.
        call: of a backend and those tensors; several results side by side.
        gates: which inputs are gates, whose gradients may be off by more.
        gpu_width: on a card.
        block: rows of one program at `WIDTH`.
    """

    op: str
    inputs: Callable[[int, int, torch.dtype], list[Tensor]]
    call: Callable[..., Tensor]
    gates: tuple[int, ...] = ()
    gpu_width: int = 1024
    block: int = rows_per_program(8)

    def on(self, backend: str) -> Callable[..., Tensor]:
        """The call of the tensors alone."""
        return lambda *x: self.call(backend, *x)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def slots(n: int, d: int, dtype: torch.dtype, count: int = 2) -> Tensor:
    return normal(n, count, d, seed=1, dtype=dtype)


CASES: dict[str, Case] = {}


CASES["slot_gate"] = Case(
    "slot_compact",
    lambda n, d, dtype: [slots(n, d, dtype, 1), normal(n, d, seed=2, dtype=dtype)],
    lambda backend, g, m: slot_gate(g, m, 1e-3, backend),
)
CASES["slot_gate, no token"] = Case(
    "slot_compact",
    lambda n, d, dtype: [slots(n, d, dtype, 3)],
    lambda backend, g: slot_gate(g, None, 1e-3, backend),
)
CASES["slot_reflect"] = Case(
    "slot_compact",
    lambda n, d, dtype: [slots(n, d, dtype, 1), 1e-3 * normal(n, 1, d, seed=2, dtype=dtype)],
    lambda backend, g, v: slot_reflect(g, v, backend=backend),
)
CASES["slot_reflect, strength"] = Case(
    "slot_compact",
    lambda n, d, dtype: [
        slots(n, d, dtype),
        normal(n, 2, d, seed=2, dtype=dtype),
        normal(n, 2, 1, seed=3, dtype=wide(dtype)),
    ],
    lambda backend, g, v, b: slot_reflect(g, v, b, backend),
    gates=(2,),
)
CASES["slot_compact"] = Case(
    "slot_compact",
    lambda n, d, dtype: [
        slots(n, d, dtype),
        normal(n, d, seed=2, dtype=dtype),
        *(normal(d, d, seed=3 + s, dtype=dtype) for s in range(2)),
    ],
    lambda backend, g, m, *w: slot_compact(g, w, m, 1e-3, backend),
)


def heads(n: int, w: int, dtype: torch.dtype, count: int, *seeds: int) -> list[Tensor]:
    return [normal(n, count, w, seed=seed, dtype=dtype) for seed in seeds]


def angles(n: int, x: Tensor) -> Placement:
    """Of n positions, or of every position of a row of n / 2 where that is whole."""
    rows = n // 2 if n % 2 == 0 else n
    half = x.shape[-1] // 2
    # No generator: this is called inside a compiled graph. Sixteenths are exact in every dtype.
    angle = ((5 * torch.arange(rows * half) % 37 - 18) / 16).reshape(rows, 1, half).to(x)
    return Placement(1e-3, (angle.cos(), angle.sin()))


def injected(backend: str, k: Tensor, v: Tensor, logits: Tensor, *memory: Tensor) -> Tensor:
    n, rows = len(k), len(k) // (2 if len(k) % 2 == 0 else 1)
    lead = [x.view(n // rows, rows, *x.shape[1:]) for x in (k, v, logits, *memory)]
    return torch.cat(inject_kv(*lead, place=angles(n, k), backend=backend), dim=-1)


CASES["place_heads"] = Case(
    "inject_kv",
    lambda n, w, dtype: heads(n, w, dtype, 3, 1),
    lambda backend, x: place_heads(
        x.view(-1, len(x) // (2 - len(x) % 2), *x.shape[1:]), angles(len(x), x), backend
    ),
    gpu_width=128,
)
CASES["place_heads, odd, norm alone"] = Case(
    "inject_kv",
    lambda n, w, dtype: heads(n, w - 1, dtype, 1, 1),
    lambda backend, x: place_heads(x, Placement(1e-3), backend),
    gpu_width=128,
)
CASES["inject_kv"] = Case(
    "inject_kv",
    lambda n, w, dtype: [
        *heads(n, w, dtype, 1, 1, 2),
        normal(n, 2, seed=3, dtype=wide(dtype)),
        *heads(n, w, dtype, 1, 4, 5),
    ],
    injected,
    gates=(2,),
    gpu_width=128,
)
CASES["inject_kv, no memory"] = Case(
    "inject_kv",
    lambda n, w, dtype: [*heads(n, w, dtype, 2, 1, 2), normal(n, 4, seed=3, dtype=wide(dtype))],
    lambda backend, k, v, logits: torch.cat(inject_kv(k, v, logits, backend=backend), dim=-1),
    gates=(2,),
    gpu_width=128,
)


CASES["merge_cache"] = Case(
    "merge_cache",
    lambda n, d, dtype: [
        *(normal(n, d, seed=s, dtype=dtype) for s in (1, 2)),
        *(normal(n, d, seed=s, dtype=wide(dtype)) for s in (3, 4)),
        *(normal(1, seed=s, dtype=wide(dtype)) for s in (5, 6)),
    ],
    lambda backend, *x: merge_cache(*x, backend),
    gates=(2, 3, 4, 5),
)
CASES["update_cache"] = Case(
    "merge_cache",
    lambda n, d, dtype: [normal(n, d, seed=s, dtype=dtype) for s in (1, 2)],
    lambda backend, h, cache: update_cache(h, cache, False, 1e-3, backend),
)


CASES["gated_product"] = Case(
    "gated_product",
    lambda n, d, dtype: [
        normal(n, d, seed=1, dtype=dtype),
        normal(n, d, seed=2, dtype=wide(dtype)),
    ],
    lambda backend, p, logits: gated_product(p, logits, 1e-3, backend=backend),
    gates=(1,),
)
CASES["gated_product, no norm"] = Case(
    "gated_product",
    lambda n, d, dtype: [
        normal(n, d, seed=1, dtype=dtype),
        normal(n, d, seed=2, dtype=wide(dtype)),
    ],
    lambda backend, p, logits: gated_product(p, logits, None, wide(p.dtype), backend),
    gates=(1,),
)


def streams(n: int, d: int, dtype: torch.dtype, count: int = 4) -> Tensor:
    return normal(n, count, d, seed=1, dtype=dtype)


def layer_scores(backend: str, x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    return normed_scores(x, weight, gain, 1e-3, True, backend)


CASES["normed_scores, centred"] = Case(
    "normed_scores",
    lambda n, d, dtype: [
        normal(n, d, seed=1, dtype=dtype),
        normal(6, d, seed=2, dtype=wide(dtype)),
        normal(d, seed=3, dtype=wide(dtype)),
    ],
    layer_scores,
    block=64,
)
CASES["normed_scores, many rows"] = Case(
    "normed_scores",
    lambda n, d, dtype: [
        normal(n, d, seed=1, dtype=dtype),
        normal(68, d, seed=2, dtype=wide(dtype)),
    ],
    lambda backend, x, weight: normed_scores(x, weight, None, 1e-3, True, backend),
    block=32,
)
CASES["stream_score"] = Case(
    "stream_mix",
    lambda n, d, dtype: [
        streams(n, d, dtype, 3),
        normal(24, 3 * d, seed=2, dtype=wide(dtype)),
    ],
    lambda backend, x, weight: stream_score(x, weight, 1e-3, backend),
    block=64,
)
CASES["stream_read"] = Case(
    "stream_mix",
    lambda n, d, dtype: [streams(n, d, dtype), normal(n, 4, seed=2, dtype=wide(dtype))],
    lambda backend, x, read: stream_read(x, read, backend),
    gates=(1,),
)
for count in (3, 4):
    CASES[f"stream_write, {count} streams"] = Case(
        "stream_mix",
        lambda n, d, dtype, count=count: [
            streams(n, d, dtype, count),
            normal(n, count, count, seed=2, dtype=wide(dtype)),
            normal(n, count, seed=3, dtype=wide(dtype)),
            normal(n, d, seed=4, dtype=dtype),
        ],
        lambda backend, x, carry, write, y: stream_write(x, carry, write, y, backend),
        gates=(1, 2),
    )
for exact, count, iterations in (("source", 4, 20), ("destination", 3, 4)):
    CASES[f"sinkhorn, {count} streams, exact at the {exact}"] = Case(
        "sinkhorn",
        lambda n, d, dtype, count=count: [normal(n, count, count, seed=1, dtype=wide(dtype))],
        lambda backend, logits, exact=exact, iterations=iterations: sinkhorn(
            logits, iterations, 1e-6, exact, backend
        ),
        gates=(0,),
        block=64,
    )


def matrices(n: int) -> Tensor:
    """All permutations of n streams, as mHC-lite mixes them."""
    return torch.stack([torch.eye(n)[list(order)] for order in permutations(range(n))])


def beside(read: Tensor, write: Tensor, carry: Tensor) -> Tensor:
    return torch.cat([read, write, carry.flatten(-2)], dim=-1)


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    return [normal(*shape, seed=2 + i, dtype=wide(dtype)) for i, shape in enumerate(shapes)]


for name, count, mixing, block in (
    ("balanced, exact at the source", 4, Sinkhorn(), 64),
    ("balanced, exact at the destination", 3, Sinkhorn(4, 1e-3, "destination"), 64),
    ("permutations of 4", 4, matrices(4), 8),
    ("permutations of 3", 3, matrices(3), 32),
):
    entries = 2 * count + (len(mixing) if isinstance(mixing, Tensor) else count**2)
    CASES[f"stream_coefficients, {name}"] = Case(
        "stream_coefficients",
        lambda n, d, dtype, entries=entries: [
            normal(n, entries, seed=1, dtype=wide(dtype)),
            *parameters((3,), (entries,), dtype=dtype),
        ],
        lambda backend, scores, scale, bias, mixing=mixing: beside(
            *stream_coefficients(
                scores,
                scale,
                bias,
                mixing.to(scores) if isinstance(mixing, Tensor) else mixing,
                read_eps=1e-3,
                backend=backend,
            )
        ),
        gates=(0, 1, 2),
        block=block,
    )
for count, shifted, tanh in ((4, True, True), (3, False, False)):
    CASES[f"stream_adjustments, {count} streams" + ", tanh" * tanh] = Case(
        "stream_coefficients",
        lambda n, d, dtype, count=count, shifted=shifted: [
            normal(n, count, 2 + count, seed=1, dtype=wide(dtype)),
            *parameters(
                *((count,), (count,), (count, count), (1,), (1,)),
                *([(2 + count,)] if shifted else []),
                dtype=dtype,
            ),
        ],
        lambda backend, scores, read, write, carry, mix, strength, shift=None, tanh=tanh: beside(
            *stream_adjustments(
                scores, read, write, carry, mix, strength, shift, tanh, backend=backend
            )
        ),
        gates=(0, 4, 5, 6),
        block=32,
    )
