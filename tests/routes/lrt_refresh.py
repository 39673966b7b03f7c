"""The LRT release's ``interleaved_kv_refresh``, which is not a sweep and so no part of the lab.

Before each subset the keys and values of the positions that have not been refined yet are mixed
anew with the memory as it stands; what the first pass made of their own tokens, gates included,
stays. Only the body of the mixing unit and what the engine hands it are replaced: the mixing is the
route's own port, the memory the engine's, the order of the subsets the schedule's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from lrt_lab.frame import Frame, Memory, View
from lrt_lab.mixers.attention import KeyValue
from tests.routes.lrt_release import ReleaseAttention, ReleaseDecoder


@dataclass(frozen=True)
class Stale(KeyValue):
    """Keys and values, and what the first pass read ``(B, T, d)``: they can be mixed anew."""

    read: Tensor | None = None

    def write(self, positions: range, k: Tensor, v: Tensor) -> Stale:
        fresh = super().write(positions, k, v)
        return Stale(fresh.k, fresh.v, fresh.in_place, self.read)


class RefreshedAttention(ReleaseAttention):
    """Keeps the first pass's reads in its buffer."""

    def forward(self, reads, at: View, buffer, inject):
        y, written = super().forward(reads, at, buffer, inject)
        return y, Stale(written.k, written.v, read=reads) if buffer is None else written

    def refresh(self, buffer: Stale, at: View, inject) -> Stale:
        """The buffer with the keys and values of these positions mixed anew."""
        cut = slice(at.positions.start, at.positions.stop, at.positions.step)
        return super().forward(buffer.read[:, cut], at, buffer, inject)[1]


class RefreshedDecoder(ReleaseDecoder):
    """Refreshes the buffers when a subset is about to be swept."""

    def memory(self, carried: Tensor, frame: Frame, positions: range, keep=None) -> Memory:
        self.entering = []
        for subset in range(positions.start, positions.step):
            later = range(subset, frame.length, positions.step)
            self.entering.append((later, super().memory(carried, frame, later, keep)))
        return self.entering[0][1]

    def sweep(self, frame: Frame, positions: range, memory=None, buffers=None, **options):
        if buffers is not None:
            buffers = {unit: self.refreshed(unit, b, frame) for unit, b in buffers.items()}
        return super().sweep(frame, positions, memory, buffers, **options)

    def refreshed(self, unit: int, buffer: Stale, frame: Frame) -> Stale:
        for positions, memory in self.entering:
            at = self.view(frame, positions, frame.length)
            inject = partial(self.route.keys_values, unit, memory=memory, at=at)
            buffer = self.unit(unit).body.refresh(buffer, at, inject)
        return buffer
