"""What `make kernels-bench` times: an operation's inputs, its forms, and the work it must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lrt_kernels import (
    delta_rule,
    delta_rule_recurrent,
    dense_aggregate,
    depth_read,
    l2_norm,
    read_scored,
    score_source,
    simplicial_attention,
    stream_score,
)

#: One call of an operation: of its leaves, one by one.
Form = Callable[..., Any]


class Work(NamedTuple):
    """Bytes of the GPU's memory that one pass must move, and its FLOPs in matrix products."""

    bytes: float
    flops: float = 0.0


@dataclass(frozen=True)
class Case:
    """One operation at one size.

    Args:
        op: its name in `lrt_kernels`.
        size: in words.
        leaves: tensors with gradients, on a device.
        call: the operation, given ``backend``.
        naive: the form that it is most often written in; None where it is too large.
        work: what forward and backward must do, by pass.
        compiles: of "naive" and "reference", what is timed compiled as well.
    """

    op: str
    size: str
    leaves: Callable[[str], list[Tensor]]
    call: Form
    naive: Form | None
    work: dict[str, Work]
    compiles: Sequence[str] = ("naive", "reference")

    @property
    def name(self) -> str:
        return f"{self.op}, {self.size}"


def normals(device: str, *shapes: tuple[Sequence[int], torch.dtype], seed: int = 0) -> list[Tensor]:
    """Standard normal leaves, allocated apart."""
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(tuple(shape), generator=g).to(device, dtype).requires_grad_()
        for shape, dtype in shapes
    ]


def step(form: Form, leaves: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Forward, and the gradients of everything that the form has a use for."""
    torch.autograd.grad(outputs(form(*leaves)), leaves, grads, allow_unused=True)


def outputs(found: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def depth_reads(tokens: int, width: int, count: int, dtype: torch.dtype) -> Case:
    """One query and one bias per source."""

    def call(*x: Tensor, backend: Any = "auto") -> Tensor:
        return depth_read(x[:-2], x[-2], x[-1], backend=backend)

    def stacked(*x: Tensor) -> Tensor:
        bank = torch.stack(x[:-2])
        keys = bank * torch.rsqrt(bank.square().mean(-1, keepdim=True) + 1e-6)
        logits = torch.einsum("snd,sd->sn", keys, x[-2]) + x[-1].unsqueeze(-1)
        return torch.einsum("sn,snd->nd", torch.softmax(logits, 0), bank)

    # In float32: scores, inverse norms, one denominator, and do . o out and in. Backward reads the
    # output once and its gradient twice, since do . o is taken first.
    kept, state = 4 * (2 * count + 1), width * dtype.itemsize
    shapes = [((tokens, width), dtype)] * count
    shapes += [((count, width), torch.float32), ((count,), torch.float32)]
    return Case(
        "depth_read",
        f"{tokens} tokens, width {width}, {count} sources",
        lambda device: normals(device, *shapes),
        call,
        stacked,
        {
            "forward": Work(tokens * ((count + 1) * state + kept)),
            "backward": Work(tokens * ((2 * count + 3) * state + kept + 8)),
        },
    )


def depth_pulls(tokens: int, width: int, readers: int, dtype: torch.dtype) -> Case:
    """Reads of 2, 3, .. of a growing list, gradients pulled, beside those that are added up."""

    def later(source: int) -> int:
        """How many readers come after a source; both of the first two come before all."""
        return readers + 1 - max(1, source)

    def stack(*x: Tensor, backend: Any = "auto", pull: bool = True) -> list[Tensor]:
        values, queries = x[: readers + 1], x[readers + 1 :]
        bank = [
            score_source(value, query, backend=backend, pull=pull)
            for value, query in zip(values, queries, strict=True)
        ]
        return [
            read_scored(bank[: r + 1], [r - max(1, j) for j in range(r + 1)])
            for r in range(1, readers + 1)
        ]

    state, reads = width * dtype.itemsize, sum(later(j) for j in range(readers + 1))
    queries = [((later(j), width), torch.float32) for j in range(readers + 1)]
    shapes = [((tokens, width), dtype)] * (readers + 1) + queries
    # Forward every read's sources, its output, and the logarithm of its denominator. Backward each
    # read's output and gradient for do . o; each source once, and once more for the queries'
    # gradients, its own gradient, every later read's do, and by read lse, do . o, and the logit's
    # gradient out and in.
    return Case(
        "depth_pull",
        f"{tokens} tokens, width {width}, {readers} readers",
        lambda device: normals(device, *shapes),
        stack,
        partial(stack, pull=False),
        {
            "forward": Work(tokens * ((reads + readers) * state + 4 * readers)),
            "backward": Work(
                tokens * ((2 * readers + 3 * (readers + 1) + reads) * state + 16 * reads)
            ),
        },
        compiles=(),
    )


def dense_aggregates(
    tokens: int, width: int, count: int, dtype: torch.dtype, ways: int = 4
) -> Case:
    """MUDDFormer's four reads."""

    def call(*x: Tensor, backend: Any = "auto") -> list[Tensor]:
        return dense_aggregate(x[-1], x[:-1], backend)

    def stacked(*x: Tensor) -> list[Tensor]:
        sums = torch.einsum("nws,snd->wnd", x[-1].to(x[0].dtype), torch.stack(x[:-1]))
        return list(sums.unbind())

    weights, state = 4 * ways * count, width * dtype.itemsize
    shapes = [((tokens, width), dtype)] * count + [((tokens, ways, count), torch.float32)]
    return Case(
        "dense_aggregate",
        f"{tokens} tokens, width {width}, {count} sources, {ways} ways",
        lambda device: normals(device, *shapes),
        call,
        stacked,
        {
            "forward": Work(tokens * ((count + ways) * state + weights)),
            "backward": Work(tokens * ((2 * count + ways) * state + 2 * weights)),
        },
    )


def stream_scores(tokens: int, width: int, dtype: torch.dtype, streams: int = 4) -> Case:
    """What an mHC unit's coefficients are made of: n read, n write and n^2 carry scores."""
    entries, scores = streams * width, streams * (streams + 2)

    def call(x: Tensor, weight: Tensor, backend: Any = "auto") -> Tensor:
        return stream_score(x, weight, backend=backend)

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        flat = x.float().flatten(-2)
        return (flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)) @ weight.mT

    # Kept in float32: the scores and one inverse root mean square. Back, both and the gradient.
    state, kept = entries * dtype.itemsize, 4 * (scores + 1)
    product = 2.0 * tokens * entries * scores
    return Case(
        "stream_mix",
        f"scores, {tokens} tokens, {streams} streams of width {width}",
        lambda device: normals(
            device, ((tokens, streams, width), dtype), ((scores, entries), torch.float32)
        ),
        call,
        normed,
        {
            "forward": Work(tokens * (state + kept), product),
            "backward": Work(tokens * (2 * state + kept + 4 * scores), 2 * product),
        },
    )


