"""Jacobi iteration of the part of the stack that a recurrence runs through (arXiv:2607.15178).

A first sweep over everything, without memory, keeps the state X at the interval's entry. Then
D - 1 sweeps evaluate the interval's units alone, all positions from X, memory shifted by one
position between them, and a last sweep over everything is scored. The memory is thus fed back D
times, and gradients cross the last B of those edges; X keeps its own at every pass that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class MiddleJacobi(Schedule):
    """T2MLR's schedule: refine the route's interval only, then score one sweep over everything.

    It costs 2 + (D - 1) I / U token-forwards per token, I of the U units being the route's
    interval: blocks a to b with T2MLR, all that memory passes through with other routes.

    Args:
        forward: D, how often memory is fed back; D >= T + 1 is the exact recurrence.
        backward: B, how many of the last feedback edges gradients cross; null is all of them.
    """

    def __init__(self, forward: int = 16, backward: int | None = 4) -> None:
        if forward < 1:
            raise UserError(f"schedule.forward={forward}: memory is fed back at least once")
        if backward is not None and backward < 0:
            raise UserError(f"schedule.backward={backward}: give 0 or more, or null for all edges")
        self.forward = forward
        self.backward = forward if backward is None else backward

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        everything, units = frame.positions, decoder.route.interval
        # Below unit 0 there is the embedding, where memory may enter too: no state is kept then.
        save = [units.start] if units.start else []
        out = decoder.sweep(frame, everything, save=save)
        entry = out.saved.get(units.start)
        carried = out.carried
        if carried is not None and self.backward < self.forward:
            carried = carried.detach()
        for edges in range(self.forward - 1, 0, -1):
            # So many feedback edges lie after this sweep; beyond B of them no graph is needed.
            with torch.set_grad_enabled(torch.is_grad_enabled() and edges <= self.backward):
                memory = None if carried is None else decoder.memory(carried, frame, everything)
                carried = decoder.sweep(frame, everything, memory, units=units, entry=entry).carried
        memory = None if carried is None else decoder.memory(carried, frame, everything)
        out = decoder.sweep(frame, everything, memory)
        yield Pass(everything, out.hidden, 1.0, "last pass")

    def cost(self, length: int, decoder: Decoder) -> float:
        share = len(decoder.route.interval) / decoder.shape.units
        return length * (2 + (self.forward - 1) * share)
