"""Counts what a decoder executes, by part; what repeats is executed once (`repeats`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import isfunction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import lrt_kernels
from lrt_lab.backbones import Backbone
from lrt_lab.decoder import Decoder, Sweep
from lrt_lab.mixers import Mixer
from lrt_lab.routes import Route
from lrt_lab.training.closed import closed_mixture, closed_sums
from lrt_lab.training.repeats import Repeats
from lrt_lab.training.tally import Counter, Tally, fused_attention, wrapping
from lrt_lab.training.uncompiled import uncompiled

#: No operations, or those that take what came before a reader and are counted by a closed form.
NOT_ONCE = (
    "alike",
    "backend",
    "backends",
    "dense_aggregate",
    "no_autocast",
    "read_scored",
    "wide",
)
#: Operations of `lrt_kernels` that are counted as one.
KERNELS = tuple(
    name
    for name in lrt_kernels.__all__
    if isfunction(getattr(lrt_kernels, name)) and name not in NOT_ONCE
)
#: Steps inside them that repeat, by module.
STEPS = (
    ("lrt_kernels.delta_rule", "chunk_step"),
    ("lrt_kernels.simplicial_attention", "grouped"),
)
#: Where a route norms and rotates a mixer's keys.
PLACES = ("lrt_kernels.inject_kv", "lrt_lab.routes.base")


def part_names(decoder: Decoder) -> dict[str, str]:
    """Which part each module belongs to, by the module's name."""
    names = {
        "embedding": "embedding",
        "head": "head",
        "norm": "norms",
        "backbone": f"backbone {type(decoder.backbone).__name__}",
        "route": f"route {type(decoder.route).__name__}",
    }
    for index in range(decoder.shape.units):
        body = decoder.unit(index).body
        kind = "mixer" if isinstance(body, Mixer) else "ffn"
        names[f"units.{index}"] = "norms"
        names[f"units.{index}.body"] = f"{kind} {type(body).__name__}"
    return names


def part_of(name: str, names: dict[str, str]) -> str:
    """The part of a parameter, by the longest module name that it starts with."""
    while name not in names:
        name = name.rpartition(".")[0]
    return names[name]


def ports(protocol: type) -> list[str]:
    """The methods of a protocol that run in a sweep."""
    aside = {"setup", "reads", "routing", "restrict", "narrow"}
    return [
        name
        for name, member in vars(protocol).items()
        if isfunction(member) and name not in aside and not name.startswith("_")
    ]


def likeness(module: nn.Module, without: str = "") -> Hashable:
    """Equal for modules that do the same work on the same inputs, but for parameters' shapes."""
    options = []
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or isfunction(value):
            continue
        options.append((name, frozen(value)))
    children = [(n, likeness(child)) for n, child in module.named_children() if n != without]
    return type(module), tuple(options), tuple(children)


def frozen(value: Any) -> Hashable:
    """A value as a key; what is no plain number or word is like nothing else."""
    if value is None or isinstance(value, (bool, int, float, str, frozenset, torch.dtype)):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return type(value), *map(frozen, value)
    return id(value)


Wrap = Callable[[Any, str, Callable[[Callable[..., Any]], Any]], None]


@contextmanager
def tallied(decoder: Decoder, repeat: bool = True) -> Iterator[Tally]:
    """Count everything that the decoder executes inside; the decoder is left as it was.

    Args:
        decoder: on the meta device.
        repeat: count what repeats without executing it again; the sums are the same either way.
    """
    tally = Tally()
    counter = Counter(tally)
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        replace = stack.enter_context(wrapping())
        if repeat and decoder.head.is_meta:
            repeats = Repeats(counter)
            # Works keep graphs whose nodes keep works, out of sight of Python's collector.
            stack.callback(repeats.known.clear)
            replace(sys.modules["lrt_kernels.depth_read"], "mixed", closed_mixture(counter))
            replace(sys.modules["lrt_kernels.dense_aggregate"], "summed", closed_sums(counter))
            kernels_once(repeats, replace)
            once(decoder, repeats, replace)
        count(decoder, counter, replace)
        placing(counter, part_names(decoder)["route"], replace)
        stack.enter_context(kept(decoder, counter))
        replace(functional, "scaled_dot_product_attention", fused_attention(counter))
        stack.enter_context(counter)
        yield tally


