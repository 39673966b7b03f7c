"""LRT's interleaved parallel training, a cyclic Gauss-Seidel sweep (arXiv:2605.26797).

After one pass over everything, the positions t = s mod S are refined subset by subset, s = 0..S-1.
Each subset takes its memory from the latest states (its predecessors were refined just before,
except for s = 0), and writes its keys and values back before its queries attend, so it sees fresh
ones of all subsets up to its own and those of the first pass elsewhere. Nothing is detached. S = 1
is one Jacobi refinement, S = T the exact recurrence; otherwise positions 0..S-1 are exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class Interleaved(Schedule):
    """One pass over everything, then one over each of S interleaved subsets.

    It costs 2 T token-forwards whatever S is. Every pass's mean loss has weight 1 / (S + 1),
    whatever number of positions it scores.

    Args:
        subsets: number of subsets S.
    """

    def __init__(self, subsets: int = 2) -> None:
        if subsets < 1:
            raise UserError(f"schedule.subsets={subsets}: there must be at least one subset")
        self.subsets = subsets

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        length, subsets = frame.length, self.subsets
        if subsets > length:
            raise UserError(
                f"schedule.subsets={subsets}: more than the {length} positions of a row"
            )
        weight = 1 / (subsets + 1)
        out = decoder.sweep(frame, frame.positions)
        yield Pass(out.positions, out.hidden, weight, "pass 1")
        carried, buffers = out.carried, out.buffers
        for subset in range(subsets):
            positions = range(subset, length, subsets)
            memory = None if carried is None else decoder.memory(carried, frame, positions)
            out = decoder.sweep(frame, positions, memory, buffers)
            yield Pass(positions, out.hidden, weight, f"subset {subset + 1}")
            buffers = out.buffers
            if carried is not None and out.carried is not None:
                carried = write_back(carried, out.carried, positions)

    def cost(self, length: int) -> float:
        return 2.0 * length


def write_back(carried: Tensor, fresh: Tensor, positions: range) -> Tensor:
    """``carried`` ``(B, T, ...)`` with the states of these positions replaced."""
    return torch.slice_scatter(carried, fresh, 1, positions.start, positions.stop, positions.step)