def simplicials(
    rows: int,
    length: int,
    heads: int,
    kv_heads: int,
    size: int,
    windows: tuple[int, int],
    dtype: torch.dtype,
) -> Case:
    """2-simplicial attention of whole rows."""

    def call(*x: Tensor, backend: Any = "auto") -> Tensor:
        q, k, pair_k, v, pair_v = x
        return simplicial_attention(q, (k, pair_k), (v, pair_v), windows, backend=backend)

    def dense(*x: Tensor) -> Tensor:
        """Scores of all pairs of positions at once, masked."""
        q, *kv = x
        k, pair_k, v, pair_v = (y.repeat_interleave(heads // kv_heads, 2) for y in kv)
        scores = torch.einsum("bihd,bjhd,bkhd->bhijk", q * size**-0.5, k, pair_k)
        back = torch.arange(length, device=q.device)
        back = back.unsqueeze(-1) - back
        first, second = ((back >= 0) & (back < window) for window in windows)
        scores = scores.masked_fill(~(first.unsqueeze(-1) & second.unsqueeze(-2)), -torch.inf)
        weights = scores.flatten(-2).softmax(-1).view(scores.shape)
        return torch.einsum("bhijk,bjhd,bkhd->bihd", weights, v, pair_v)

    # Pairs that a row's queries see: FLOPs of one product, over all heads.
    pairs = sum(min(i + 1, windows[0]) * min(i + 1, windows[1]) for i in range(length))
    product = 2 * rows * heads * size * pairs
    q, kv = rows * length * heads, rows * length * kv_heads
    row = size * dtype.itemsize
    # Beyond it dense scores are too many, and so are the groups that a compiler would unroll.
    small = rows * heads * length**3 <= 1 << 24
    shapes = [((rows, length, heads, size), dtype), *[((rows, length, kv_heads, size), dtype)] * 4]
    return Case(
        "simplicial_attention",
        f"{rows} x {length} tokens, {heads} heads on {kv_heads} of {size}, windows {windows}",
        lambda device: normals(device, *shapes),
        call,
        dense if small else None,
        {
            # Two products: scores and outputs.
            "forward": Work((2 * q + 4 * kv) * row + 4 * q, 2 * product),
            # Six: scores again, their gradient, and one of q with k', of v', of k and of v.
            "backward": Work((4 * q + 8 * kv) * row + 8 * q, 6 * product),
        },
        compiles=("naive", "reference") if small else (),
    )


def delta_rules(
    batch: int,
    length: int,
    heads: int,
    keys: int,
    values: int,
    dtype: torch.dtype,
    chunk: int = 32,
) -> Case:
    """With decay, from no state, beside the recurrence position by position."""

    def leaves(device: str) -> list[Tensor]:
        rows, wide = (batch, length, heads), torch.float32
        shapes = [((*rows, size), wide) for size in (keys, keys, values)] + [(rows, wide)] * 2
        with torch.no_grad():
            q, k, v, b, g = normals(device, *shapes)
            made = [*(x.to(dtype) for x in (l2_norm(q), l2_norm(k), v)), b.sigmoid(), -g.exp()]
        return [x.requires_grad_() for x in made]

    def call(*x: Tensor, backend: Any = "auto") -> tuple[Tensor, Tensor]:
        return delta_rule(*x, chunk=chunk, backend=backend)

    # States before each chunk, what it writes, its two matrices of pairs, and four float32s of
    # strength, decay, entry and exit. Products are those of the kernels: the inverse by halves.
    e, tokens, pairs = dtype.itemsize, batch * length * heads, keys * values
    kept = e * (pairs / chunk + values + 2 * chunk) + 8
    given, halves = e * (2 * keys + values) + 8, chunk.bit_length() - 2
    forward = 6 * pairs + 4 * chunk * (keys + values) + 4 * chunk * chunk * halves
    backward = 12 * pairs + chunk * (10 * keys + 8 * values)
    return Case(
        "delta_rule",
        f"{batch} x {length} tokens, {heads} heads of {keys} x {values}",
        leaves,
        call,
        delta_rule_recurrent,
        {
            "forward": Work(tokens * (given + e * values + kept), tokens * forward),
            "backward": Work(tokens * (2 * given + e * values + kept), tokens * backward),
        },
        # A compiler would unroll every position.
        compiles=("reference",),
    )


#: At the size of a test on one thread of a CPU, and at the size of training on a GPU.
ON_CPU = [
    depth_reads(1024, 256, 9, torch.float32),
    depth_pulls(1024, 256, 8, torch.float32),
    dense_aggregates(1024, 256, 9, torch.float32),
    stream_scores(1024, 256, torch.float32),
    simplicials(1, 128, 4, 1, 32, (32, 8), torch.float32),
    delta_rules(4, 256, 4, 64, 64, torch.float32),
]
ON_GPU = [
    make(32768, 1024, count, torch.bfloat16)
    for make in (depth_reads, dense_aggregates)
    for count in (9, 17)
] + [
    depth_pulls(32768, 1024, 16, torch.bfloat16),
    stream_scores(32768, 1024, torch.bfloat16),
    *(delta_rules(32, 1024, 8, 128, values, torch.bfloat16) for values in (128, 256)),
]
ON_GPU += [simplicials(8, 4096, 8, 1, 128, (wide, 32), torch.bfloat16) for wide in (512, 64)]


def forms(case: Case, naive: str, backends: Sequence[str]) -> dict[str, Form]:
    """Everything that is timed: the naive form first, then the operation by each backend."""
    found = {} if case.naive is None else {naive: case.naive}
    for backend in backends:
        found[backend] = partial(case.call, backend=backend)
    if case.naive is not None and "naive" in case.compiles:
        found[f"{naive}, compiled"] = torch.compile(case.naive, fullgraph=True)
    if "reference" in case.compiles:
        found["reference, compiled"] = torch.compile(
            partial(case.call, backend="reference"), fullgraph=True
        )
    return found
