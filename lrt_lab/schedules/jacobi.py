"""Jacobi iteration of the recurrence: h^k = F(x, shift(h^{k-1})), all positions at once.

Position t is exact once k feedback passes have reached it, so T - 1 of them make all T positions
exact (plus the route's exactness offset).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class Jacobi(Schedule):
    """All positions by all units, ``count`` times; in between, memory moves on by one position.

    Args:
        count: number of passes, the first (without memory) counted.
        weights: relative weight of each pass's loss; null weighs them equally.
    """

    def __init__(self, count: int = 2, weights: Sequence[float] | None = None) -> None:
        if count < 1:
            raise UserError(f"schedule.count={count}: there must be at least one pass")
        weights = [1.0] * count if weights is None else list(weights)
        if len(weights) != count or min(weights) < 0 or sum(weights) <= 0:
            raise UserError(
                f"schedule.weights={weights}: give {count} numbers, none negative, not all 0"
            )
        self.count = count
        self.weights = [weight / sum(weights) for weight in weights]

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        memory = None
        for number, weight in enumerate(self.weights, start=1):
            out = decoder.sweep(frame, frame.positions, memory)
            yield Pass(out.positions, out.hidden, weight, f"pass {number}")
            if number < self.count and out.carried is not None:
                memory = decoder.memory(out.carried, frame, frame.positions)

    def cost(self, length: int) -> float:
        return float(self.count * length)
