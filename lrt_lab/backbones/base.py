"""The backbone protocol: how state travels up through depth at one position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lrt_lab.errors import UserError
from lrt_lab.layers import Routing, Shape
from lrt_lab.mixers.base import Reads

Source = tuple[Tensor, Tensor]


def unchanged(x: Tensor) -> Tensor:
    """The injection of a route that injects nothing; a backbone may skip the work of an `enter`."""
    return x


class Backbone(Routing):
    """How state travels up through depth.

    A state is a value and is never changed: sweeps save it, enter it again and checkpoint it. Unit
    u is one sublayer; even units mix positions, odd ones are feed-forward.

    Attributes:
        inner_norm: the FFNs are to norm their hidden features, whatever their own option says.
        stands_for: what `hidden` returns, in words.
    """

    inner_norm: bool = False
    stands_for: str = "the state before the unit"

    def reads(self, unit: int) -> int:
        """How many tensors a unit reads: 1, or 3 where queries, keys and values read apart.

        The unit owns one norm for each of them. Known before `setup`.
        """
        return 1

    def restrict(self, readers: frozenset[int]) -> None:
        """Show a route's sources to these units only (U: the head); called before `setup`.

        Raises:
            UserError: where they would reach the other units too.
        """
        raise UserError(
            f"route.readers={sorted(readers)}: {type(self).__name__} adds a route's sources to its"
            " stream, which every unit reads; leave readers at null, or choose AttentionResiduals"
        )

    def narrow(self) -> None:
        """Let every unit and the head read the newest source alone, and a route's; before `setup`.

        Parameters keep their names and shapes; those of other sources have no effect.

        Raises:
            UserError: where there is nothing to choose: one stream, or several that carry the sum
                of everything before, is the newest source and holds all the others.
        """
        raise UserError(
            f"model.depth=newest: {type(self).__name__} does not choose among sources, its stream"
            " carries them all; leave depth at all, or choose AttentionResiduals"
        )

    def setup(self, shape: Shape, slots: int) -> None:
        """Create the parameters; those that exist for a route's slots get names of their own."""
        raise NotImplementedError

    def start(self, x: Tensor, sources: Sequence[Source]) -> Any:
        """The state below unit 0.

        Args:
            x: the embedding ``(B, P, d)``.
            sources: the route's depth sources, always ``slots`` pairs of ``(B, P, d)`` and
                ``(B, P)`` bool.
        """
        raise NotImplementedError

    def enter(self, state: Any, unit: int, inject: Callable[[Tensor], Tensor]) -> Any:
        """The state after the route's residual injection x -> x' before a unit."""
        raise NotImplementedError

    def read(self, state: Any, unit: int) -> Reads:
        """The un-normed input of a unit ``(B, P, d)``, or three for queries, keys and values."""
        raise NotImplementedError

    def write(self, state: Any, unit: int, y: Tensor) -> Any:
        """The state after the unit's output ``(B, P, d)``."""
        raise NotImplementedError

    def hidden(self, state: Any, unit: int) -> Tensor:
        """The one vector ``(B, P, d)`` that stands for the state before a unit.

        ``unit`` may be U: after the last one.
        """
        raise NotImplementedError

    def finish(self, state: Any) -> Tensor:
        """The un-normed input of the head, ``(B, P, d)``."""
        raise NotImplementedError

    def routing(self, state: Any, unit: int) -> dict[str, Tensor]:
        """What routes state into a unit, for diagnostics: the names that apply, or none.

        ``unit`` may be U: the head. Coefficients are those before a route's injection.

        - ``weights``: of a read over the backbone's own sources, ``(B, P, way, source)``.
        - ``streams``: ``(B, P, stream, d)``.
        - ``carry``: from stream to stream, ``(B, P, source, destination)``.
        """
        return {}