def once(decoder: Decoder, repeats: Repeats, replace: Wrap) -> None:
    """Let modules and whole sweeps be executed once for each form of what they are given."""

    def module(owner: nn.Module, method: str, key: Hashable) -> None:
        parameters = [*owner.parameters(), *constants(owner)]

        def by(run: Callable[..., Any]) -> Any:
            return lambda *args: repeats.call((method, key), run, args, parameters)

        replace(owner, method, by)

    def mixing(body: Mixer, key: Hashable) -> None:
        parameters = [*body.parameters(), *constants(body)]

        def by(run: Callable[..., Any]) -> Any:
            def mixed(reads: Any, at: Any, buffer: Any, inject: Any) -> Any:
                work = key, body.work(at.positions, buffer)
                args = reads, at, buffer
                return repeats.call(work, run, args, parameters, inject, blind=True, once=True)

            return mixed

        replace(body, "forward", by)

    for index in range(decoder.shape.units):
        unit = decoder.unit(index)
        norms = [p for name, p in unit.named_parameters() if not name.startswith("body.")]
        normed = ("normed", likeness(unit, without="body"))
        replace(unit, "normed", partial(called, repeats, normed, norms))
        if isinstance(unit.body, Mixer):
            mixing(unit.body, likeness(unit.body))
        else:
            module(unit.body, "forward", likeness(unit.body))
    for part in (decoder.backbone, decoder.route):
        for inner in part.modules():
            if inner is not part and not isinstance(inner, (nn.ModuleList, nn.ModuleDict)):
                module(inner, "forward", likeness(inner))
    mixers = decoder.mixers()
    parameters = [*decoder.parameters(), *constants(decoder)]

    def sweeping(run: Callable[..., Any]) -> Any:
        def swept(
            frame: Any,
            positions: range,
            memory: Any,
            buffers: Any,
            units: range,
            entry: Any,
            save: Any,
            reach: int,
        ) -> Sweep:
            held = buffers or {}
            works = tuple(mixers[u].work(positions, held.get(u)) for u in units if u in mixers)
            which = len(positions) if works else positions
            key = ("sweep", which, works, units, tuple(save), reach)

            def evaluated(frame: Any, memory: Any, buffers: Any, entry: Any) -> Any:
                return run(frame, positions, memory, buffers, units, entry, save, reach)

            args = frame, memory, buffers, entry
            out = repeats.call(key, evaluated, args, parameters, once=True)
            return Sweep(positions, out.hidden, out.carried, out.buffers, out.saved)

        return swept

    replace(decoder, "evaluated", sweeping)


def constants(module: nn.Module) -> list[Tensor]:
    """Tensors of a module that are no parameters; all of its calls share them."""
    own = (vars(inner).values() for inner in module.modules())
    found = [value for values in own for value in values if isinstance(value, Tensor)]
    return [*module.buffers(), *found]


def called(
    repeats: Repeats, key: Hashable, parameters: Sequence[Tensor], run: Callable[..., Any]
) -> Callable[..., Any]:
    """A function whose calls are executed once."""
    return lambda *args: repeats.call(key, run, args, parameters)


def kernels_once(repeats: Repeats, replace: Wrap) -> None:
    """The same for the operations of `lrt_kernels`, wherever the lab has imported them."""

    def by(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            def positional(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
                return run(*args, **options)

            # A mixer and a route may call the same one: what it takes is the caller's.
            key = "kernel", name, repeats.counter.part, repeats.counter.around
            return repeats.call(key, positional, (args, options))

        return counted

    lab = [m for name, m in sys.modules.items() if name.startswith("lrt_lab.")]
    places = [(place, name, lrt_kernels) for name in KERNELS for place in lab]
    places += [(sys.modules[module], name, sys.modules[module]) for module, name in STEPS]
    for place, name, source in places:
        if vars(place).get(name) is getattr(source, name):
            replace(place, name, partial(by, name))


def placing(counter: Counter, route: str, replace: Wrap) -> None:
    """Count the norm and rotation of keys under their mixer, though the route's pass does them."""

    def by(run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            with counter.inside(counter.around if counter.part == route else counter.part):
                return run(*args, **options)

        return counted

    for name in PLACES:
        replace(sys.modules[name], "place_heads", by)


def count(decoder: Decoder, counter: Counter, replace: Wrap) -> None:
    """Let every port count under its part, and sweeps, units and heads be counted."""
    names = part_names(decoder)

    def under(part: str) -> Callable[[Callable[..., Any]], Any]:
        def wrap(call: Callable[..., Any]) -> Any:
            def counted(*args: Any, **kwargs: Any) -> Any:
                with counter.inside(part):
                    return call(*args, **kwargs)

            return counted

        return wrap

    def sweep(call: Callable[..., Any]) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            counter.tally.sweeps += 1
            return call(*args, **kwargs)

        return counted

    def evaluate(call: Callable[..., Any]) -> Any:
        def counted(unit: int, reads: Any, at: Any, memory: Any, buffer: Any) -> Any:
            # What is evaluated again for the backward pass is no pass of its own.
            if torch._C._current_autograd_node() is None:  # type: ignore[attr-defined]
                share = len(at.positions) / decoder.shape.units
                counter.tally.evaluated += share
                counter.tally.graded += share * torch.is_grad_enabled()
                body = decoder.unit(unit).body
                if isinstance(body, Mixer) and decoder.attend == "all":
                    counter.tally.rescanned += body.rescans(at.positions, buffer)
            return call(unit, reads, at, memory, buffer)

        return counted

    def logits(call: Callable[..., Any]) -> Any:
        def counted(hidden: Tensor) -> Tensor:
            counter.tally.heads += hidden.shape[:-1].numel()
            with counter.inside("head"):
                return call(hidden)

        return counted

    for protocol, owner in ((Backbone, decoder.backbone), (Route, decoder.route)):
        part = names["backbone" if protocol is Backbone else "route"]
        for method in ports(protocol):
            replace(owner, method, under(part))
    for index in range(decoder.shape.units):
        unit = decoder.unit(index)
        replace(unit, "normed", under("norms"))
        replace(unit.body, "forward", under(names[f"units.{index}.body"]))
    replace(decoder.norm, "forward", under("norms"))
    for method in ("view", "embed"):
        replace(decoder, method, under("embedding"))
    replace(decoder, "sweep", sweep)
    replace(decoder, "evaluate", evaluate)
    replace(decoder, "logits", logits)


def kept(decoder: Decoder, counter: Counter) -> Any:
    """Note what autograd saves, each storage once, parameters not at all."""
    counter.owned = {p.untyped_storage()._cdata for p in decoder.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        counter.keep(counter.part, tensor.untyped_storage())
        with torch._C._DisableTorchDispatch():
            return tensor.detach()

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
