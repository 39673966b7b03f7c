"""A route as independent choices: what is retained, how it changes, and who reads it.

    r_t = retain(state of position t)      one block's state, learned selections, or the whole bank
    z_t = change(r_{t-1}, x_t)             what a subclass is about
    position t reads z_t                   as an injection (`lrt_lab.routes.injection`), or as depth
                                           sources that all readers may choose, or some of them

How the dependency is trained is the schedule's choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lrt_kernels import Placement
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape
from lrt_lab.layers.parameter import Init
from lrt_lab.routes.base import Route, Traits
from lrt_lab.routes.injection import IDENTITY, Injection
from lrt_lab.routes.retain import Gather, Queries, slot_sources

Retain = Literal["block", "gather", "bank"]
Enters = Literal["injection", "read", "source"]


class Composed(Injection, Route, ABC):
    """Retain, change, read; a subclass says how what is retained changes on its way.

    Args:
        retain: "block", the hidden state after one block; "gather", ``count`` learned selections
            over the bank and the memory that arrived (a learned write); "bank", the embedding and
            every unit's output.
        source: of "block": this many blocks, null for ceil(3 L / 4) of them, or "top" for the
            normed state that the head reads.
        enters: "injection"; "read", the same into what the mixers read only; "source", as depth
            sources.
        readers: units that see the sources, the head being unit U; null is all of them.
        count: number of selections of "gather".
        scale: divides their logits.
        eps: inside their keys' root mean square.
        queries: theirs, one for each selection and source ("pairwise"), one for each selection
            ("shared"), or made from each position's top state ("input").
        projections: of the injection: one pair "shared" by all blocks, or "layerwise".
        gamma: initial scale of the injection.
    """

    #: What the queries of "gather" start from; None is zero.
    query_init: Init | None = None

    def __init__(
        self,
        retain: Retain,
        source: int | Literal["top"] | None,
        enters: Enters,
        readers: Sequence[int] | None,
        count: int = 1,
        scale: float = 1.0,
        eps: float = 1e-6,
        queries: Queries = "pairwise",
        projections: Literal["shared", "layerwise"] = "shared",
        gamma: float = 0.1,
    ) -> None:
        super().__init__()
        if retain not in ("block", "gather", "bank"):
            raise UserError(f"route.retain={retain!r}: give block, gather or bank")
        if retain != "block" and source is not None:
            raise UserError(
                f"route.source={source} is a block to retain: with route.retain={retain} leave it"
                " at null"
            )
        if enters not in ("injection", "read", "source"):
            raise UserError(f"route.enters={enters!r}: give injection, read or source")
        if queries not in ("pairwise", "shared", "input"):
            raise UserError(f"route.queries={queries!r}: give pairwise, shared or input")
        if projections not in ("shared", "layerwise"):
            raise UserError(f"route.projections={projections!r}: give shared or layerwise")
        if readers is not None and enters != "source":
            raise UserError(
                f"route.readers={list(readers)}: with route.enters={enters} every block receives;"
                " leave it at null, or set route.enters=source"
            )
        self.retain, self.source, self.enters = retain, source, enters
        self.readers = None if readers is None else frozenset(readers)
        self.count, self.scale, self.eps, self.queries = count, scale, eps, queries
        self.projections, self.initial_gamma = projections, gamma
        self.injects = enters != "source"
        port = {"injection": ("enter",), "read": ("read",), "source": ()}
        self.ports = frozenset(port[enters])
        self.traits = Traits(identity=IDENTITY) if self.injects else Traits(zero_is_none=None)

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        if self.readers is not None and (
            not self.readers or not self.readers <= set(range(shape.units + 1))
        ):
            raise UserError(
                f"route.readers={sorted(self.readers)}: give units from 0 to {shape.units - 1},"
                f" {shape.units} for the head, or null for all of them"
            )
        match self.retain:
            case "block":
                self.kept, self.needs = 1, self.setup_block(shape)
            case "gather":
                self.kept, self.needs = self.count, Taps(bank=True, top=self.queries == "input")
                self.gather = Gather(
                    shape,
                    self.kept,
                    self.kept,
                    self.scale,
                    self.eps,
                    self.queries,
                    self.query_init,
                )
            case "bank":
                self.kept, self.needs = shape.units + 1, Taps(bank=True)
        self.carries = (self.kept, shape.width)
        if self.injects:
            self.setup_injection(shape)
        else:
            self.slots = self.kept

    def setup_block(self, shape: Shape) -> Taps:
        """Where the retained state is tapped, and the interval that it runs through."""
        source = -(-3 * shape.blocks // 4) if self.source is None else self.source
        if source != "top" and source not in range(1, shape.blocks + 1):
            raise UserError(
                f"route.source={source}: give a number of blocks from 1 to {shape.blocks}, or top"
            )
        self.tap: int | Literal["top"] = "top" if source == "top" else 2 * source
        self.interval = range(shape.units if self.tap == "top" else self.tap)
        return Taps(top=True) if self.tap == "top" else Taps(units=(self.tap,))

    @abstractmethod
    def change(self, retained: Tensor, present: Tensor, at: View) -> Tensor:
        """z_t from r_{t-1} and token t, ``(B, P, kept, d)`` each; arbitrary where not present."""

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        if self.retain == "block":
            return taps[self.tap].unsqueeze(-2)
        embedding, *rest = taps["bank"]
        arrived, outputs = rest[: self.slots], rest[self.slots :]
        if self.retain == "bank":
            return torch.stack([value for value, _ in (embedding, *outputs)], dim=-2)
        arrived = arrived or slot_sources(memory, at, self.kept)
        return self.gather([embedding, *arrived, *outputs], taps["top"])

    def receive(self, carried: Tensor, present: Tensor, at: View) -> Memory:
        return super().receive(self.change(carried, present, at), present, at)

    def enter(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        return self.inject(unit, x, memory) if self.enters == "injection" else x

    def read(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        return self.inject(unit, x, memory) if self.enters == "read" else x

    def keys_values(
        self,
        unit: int,
        x: Tensor,
        k: Tensor,
        v: Tensor,
        memory: Memory | None,
        at: View,
        place: Placement | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.injects:
            return self.mix(unit, x, k, v, memory, place)
        return super().keys_values(unit, x, k, v, memory, at, place)

    def sources(self, memory: Memory | None, at: View) -> Sequence[tuple[Tensor, Tensor]]:
        return slot_sources(memory, at, self.slots) if self.slots else ()
