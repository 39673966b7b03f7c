"""One sweep over everything: plain language-model training."""

from __future__ import annotations

from collections.abc import Iterator

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class SinglePass(Schedule):
    """All positions by all units, once, without memory."""

    feeds_memory = False

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        out = decoder.sweep(frame, frame.positions)
        yield Pass(out.positions, out.hidden, 1.0, "pass 1")

    def cost(self, length: int, decoder: Decoder) -> float:
        return float(length)
