"""What every backbone of n parallel streams shares: all but how its coefficients come about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from lrt_kernels import stream_read, stream_write
from lrt_lab.backbones.base import Source, unchanged


class Coefficients(NamedTuple):
    """One unit's read, write ``(B, P, n)`` and carry ``(B, P, source, destination)``."""

    read: Tensor
    write: Tensor
    carry: Tensor


class Streams(NamedTuple):
    """The streams ``(B, P, n, d)``, and from `enter` on the coming unit's coefficients."""

    x: Tensor
    coming: Coefficients | None = None


class ParallelStreams:
    """Start, enter, read, write and hidden over streams X; a backbone adds `coefficients`.

        u = sum_s read_s X_s,    X'_r = sum_s carry_sr X_s + write_r F(RMS(u))

    A route's residual injection is made on the mean of the streams, and its change is added to
    every one of them; a route's sources are added to the embedding where they are present.
    """

    stands_for = "the mean of its streams"

    streams: int
    units: int

    def coefficients(self, streams: Tensor, unit: int) -> Coefficients:
        """A unit's read, write and carry for streams ``(B, P, n, d)``."""
        raise NotImplementedError

    def start(self, x: Tensor, sources: Sequence[Source]) -> Streams:
        """n copies of the embedding."""
        for value, present in sources:
            x = x + value * present.unsqueeze(-1)
        return Streams(x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, -1).contiguous())

    def enter(self, state: Streams, unit: int, inject: Callable[[Tensor], Tensor]) -> Streams:
        """The streams after the route's injection, and the unit's coefficients for them."""
        x = state.x
        if inject is not unchanged:
            mean = self.hidden(state, unit)
            injected = inject(mean)
            if injected is not mean:
                x = x + (injected - mean).unsqueeze(-2)
        return Streams(x, self.coefficients(x, unit))

    def read(self, state: Streams, unit: int) -> Tensor:
        """The unit's mixture of the streams."""
        return stream_read(state.x, self._coming(state, unit).read)

    def write(self, state: Streams, unit: int, y: Tensor) -> Streams:
        """The streams mixed among themselves, with the unit's output in each of them."""
        coming = self._coming(state, unit)
        return Streams(stream_write(state.x, coming.carry, coming.write, y))

    def hidden(self, state: Streams, unit: int) -> Tensor:
        """The mean of the streams."""
        return state.x.sum(-2) / self.streams

    def routing(self, state: Streams, unit: int) -> dict[str, Tensor]:
        """The streams, and below the head the carry."""
        if unit == self.units:
            return {"streams": state.x}
        return {"streams": state.x, "carry": self._coming(state, unit).carry}

    def _coming(self, state: Streams, unit: int) -> Coefficients:
        return self.coefficients(state.x, unit) if state.coming is None else state.coming
