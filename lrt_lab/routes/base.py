"""The route protocol: what leaves position t-1, and where it enters position t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lrt_kernels import Placement, place_heads
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Routing, Shape


@dataclass(frozen=True)
class Traits:
    """What the test battery has to know of a route.

    Attributes:
        recurrent: whether anything travels from one position to the next.
        loops: sweeps that the exact recurrence takes at a position; the later ones get what the one
            before left there, and attend to what the same sweep left elsewhere.
        lookback: how many tokens back one sweep hears without token mixing.
        offset: after k feedback passes, positions up to k - offset are exact.
        zero_is_none: a zero memory gives the same outputs as no memory; None where that depends on
            the backbone (a source of zeros is nothing to a sum, but takes its share of a softmax).
        absent_is_none: a memory that is absent everywhere does.
        silent: only silent positions receive.
        identity: values of parameters, by the start of their names, with which every pass equals
            the model without a route; empty where there are none on every backbone.
    """

    recurrent: bool = True
    loops: int = 1
    lookback: int = 0
    offset: int = 0
    zero_is_none: bool | None = True
    absent_is_none: bool = True
    silent: bool = False
    identity: tuple[tuple[str, float], ...] = ()

    @property
    def fed(self) -> bool:
        """Whether it needs what an earlier sweep left."""
        return self.recurrent or self.loops > 1

    def feedback(self, length: int) -> int:
        """Feedback passes after which ``length`` positions equal the exact recurrence."""
        return length - 1 + self.offset if self.recurrent else self.loops - 1


class Route(Routing):
    """A latent route. Every port defaults to the identity: a route implements only those it uses.

    Attributes:
        traits: what the tests and the schedules have to know of it.
        needs: what a sweep keeps for `emit`.
        slots: number of depth sources that the route adds.
        readers: the units that see them, U being the head; None is all of them.
        ports: those of "enter" and "read" that the route uses; a sweep leaves the others out.
        carries: shape of what leaves one position.
        interval: the units that the recurrence runs through: memory enters at the first one (or
            below it, when that is unit 0), and what leaves is known after the last one.
    """

    traits: Traits = Traits()
    needs: Taps = Taps()
    slots: int = 0
    readers: frozenset[int] | None = None
    ports: frozenset[str] = frozenset()
    carries: tuple[int, ...] = ()
    interval: range = range(0)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        named = ("enter", "read")
        cls.ports = frozenset(n for n in named if getattr(cls, n) is not getattr(Route, n))

    def setup(self, shape: Shape) -> None:
        """Create the parameters and fill in `needs`; by default one vector leaves a position."""
        self.carries = (shape.width,)
        self.interval = range(shape.units)

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        """What leaves these positions, ``(B, P, ...)``; independent of the next token."""
        raise NotImplementedError

    def receives(self, at: View) -> Tensor:
        """Which positions receive, ``(B, P)`` bool: all but document starts."""
        return ~at.start

    def receive(self, carried: Tensor, present: Tensor, at: View) -> Memory:
        """The memory entering positions t from what left t-1 (shifted); zero where absent."""
        mask = present.reshape(*present.shape, *[1] * (carried.dim() - 2))
        return Memory(carried.masked_fill(~mask, 0.0), present)

    def incoming(
        self, memory: Memory | None, at: View, lookup: Callable[[Tensor], Tensor]
    ) -> Memory | None:
        """What a sweep gives its ports as memory; ``lookup`` embeds token ids."""
        return memory

    def embed(self, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        """Port 1, the input of the stack ``(B, P, d)``."""
        return x

    def enter(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        """Port 2, the residual input of a unit ``(B, P, d)``."""
        return x

    def read(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        """Port 2 without a trace: what a unit reads ``(B, P, d)``, and nothing else, changes."""
        return x

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
        """Port 3, a mixer's keys and values ``(B, P, heads, head_dim)``; x is its normed read.

        Given ``place``, the keys are then normed and rotated as it says.
        """
        return k if place is None else place_heads(k, place), v

    def sources(self, memory: Memory | None, at: View) -> Sequence[tuple[Tensor, Tensor]]:
        """Port 4, ``slots`` extra depth sources.

        ``(B, P, d)`` with ``(B, P)`` bool where present.
        """
        return ()


class NoRoute(Route):
    """Nothing travels from one position to the next except through token mixing."""

    traits = Traits(recurrent=False)
