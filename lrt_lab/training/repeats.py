"""Counting again what is executed again, without executing it again.

A call whose tensors have the shapes, strides and types of an earlier call's does the same work. So
it is executed apart, on tensors of its own, and what that took is noted: FLOPs by part, what was
kept for the backward pass, the form of what came out. From then on the call is a single autograd
node that adds this to the tally. The work of its backward pass depends on which outputs have
gradients: for every such pattern it is executed once, when a backward pass first arrives there.

Blocks, chunks, and the passes of a schedule repeat in this way, on the meta device, where tensors
have nothing but a form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lrt_lab.frame import View
from lrt_lab.training.shapes import blank
from lrt_lab.training.tally import Counter, Tally, accumulate

Ref = tuple[str, int]


class Form:
    """The tensors inside some values, each once, and a key of all that is no tensor.

    Args:
        blind: leave the positions of a `View` out of the key.
    """

    def __init__(self, blind: bool = False) -> None:
        self.blind = blind
        self.tensors: list[Tensor] = []
        self.place: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.dicts: list[dict[Any, Any]] = []
        #: By way of what a tensor gets its gradient, where not directly.
        self.way: dict[int, Tensor] = {}

    def add(self, value: Any) -> Hashable:
        """The key of one more value."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, dict):
            self.dicts.append(value)
            return tuple((key, self.add(item)) for key, item in value.items())
        if isinstance(value, (list, tuple)):
            return (type(value), *map(self.add, value))
        if is_dataclass(value) and not isinstance(value, type):
            names = [f.name for f in fields(value)]
            if self.blind and isinstance(value, View):
                names.remove("positions")
            return (type(value), *(self.add(getattr(value, name)) for name in names))
        return type(value), value

    def tensor(self, value: Tensor) -> Hashable:
        """The key of a tensor: its form, or which of the earlier ones it is."""
        if id(value) in self.place:
            return self.place[id(value)]
        self.place[id(value)] = len(self.tensors)
        self.tensors.append(value)
        storage = self.storages.setdefault(value.untyped_storage()._cdata, len(self.tensors) - 1)
        graded = value.requires_grad and torch.is_grad_enabled()
        return value.shape, value.stride(), value.dtype, graded, storage


