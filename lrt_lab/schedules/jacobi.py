"""Jacobi iteration of the recurrence: h^k = F(x, shift(h^{k-1})), all positions at once.

Position t is exact once k feedback passes have reached it, so T - 1 of them make all T positions
exact (plus the route's exactness offset). Damping c feeds back c m^{k-2} + (1 - c) m^{k-1}, m^{k-1}
being what the last pass left and m^{k-2} what was fed into it; the fixed point stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class Jacobi(Schedule):
    """All positions by all units, several times; in between, memory moves on by one position.

    Args:
        count: number of passes, the first (without memory) counted.
        weights: relative weight of each pass's loss; null weighs them equally.
        fewest: draw each batch's number of passes from this one to ``count``, evenly and leaving
            none out, since a gap in the counts shows in decoding; null is always ``count``, which
            is also what evaluation mode runs. With fewer passes the last of the weights apply.
        damping: share of what was fed into a pass in what is fed into the next one.
        backward: how many of the last feedback edges gradients cross; null is all of them, 0 none.
    """

    def __init__(
        self,
        count: int = 2,
        weights: Sequence[float] | None = None,
        fewest: int | None = None,
        damping: float = 0.0,
        backward: int | None = None,
    ) -> None:
        if count < 1:
            raise UserError(f"schedule.count={count}: there must be at least one pass")
        weights = [1.0] * count if weights is None else list(weights)
        if len(weights) != count or min(weights) < 0 or sum(weights) <= 0:
            raise UserError(
                f"schedule.weights={weights}: give {count} numbers, none negative, not all 0"
            )
        if fewest is not None and not 1 <= fewest <= count:
            raise UserError(f"schedule.fewest={fewest}: give 1 to {count} passes, or null")
        if fewest is not None and sum(weights[count - fewest :]) <= 0:
            raise UserError(
                f"schedule.weights={weights}: the last {fewest} cannot all be 0 when a batch may"
                " have as few passes"
            )
        if not 0 <= damping < 1:
            raise UserError(f"schedule.damping={damping}: give 0 (none) or more, and less than 1")
        self.count, self.fewest = count, fewest
        if backward is not None and backward < 0:
            raise UserError(f"schedule.backward={backward}: give 0 or more, or null for all edges")
        self.damping, self.backward = damping, backward
        self.weights = [weight / sum(weights) for weight in weights]

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        weights = self.drawn(clock) if decoder.training else self.weights
        memory = fed = None
        for number, weight in enumerate(weights, start=1):
            out = decoder.sweep(frame, frame.positions, memory)
            yield Pass(out.positions, out.hidden, weight, f"pass {number}")
            if number < len(weights) and out.carried is not None:
                # So many feedback edges lie after this pass, its own included.
                edges = len(weights) - number
                cut = self.backward is not None and edges > self.backward
                carried = out.carried.detach() if cut else out.carried
                if fed is not None and self.damping:
                    carried = self.damping * fed + (1 - self.damping) * carried
                fed = carried
                memory = decoder.memory(carried, frame, frame.positions)

    def drawn(self, clock: Clock) -> list[float]:
        """Weights of the passes of this batch."""
        if self.fewest is None:
            return self.weights
        g = clock.generator("pass count")
        return self.last(int(torch.randint(self.fewest, self.count + 1, (), generator=g)))

    def last(self, count: int) -> list[float]:
        """Weights of so many passes: the last ones, scaled to sum to 1."""
        weights = self.weights[self.count - count :]
        return [weight / sum(weights) for weight in weights]

    def cost(self, length: int, decoder: Decoder) -> float:
        fewest = self.count if self.fewest is None else self.fewest
        return (fewest + self.count) / 2 * length

    def mixture(self) -> Sequence[tuple[float, Schedule]]:
        if self.fewest is None:
            return super().mixture()
        counts = range(self.fewest, self.count + 1)
        return [
            (1 / len(counts), Jacobi(k, self.last(k), None, self.damping, self.backward))
            for k in counts
        ]
