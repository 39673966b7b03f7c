"""Several schedules taking turns, microbatch by microbatch, as s3e42 trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule
from lrt_lab.schedules.jacobi import Jacobi


class Cycle(Schedule):
    """Each microbatch is trained by one of several schedules, in fixed turns.

    The default is s3e42's: of eight microbatches six run three Jacobi passes with losses weighted
    0.3, 0.3 and 0.4, two run four passes with the fourth one's loss. Microbatches are counted over
    the whole run, so the split is exact within every update where as many of them are accumulated,
    and over several updates otherwise. In evaluation mode the last schedule runs.

    Args:
        parts: the schedules; null is s3e42's two.
        turns: for how many microbatches in a row each of them runs; null is s3e42's six and two, or
            one each for other parts.
    """

    def __init__(self, parts: list[Schedule] | None = None, turns: list[int] | None = None) -> None:
        if turns is None:
            turns = [6, 2] if parts is None else [1] * len(parts)
        if parts is None:
            parts = [Jacobi(3, [0.3, 0.3, 0.4]), Jacobi(4, [0.0, 0.0, 0.0, 1.0])]
        if not parts or len(turns) != len(parts) or min(turns) < 1:
            raise UserError(
                f"schedule.turns={turns}: give one number of microbatches, at least 1, for each of"
                f" the {len(parts)} schedules"
            )
        self.parts, self.turns = parts, turns
        self.feeds_memory = all(part.feeds_memory for part in parts)

    def turn(self, clock: Clock) -> Schedule:
        """Whose turn it is."""
        left = (clock.step * clock.microbatches + clock.microbatch) % sum(self.turns)
        for part, count in zip(self.parts, self.turns, strict=True):
            if left < count:
                return part
            left -= count
        raise AssertionError("turns sum up to the cycle")

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        part = self.turn(clock) if decoder.training else self.parts[-1]
        return part.passes(decoder, frame, clock)

    def cost(self, length: int, decoder: Decoder) -> float:
        return sum(
            turns * part.cost(length, decoder)
            for part, turns in zip(self.parts, self.turns, strict=True)
        ) / sum(self.turns)

    def mixture(self) -> Sequence[tuple[float, Schedule]]:
        return [
            (turns / sum(self.turns) * share, inner)
            for part, turns in zip(self.parts, self.turns, strict=True)
            for share, inner in part.mixture()
        ]
