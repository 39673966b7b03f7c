"""What a delta mixer keeps of the positions that a sweep does not recompute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Columns(NamedTuple):
    """What the recurrence takes in at each position, before convolution and norm.

    Attributes:
        q: queries ``(B, M, H, K)``.
        k: keys ``(B, M, H, K)``.
        v: values ``(B, M, H, V)``.
        beta: strength of each write ``(B, M, H)``.
        log_decay: ``(B, M, H)``; None is no decay.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor | None

    def at(self, columns: slice | Tensor) -> Columns:
        """Some of the columns."""
        return Columns(*(None if x is None else x[:, columns] for x in self))  # type: ignore[arg-type]

    def rows(self, rows: Tensor) -> Columns:
        """Some rows of the batch."""
        return Columns(*(None if x is None else x[rows] for x in self))  # type: ignore[arg-type]

    def append(self, new: Columns) -> Columns:
        """These columns, then others."""
        pairs = zip(self, new, strict=True)
        joined = (None if a is None or b is None else torch.cat([a, b], 1) for a, b in pairs)
        return Columns(*joined)  # type: ignore[arg-type]

    def replace(self, span: slice, new: Columns) -> Columns:
        """These columns with those of a span replaced."""
        cut = (1, span.start, span.stop, span.step)
        pairs = zip(self, new, strict=True)
        return Columns(*(None if a is None else a.slice_scatter(b, *cut) for a, b in pairs))  # type: ignore[arg-type]


@dataclass(frozen=True)
class DeltaBuffer:
    """An anchor, the state before it, and what the recurrence took in since then.

    A sweep over some positions replaces their columns and runs the recurrence again from the
    anchor: 0 in training, while decoding moves it on with every position. Buffers are values in
    decoding too, since a state is as large as its successor: an older buffer stays a snapshot.

    Attributes:
        anchor: first position that can be recomputed.
        before: state before the anchor, ``(B, H, K, V)``; None is zero.
        columns: of the positions from ``anchor - lead`` on.
        lead: positions before the anchor that the convolution looks back at.
        after: state after the last column, where the last sweep computed it.
    """

    anchor: int
    before: Tensor | None
    columns: Columns
    lead: int = 0
    after: Tensor | None = None

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.anchor - self.lead + self.columns.beta.shape[1]

    def write(self, positions: range, new: Columns) -> DeltaBuffer:
        """These positions replaced, or appended where they are new; ``after`` is forgotten."""
        if positions[0] >= self.end:
            columns = self.columns.append(new)
        elif positions[0] < self.anchor:
            raise ValueError(f"position {positions[0]} is final: states start at {self.anchor}")
        else:
            first = self.anchor - self.lead
            span = slice(positions.start - first, positions.stop - first, positions.step)
            columns = self.columns.replace(span, new)
        return DeltaBuffer(self.anchor, self.before, columns, self.lead)

    def commit(self, lead: int) -> DeltaBuffer:
        """The anchor after the last position, and ``lead`` positions before it."""
        if self.after is None:
            return self
        lead = min(lead, self.end, self.columns.beta.shape[1])
        kept = self.columns.at(slice(self.columns.beta.shape[1] - lead, None))
        return DeltaBuffer(self.end, self.after, kept, lead, self.after)

    def select(self, rows: Tensor) -> DeltaBuffer:
        """Some rows of the batch."""
        before = None if self.before is None else self.before[rows]
        after = None if self.after is None else self.after[rows]
        return DeltaBuffer(self.anchor, before, self.columns.rows(rows), self.lead, after)
