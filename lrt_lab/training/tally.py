"""Counts what a decoder executes: FLOPs by part, sweeps, heads, and what is kept for backward.

Nothing here knows a part's formula: operations are counted as they are dispatched, on any device,
the meta device included, where tensors have shapes and no values.

Matrix FLOPs are those of products (torch's own formulas, two per multiply-add) and of triangular
solves. Pointwise FLOPs are one per element and elementary function of everything else that
computes: norms, gates, softmaxes, weighted sums. Moving, masking and looking up cost nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lrt_lab.training.shapes import KNOWN, Known, blank

aten = torch.ops.aten
#: What is outside every part: the loss, and what a schedule does between sweeps.
OUTSIDE = "loss"
#: FLOPs per element of the output, where an operation is more than one elementary function.
PER_OUTPUT = {
    aten.addcmul: 2,
    aten.addcmul_: 2,
    aten.silu: 2,
    aten.silu_backward: 5,
    aten.gelu: 4,
    aten.gelu_backward: 8,
    aten.sigmoid_backward: 3,
    aten.tanh_backward: 3,
    aten._softmax: 4,
    aten._safe_softmax: 4,
    aten._softmax_backward_data: 4,
    aten._log_softmax: 4,
    aten._log_softmax_backward_data: 4,
    aten.cumsum: 1,
}
#: FLOPs per element of the input: reductions.
PER_INPUT = {aten.sum: 1, aten.mean: 1, aten.linalg_vector_norm: 2, aten.amax: 1}
#: Tagged as pointwise, but they move or choose and compute nothing.
FREE = {
    aten.where,
    aten.masked_fill,
    aten.masked_fill_,
    aten.clone,
    aten.copy,
    aten.copy_,
    aten.detach,
    aten.fill,
    aten.fill_,
    aten.zero_,
    aten._to_copy,
    aten.tril,
}


def solve_flops(a: Any, b: Any, *args: Any, left: bool = True, **kwargs: Any) -> int:
    """A triangular solve, n^2 per right-hand side; torch's counter does not know it.

    The chunkwise delta rule inverts one unit triangle per chunk with it.
    """
    columns = b[-1] if left else b[-2]
    return math.prod(b[:-2]) * a[-1] ** 2 * columns


#: Formulas beside torch's, for operations that it does not count; they take shapes.
EXTRA = {aten.linalg_solve_triangular: solve_flops}


@dataclass
class Work:
    """FLOPs, forward and backward together.

    Attributes:
        matrix: of matrix products.
        pointwise: of everything else.
    """

    matrix: float = 0.0
    pointwise: float = 0.0


@dataclass
class Tally:
    """What was executed.

    Attributes:
        work: FLOPs by part.
        saved: bytes kept for the backward pass by part, each storage once, parameters not at all.
        sweeps: calls of the stack, or of a range of its units.
        evaluated: token-forwards, in fractions of the stack.
        graded: those of them with gradients.
        heads: positions whose logits were computed.
        rescanned: positions that mixers evaluated beside their sweep's own, summed over mixers.
    """

    work: dict[str, Work] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    sweeps: int = 0
    evaluated: float = 0.0
    graded: float = 0.0
    heads: int = 0
    rescanned: int = 0

    def add(self, part: str, matrix: float = 0.0, pointwise: float = 0.0) -> None:
        """More FLOPs of a part."""
        work = self.work.setdefault(part, Work())
        work.matrix += matrix
        work.pointwise += pointwise

    @property
    def matrix(self) -> float:
        """Matrix FLOPs of all parts."""
        return sum(work.matrix for work in self.work.values())

    @property
    def pointwise(self) -> float:
        """Pointwise FLOPs of all parts."""
        return sum(work.pointwise for work in self.work.values())


def accumulate(total: Tally, tally: Tally, share: float) -> None:
    """Add a share of one tally to another."""
    for part, work in tally.work.items():
        total.add(part, share * work.matrix, share * work.pointwise)
    for part, size in tally.saved.items():
        total.saved[part] = total.saved.get(part, 0) + share * size  # type: ignore[assignment]
    for name in ("sweeps", "evaluated", "graded", "heads", "rescanned"):
        setattr(total, name, getattr(total, name) + share * getattr(tally, name))


class Counter(TorchDispatchMode):
    """Adds every dispatched operation to a tally, under the part that is at work.

    In a backward pass the part is the one whose forward made the autograd node: nodes are numbered
    in the order of their making.
    """

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally
        self.part = self.around = OUTSIDE
        self.since, self.parts = [0], [OUTSIDE]
        self.known: dict[Any, tuple[str, Any, Known | None]] = {}
        #: Storages of parameters, which are kept anyway.
        self.owned: set[int] = set()
        self.seen: set[int] = set()
        self.log: list[tuple[str, Any]] | None = None
        self.alive: list[Any] = []

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Count under this part; the innermost one holds, ``around`` is the one about it."""
        outer, around = self.part, self.around
        self.around = outer
        self.enter(part)
        try:
            yield
        finally:
            self.around = around
            self.enter(outer)

    def enter(self, part: str) -> None:
        """From now on count under this part."""
        self.part = part
        self.since.append(torch._C._autograd._get_sequence_nr())
        self.parts.append(part)

    def keep(self, part: str, storage: Any) -> None:
        """A storage is kept for the backward pass; it counts once."""
        if storage._cdata in self.owned or storage._cdata in self.seen:
            return
        self.seen.add(storage._cdata)
        # A freed storage's address could come again.
        self.alive.append(storage)
        if self.log is None:
            saved = self.tally.saved
            saved[part] = saved.get(part, 0) + storage.nbytes()
        else:
            self.log.append((part, storage))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Count into a tally of its own, and list what is kept; both are there until the end."""
        outer = self.tally, self.seen, self.log
        self.tally, self.seen, self.log = Tally(), set(), []
        try:
            yield
        finally:
            self.tally, self.seen, self.log = outer

    def part_at(self, number: int) -> str:
        """The part at work when the autograd node of this number was made."""
        return self.parts[bisect_right(self.since, number) - 1]

    def at_work(self) -> str:
        """The part that the running operation belongs to."""
        node = torch._C._current_autograd_node()  # type: ignore[attr-defined]
        # A forward inside a backward pass evaluates again what was not kept.
        if node is None or self.part != OUTSIDE:
            return self.part
        return self.part_at(node._sequence_nr())

    def kind(self, func: Any) -> tuple[str, Any]:
        """How an operation is counted, and by what factor or formula."""
        packet = func._overloadpacket
        if packet in EXTRA:
            return "matrix", EXTRA[packet]
        if packet in flop_registry:
            formula = flop_registry[packet]
            # What finds the shapes for torch's formula takes longer than the operation.
            inner = getattr(formula, "__wrapped__", None)
            return ("fused", formula) if inner is None else ("matrix", inner)
        if packet in PER_INPUT:
            return "input", PER_INPUT[packet]
        if packet in PER_OUTPUT:
            return "output", PER_OUTPUT[packet]
        if torch.Tag.pointwise in func.tags and packet not in FREE:
            return "output", 1
        return "free", 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = self.known.get(func)
        if known is None:
            known = self.known[func] = (*self.kind(func), KNOWN.get(func))
        how, factor, known_form = known
        out = None if known_form is None else known_form(args, kwargs)
        if out is None:
            out = func(*args, **kwargs)
        if how == "matrix":
            shapes = [a.shape if isinstance(a, Tensor) else a for a in args]
            done = factor(*shapes, **kwargs, out_shape=getattr(out, "shape", None))
            self.tally.add(self.at_work(), matrix=done)
        elif how == "fused":
            self.tally.add(self.at_work(), matrix=factor(*args, **kwargs, out_val=out))
        elif how != "free":
            counted = args[0] if how == "input" else out
            if isinstance(counted, Tensor) and counted.is_floating_point():
                self.tally.add(self.at_work(), pointwise=factor * counted.numel())
        return out


def fused_attention(counter: Counter) -> Callable[[Any], Callable[..., Tensor]]:
    """What takes the place of torch's attention: it counts it as the fused kernels do it.

    Scores are neither kept nor, as in `torch.nn.functional`'s plain form, copied; their FLOPs are
    counted as if they were computed once: two products forward and four backward over the full
    rectangle of queries by keys, and five operations per score each way. Devices that have a kernel
    execute it.
    """

    # In its place, and not by a mode, which all of torch's functions would pass through.
    def by(executed: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attention(
            q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any
        ) -> Tensor:
            if not q.is_meta:
                return executed(q, k, v, attn_mask, **options)
            y: Tensor = _Attention.apply(q, k, v, attn_mask, counter)
            return y

        return attention

    return by


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, counter: Counter
    ) -> Tensor:
        rows, heads, queries, _ = q.shape
        y = q.new_empty(rows, queries, heads, v.shape[-1]).transpose(1, 2)
        scale = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        # The kernels take a mask of numbers, and every call makes its own.
        bias = None if mask is None else torch.empty_like(mask, dtype=q.dtype)
        ctx.save_for_backward(q, k, v, y, scale, bias)
        ctx.counter = counter
        scores = q.shape[:-1].numel() * k.shape[-2]
        ctx.flops = 2 * scores * (q.shape[-1] + v.shape[-1])
        ctx.scores = scores
        counter.tally.add(counter.at_work(), ctx.flops, 5 * scores)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        q, k, v, *_ = ctx.saved_tensors
        counter = ctx.counter
        counter.tally.add(counter.at_work(), 2 * ctx.flops, 5 * ctx.scores)
        return blank(q), blank(k), blank(v), None, None


@contextmanager
def wrapping() -> Iterator[Callable[[Any, str, Callable[[Callable[..., Any]], Any]], None]]:
    """``wrap(owner, method, by)`` puts ``by(method)`` in a method's place until the block ends."""
    changed: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, method: str, by: Callable[[Callable[..., Any]], Any]) -> None:
        changed.append((owner, method, vars(owner).get(method)))
        object.__setattr__(owner, method, by(getattr(owner, method)))

    try:
        yield wrap
    finally:
        for owner, method, before in reversed(changed):
            if before is None:
                object.__delattr__(owner, method)
            else:
                object.__setattr__(owner, method, before)
