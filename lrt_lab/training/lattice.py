"""The lattice of a model: what each unit reads, by the three paths on which state travels.

    depth     earlier outputs at the same position (residual routing)
    tokens    earlier positions at the same unit (token mixing)
    time      what left the position before (latent feedback)

Nothing is declared but how far a mixer looks back. One sweep runs on the meta device, where tensors
have shapes and no values; each unit's output, the stack's input and the memory of each port bear a
label, and every operation hands the labels of its inputs on to its outputs.

Heights number the outputs at a position: 0 is the stack's input, u + 1 the output of unit u.
Readers are the units and, as reader U, the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Memory
from lrt_lab.mixers import Mixer
from lrt_lab.training.meter import blank, tensors
from lrt_lab.training.tally import wrapping

PORTS = ("embed", "sources", "enter", "read", "keys_values")


@dataclass(frozen=True)
class Lattice:
    """Every edge, for one position and the one before it.

    Attributes:
        units: what each unit is.
        depth: for each reader, the heights whose outputs its read depends on at its position,
            other units' outputs being given.
        kept: for each reader, the heights of the vectors that the backbone keeps for it: a vector
            that sums several outputs stands at the newest of them.
        lookback: for each unit, the positions that it reaches before its own; None is all.
        leaves: heights whose outputs are in what leaves a position.
        tap: where it leaves, in words; empty where nothing does.
        enters: for each reader, the ports by which memory enters right there.
        hears: for each reader, whether memory reaches it without passing through another unit.
        across: positions that memory moves on by: 1, or 0 for a loop at one position.
    """

    units: tuple[str, ...]
    depth: tuple[frozenset[int], ...]
    kept: tuple[frozenset[int], ...]
    lookback: tuple[int | None, ...]
    leaves: frozenset[int]
    tap: str
    enters: tuple[tuple[str, ...], ...]
    hears: tuple[bool, ...]
    across: int


class Origins(TorchDispatchMode):
    """Hands labels on from the inputs of every operation to its outputs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = origins((args, kwargs or {}))
        for tensor in tensors(out):
            tensor.origins = found | origins(tensor)  # type: ignore[attr-defined]
        return out


def origins(value: Any) -> frozenset[Any]:
    """The labels of all tensors in a value."""
    if isinstance(value, Tensor):
        return getattr(value, "origins", frozenset())
    return frozenset().union(*(origins(tensor) for tensor in tensors(value)))


def labelled(like: Tensor, *labels: Any) -> Tensor:
    """A tensor of this shape with these labels and no others."""
    fresh = torch.empty_like(like)
    fresh.origins = frozenset(labels)  # type: ignore[attr-defined]
    return fresh


def relabelled(reads: Any) -> Any:
    """Reads without labels."""
    return tuple(map(labelled, reads)) if isinstance(reads, tuple) else labelled(reads)


def heights(labels: Iterable[Any]) -> frozenset[int]:
    """Those of the labels that are outputs."""
    return frozenset(label for label in labels if isinstance(label, int))


@torch.no_grad()
def lattice(decoder: Decoder) -> Lattice:
    """Every edge of a decoder on the meta device."""
    units, route = decoder.shape.units, decoder.route
    reads: dict[int, frozenset[Any]] = {}
    inside: dict[int, frozenset[Any]] = {}
    kept: dict[int, frozenset[int]] = {}

    def embed(call: Callable[..., Any]) -> Any:
        return lambda at: labelled(call(at), 0)

    def evaluate(call: Callable[..., Any]) -> Any:
        def traced(unit: int, read: Any, at: Any, memory: Any, buffer: Any) -> Any:
            reads[unit] = origins(read)
            y, buffer = call(unit, relabelled(read), at, memory, buffer)
            inside[unit] = origins(y)
            return labelled(y, unit + 1), buffer

        return traced

    def keep(state: Any, reader: int) -> None:
        held = [heights(origins(tensor)) for tensor in tensors(state)]
        kept[reader] = frozenset(max(found) for found in held if found)

    def enter(call: Callable[..., Any]) -> Any:
        def traced(state: Any, unit: int, inject: Any) -> Any:
            keep(state, unit)
            return call(state, unit, inject)

        return traced

    def finish(call: Callable[..., Any]) -> Any:
        def traced(state: Any) -> Tensor:
            keep(state, units)
            read = call(state)
            reads[units] = origins(read)
            return read

        return traced

    def port(name: str) -> Callable[[Callable[..., Any]], Any]:
        def by(call: Callable[..., Any]) -> Any:
            def traced(*given: Any, **named: Any) -> Any:
                def own(value: Any) -> Any:
                    if not isinstance(value, Memory):
                        return value
                    # Units are the first argument of the ports that have one.
                    unit = given[0] if isinstance(given[0], int) else None
                    return replace(value, value=labelled(value.value, (name, unit)), derived={})

                return call(*map(own, given), **{key: own(v) for key, v in named.items()})

            return traced

        return by

    frame = blank(decoder, 2)
    with wrapping() as wrap, Origins():
        wrap(decoder, "embed", embed)
        wrap(decoder, "evaluate", evaluate)
        wrap(decoder.backbone, "enter", enter)
        wrap(decoder.backbone, "finish", finish)
        for name in PORTS:
            wrap(route, name, port(name))
        memory = None
        if route.traits.fed:
            carried = decoder.embedding.new_zeros(1, frame.length, *route.carries)
            memory = decoder.memory(carried, frame, frame.positions)
        out = decoder.sweep(frame, frame.positions, memory)
    return Lattice(
        units=tuple(type(decoder.unit(unit).body).__name__ for unit in range(units)),
        depth=tuple(heights(reads[reader]) for reader in range(units + 1)),
        kept=tuple(kept[reader] for reader in range(units + 1)),
        lookback=tuple(lookback(decoder, unit) for unit in range(units)),
        leaves=heights(origins(out.carried)),
        tap=tap(decoder),
        enters=tuple(
            entrances(reads[reader] | inside.get(reader, frozenset()), reader)
            for reader in range(units + 1)
        ),
        hears=tuple(
            any(isinstance(x, tuple) for x in reads[reader] | inside.get(reader, frozenset()))
            for reader in range(units + 1)
        ),
        across=int(route.traits.recurrent or route.traits.lookback > 0),
    )


def lookback(decoder: Decoder, unit: int) -> int | None:
    """Positions that a unit reaches before its own."""
    body = decoder.unit(unit).body
    return body.lookback() if isinstance(body, Mixer) and decoder.attend == "all" else 0


def entrances(labels: frozenset[Any], reader: int) -> tuple[str, ...]:
    """The ports by which memory enters a reader itself, or a source that it reads."""
    ports = {x[0] for x in labels if isinstance(x, tuple) and x[1] in (None, reader)}
    return tuple(name for name in PORTS if name in ports)


def tap(decoder: Decoder) -> str:
    """Where memory leaves a position."""
    needs, units = decoder.route.needs, decoder.shape.units
    if needs.bank:
        return "the bank"
    if needs.top:
        return "the normed top state"
    if needs.units:
        return "the top state" if needs.units[0] == units else f"before unit {needs.units[0]}"
    return "the token" if decoder.route.traits.lookback else ""