def rebuilt(value: Any, of: Callable[[Any], Any]) -> Any:
    """A value with its tensors, or what stands for them, replaced."""
    if isinstance(value, (Tensor, Slot)):
        return of(value)
    if isinstance(value, dict):
        return {key: rebuilt(item, of) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuilt(item, of) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(rebuilt(item, of) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for f in fields(value):
            object.__setattr__(made, f.name, rebuilt(getattr(value, f.name), of))
        return made
    return value


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor that a call returns: one of its inputs, or one of its own."""

    ref: Ref


@dataclass(frozen=True)
class Made:
    """The form of a tensor that a call makes, and the storage it lies in."""

    ref: Ref
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def new(self, storages: dict[Ref, Any]) -> Tensor:
        """Another one."""
        empty = torch.empty(0, dtype=self.dtype, device="meta")
        return empty.set_(storages[self.ref], self.offset, self.shape, self.stride)


@dataclass
class Work:
    """What a call took, as far as to its end or to where it calls back.

    Attributes:
        tally: its forward.
        kept: what it keeps of its inputs' and outputs' storages, by part.
        returns: what it returns, with slots for tensors, and what it left in its inputs' dicts.
        calls_back: whether these are the arguments of the call back.
        made: the tensors of its own among them, those with gradients first.
        fresh: bytes of their storages.
        inputs, outputs: of the execution, with its graph.
        graded: which inputs have gradients, and the part that hands it to them.
        early: those of them that are used before the last call back only.
        backward: tally of the backward pass and forms of the gradients, by which outputs have any.
    """

    tally: Tally
    kept: list[tuple[str, Ref]]
    returns: Any
    calls_back: bool
    made: list[Made]
    fresh: list[int]
    inputs: list[Tensor]
    outputs: list[Tensor]
    graded: dict[int, str]
    early: set[int]
    backward: dict[tuple[bool, ...], tuple[Tally, list[bool]]] = field(default_factory=dict)


class CallBack(BaseException):  # noqa: N818
    """Ends an execution where it calls back."""

    def __init__(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.given = given, named


class Repeats:
    """Executes calls once and counts their repetitions."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.known: dict[Hashable, Work] = {}
        self.met: set[Hashable] = set()

    def call(
        self,
        key: Hashable,
        run: Callable[..., Any],
        args: Sequence[Any],
        parameters: Sequence[Tensor] = (),
        back: Callable[..., Any] | None = None,
        blind: bool = False,
        once: bool = False,
    ) -> Any:
        """``run(*args)``, executed or counted; ``run(*args, back)`` where it calls back.

        Args:
            key: what the work depends on beside the arguments.
            run: a function of its arguments and parameters alone.
            args: nested containers of tensors.
            parameters: that it uses.
            back: what it calls in between; this is really called every time.
            blind: the work does not depend on the positions of a `View`, but by ``key``.
            once: note the first call already. Others just run the first time, since noting costs
                as much as a small call, and some never come again.
        """
        with torch._C.DisableTorchFunction():
            form = Form(blind)
            key = (key, torch.is_grad_enabled(), form.add(list(args)), form.add(list(parameters)))
            dicts = list(form.dicts)
        # Keys are long: every look-up hashes all of one.
        work = self.known.get(key)
        if work is None and not once and key not in self.met:
            self.met.add(key)
            return run(*args) if back is None else run(*args, back)
        answers: list[Any] = []
        if back is not None:
            way = gated(form.tensors)
        while True:
            if work is None:
                work = self.execute(run, args, parameters, form, back, answers)
                self.known[key] = work
            returned, left = self.again(work, form)
            for own, new in zip(dicts, left, strict=True):
                own.update(new)
            if not work.calls_back:
                return returned
            assert back is not None
            given, named = returned
            answers.append(back(*given, **named))
            # What the call back does comes later than all before it, so its gradients come first.
            form.way = way
            with torch._C.DisableTorchFunction():
                # What was left in a dict, such as a sweep's rotary tables, is found there now.
                key = (key, form.add(left), form.add(answers[-1]))
            work = self.known.get(key)

    def execute(
        self,
        run: Callable[..., Any],
        args: Sequence[Any],
        parameters: Sequence[Tensor],
        form: Form,
        back: Callable[..., Any] | None,
        answers: Sequence[Any],
    ) -> Work:
        """Execute, up to the first call back that has no answer yet."""
        counter, inner = self.counter, list(form.tensors)
        own = {id(p) for p in parameters}
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            for i, tensor in enumerate(form.tensors):
                if id(tensor) not in own:
                    graded = tensor.requires_grad and torch.is_grad_enabled()
                    inner[i] = tensor.detach().requires_grad_(graded)

        def of(tensor: Tensor) -> Tensor:
            return inner[form.place[id(tensor)]]

        mine = rebuilt(list(args), of)
        ready = [rebuilt(answer, of) for answer in answers]
        with torch._C.DisableTorchFunction():
            seen = Form()
            seen.add(mine)
        before = [set(own) for own in seen.dicts]

        resumed = 0

        def pause(*given: Any, **named: Any) -> Any:
            if not ready:
                raise CallBack(given, named)
            nonlocal resumed
            # What came before is counted already.
            counter.tally, counter.log = Tally(), []
            resumed = torch._C._autograd._get_sequence_nr()
            return ready.pop(0)

        with counter.apart():
            try:
                out = run(*mine) if back is None else run(*mine, pause)
                calls_back = False
            except CallBack as call:
                out, calls_back = call.given, True
            tally, log = counter.tally, counter.log
        left = [
            {k: v for k, v in own.items() if k not in had}
            for own, had in zip(seen.dicts, before, strict=True)
        ]
        assert log is not None
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return self.noted(tally, log, (out, left), calls_back, resumed, inner)

    def noted(
        self,
        tally: Tally,
        log: list[tuple[str, Any]],
        out: Any,
        calls_back: bool,
        resumed: int,
        inner: list[Tensor],
    ) -> Work:
        """What an execution took and returned."""
        places = {id(tensor): i for i, tensor in enumerate(inner)}
        refs: dict[int, Ref] = {
            tensor.untyped_storage()._cdata: ("in", i)
            for i, tensor in reversed(list(enumerate(inner)))
        }
        found = Form()
        found.add(out)
        own = [t for t in found.tensors if id(t) not in places]
        # A view of a parameter says that it has a gradient even where none are taken.
        graph = torch.is_grad_enabled()
        outputs = [t for t in own if graph and t.grad_fn is not None]
        own = [*outputs, *(t for t in own if not graph or t.grad_fn is None)]
        numbers = {id(tensor): i for i, tensor in enumerate(own)}
        fresh: list[int] = []
        made = []
        for tensor in own:
            storage = tensor.untyped_storage()
            if storage._cdata not in refs:
                refs[storage._cdata] = ("new", len(fresh))
                fresh.append(storage.nbytes())
            made.append(
                Made(
                    refs[storage._cdata],
                    tuple(tensor.shape),
                    tensor.stride(),
                    int(tensor.storage_offset()),
                    tensor.dtype,
                )
            )
        kept = []
        for part, storage in log:
            if storage._cdata in refs:
                kept.append((part, refs[storage._cdata]))
            else:
                tally.saved[part] = tally.saved.get(part, 0) + storage.nbytes()

        def slot(tensor: Tensor) -> Slot:
            if id(tensor) in places:
                return Slot(("in", places[id(tensor)]))
            return Slot(("new", numbers[id(tensor)]))

        returns = rebuilt(out, slot)
        leaves = {id(t): i for i, t in enumerate(inner) if graph and t.requires_grad}
        latest = used(outputs, leaves)
        graded = {i: self.counter.part_at(number) for i, number in latest.items()}
        early = {i for i, number in latest.items() if number < resumed}
        return Work(tally, kept, returns, calls_back, made, fresh, inner, outputs, graded, early)

    def again(self, work: Work, form: Form) -> tuple[Any, Any]:
        """Count a call and return what it returns."""
        counter, given = self.counter, form.tensors
        accumulate(counter.tally, work.tally, 1)
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            refs = [ref for _, ref in work.kept] + [made.ref for made in work.made]
            storages: dict[Ref, Any] = {
                ref: given[ref[1]].untyped_storage() for ref in refs if ref[0] == "in"
            }
            for i, size in enumerate(work.fresh):
                storages["new", i] = torch.UntypedStorage(size, device="meta")
            new = [made.new(storages) for made in work.made]
            for part, ref in work.kept:
                counter.keep(part, storages[ref])
            if work.outputs:
                flow = self.flow(work, given, form.way)
                count = len(work.outputs)
                new[:count] = _Again.apply(self, work, new[:count], *flow)
        returned, left = rebuilt(
            work.returns, lambda slot: (given if slot.ref[0] == "in" else new)[slot.ref[1]]
        )
        return returned, left

    def flow(self, work: Work, given: Sequence[Tensor], way: dict[int, Tensor]) -> list[Tensor]:
        """The inputs that get gradients, each by way of the part that hands it to them."""
        flow = {i: way[i] if i in way and i in work.early else given[i] for i in work.graded}
        for part in dict.fromkeys(work.graded.values()):
            if part != self.counter.part:
                mine = [i for i, own in work.graded.items() if own == part]
                with self.counter.inside(part):
                    passed = _Gate.apply(*(flow[i] for i in mine))
                flow.update(zip(mine, passed, strict=True))
        return list(flow.values())

    def backward(self, work: Work, pattern: tuple[bool, ...]) -> list[Tensor | None]:
        """Count a backward pass; gradients have a form and no values."""
        wanted = [work.inputs[i] for i in work.graded]
        if pattern not in work.backward:
            outputs = [out for out, has in zip(work.outputs, pattern, strict=True) if has]
            if outputs:
                with self.counter.apart():
                    ones = [blank(out) for out in outputs]
                    found = torch.autograd.grad(
                        outputs, wanted, ones, retain_graph=True, allow_unused=True
                    )
                    work.backward[pattern] = self.counter.tally, [g is not None for g in found]
            else:
                work.backward[pattern] = Tally(), [False] * len(wanted)
        tally, has = work.backward[pattern]
        accumulate(self.counter.tally, tally, 1)
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return [blank(own) if any_ else None for own, any_ in zip(wanted, has, strict=True)]


def used(outputs: Sequence[Tensor], leaves: dict[int, int]) -> dict[int, int]:
    """The leaves that outputs lead back to, each with the number of the last node that uses it.

    That node's gradient comes first, and later ones are added to it.
    """
    latest: dict[int, int] = {}
    stack: list[Any] = [t.grad_fn for t in outputs]
    seen = set(stack)
    while stack:
        node = stack.pop()
        for after, _ in node.next_functions:
            if after is None:
                continue
            if hasattr(after, "variable"):
                i = leaves.get(id(after.variable))
                if i is not None:
                    latest[i] = max(latest.get(i, 0), node._sequence_nr())
            elif after not in seen:
                seen.add(after)
                stack.append(after)
    return dict(sorted(latest.items()))


def gated(tensors: Sequence[Tensor]) -> dict[int, Tensor]:
    """A gate for each tensor with a gradient, as of now."""
    graded = [i for i, t in enumerate(tensors) if t.requires_grad and torch.is_grad_enabled()]
    if not graded:
        return {}
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return dict(zip(graded, _Gate.apply(*(tensors[i] for i in graded)), strict=True))


class _Again(torch.autograd.Function):
    """A call that is counted: tensors with gradients in and out."""

    @staticmethod
    def forward(
        ctx: Any, repeats: Repeats, work: Work, made: list[Tensor], *flow: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.repeats, ctx.work = repeats, work
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        pattern = tuple(grad is not None for grad in grads)
        return None, None, None, *ctx.repeats.backward(ctx.work, pattern)


class _Gate(torch.autograd.Function):
    """Tensors as they are; where their gradients are added up, the gate's part is at work."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return grads
