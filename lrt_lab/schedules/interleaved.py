"""LRT's interleaved parallel training, a cyclic Gauss-Seidel sweep (arXiv:2605.26797).

After one pass over everything, the positions t = s mod S are refined subset by subset, s = 0..S-1.
Each subset takes its memory from the latest states (its predecessors were refined just before,
except for s = 0), and writes its keys and values back before its queries attend, so it sees fresh
ones of all subsets up to its own and those of the first pass elsewhere. Nothing is detached. S = 1
is one Jacobi refinement, S = T the exact recurrence; otherwise positions 0..S-1 are exact.

That is one round. With several of them, the first ones without gradients, it is the multi-sweep
schedule of WhiteMatter (arXiv:2608.18486), which also compares strided subsets with contiguous
ones; there every position of a subset but the first takes its memory from the round before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class Interleaved(Schedule):
    """One pass over everything, then one over each of S interleaved subsets.

    Each round costs T token-forwards whatever S is. The passes that are scored, the first one and
    the subsets of the rounds with gradients, have equal weights, whatever number of positions each
    of them scores: 1 / (S + 1) with one round.

    Args:
        subsets: number of subsets S.
        rounds: rounds over all subsets that are scored and have gradients.
        warmup: rounds before those, neither scored nor with gradients; nothing then leads back from
            the later rounds to the first pass.
        contiguous: make each subset one stretch of neighbouring positions.
    """

    def __init__(
        self, subsets: int = 2, rounds: int = 1, warmup: int = 0, contiguous: bool = False
    ) -> None:
        if subsets < 1:
            raise UserError(f"schedule.subsets={subsets}: there must be at least one subset")
        if rounds < 1:
            raise UserError(f"schedule.rounds={rounds}: there must be at least one round")
        if warmup < 0:
            raise UserError(f"schedule.warmup={warmup}: give 0 (none) or more rounds")
        self.subsets, self.rounds = subsets, rounds
        self.warmup, self.contiguous = warmup, contiguous

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        length, subsets = frame.length, self.subsets
        if subsets > length:
            raise UserError(
                f"schedule.subsets={subsets}: more than the {length} positions of a row"
            )
        weight = 1 / (subsets * self.rounds + 1)
        out = decoder.sweep(frame, frame.positions)
        yield Pass(out.positions, out.hidden, weight, "pass 1")
        carried, buffers = out.carried, out.buffers
        # No graph of a warmup round is kept, and no yield may happen with gradients switched off.
        with torch.no_grad():
            for _ in range(self.warmup):
                for positions in self.groups(length):
                    _, carried, buffers = refine(decoder, frame, positions, carried, buffers)
        for number in range(1, self.rounds + 1):
            prefix = "" if self.rounds == 1 else f"round {number} "
            for subset, positions in enumerate(self.groups(length), start=1):
                hidden, carried, buffers = refine(decoder, frame, positions, carried, buffers)
                yield Pass(positions, hidden, weight, f"{prefix}subset {subset}")

    def groups(self, length: int) -> list[range]:
        """The positions of each subset."""
        if self.contiguous:
            cuts = [length * subset // self.subsets for subset in range(self.subsets + 1)]
            return [range(*pair) for pair in pairwise(cuts)]
        return [range(subset, length, self.subsets) for subset in range(self.subsets)]

    def cost(self, length: int, decoder: Decoder) -> float:
        return float((1 + self.warmup + self.rounds) * length)


def refine(
    decoder: Decoder,
    frame: Frame,
    positions: range,
    carried: Tensor | None,
    buffers: dict[int, Any],
) -> tuple[Tensor, Tensor | None, dict[int, Any]]:
    """Evaluate some positions anew: their top states, then what everything left since."""
    memory = None if carried is None else decoder.memory(carried, frame, positions)
    out = decoder.sweep(frame, positions, memory, buffers)
    if carried is not None and out.carried is not None:
        carried = write_back(carried, out.carried, positions)
    return out.hidden, carried, out.buffers


def write_back(carried: Tensor, fresh: Tensor, positions: range) -> Tensor:
    """``carried`` ``(B, T, ...)`` with the states of these positions replaced."""
    return torch.slice_scatter(carried, fresh, 1, positions.start, positions.stop, positions.step)
