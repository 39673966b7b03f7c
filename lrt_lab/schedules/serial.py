"""The exact recurrence.

One position at a time, left to right. The truth that every schedule approximates.
"""

from __future__ import annotations

from collections.abc import Iterator

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class Serial(Schedule):
    """The token-serial recurrence, with gradients through all of it where they are enabled.

    Its T sequential steps make it the evaluation of record and a training schedule for small models
    only.
    """

    stepwise = True

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        hidden, _ = decoder.serial(frame, decoder.cache(len(frame.ids), frame.length))
        yield Pass(frame.positions, hidden, 1.0, "exact")

    def cost(self, length: int, decoder: Decoder) -> float:
        return float(length * decoder.route.traits.loops)
