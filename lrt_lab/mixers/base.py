"""The mixer protocol: how one layer mixes positions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

from torch import Tensor, nn

from lrt_kernels import Placement
from lrt_lab.frame import View
from lrt_lab.layers import Shape

Reads = Tensor | tuple[Tensor, Tensor, Tensor]
Inject = Callable[..., tuple[Tensor, Tensor]]


class Mixer(nn.Module):
    """How one layer mixes positions.

    A mixer's buffer is what it keeps of positions that a sweep does not recompute (K/V, a matrix
    state). Buffers are values while gradients flow: a forward returns a new one and never changes
    the old. A buffer from `allocate` is the exception, for decoding without gradients: it is
    written in place.
    """

    def setup(self, shape: Shape, block: int) -> None:
        """Create the parameters of this block's mixer."""
        raise NotImplementedError

    def kv(self, shape: Shape) -> tuple[int, int]:
        """(heads, features per head) of the keys and values that a route may inject into."""
        raise NotImplementedError

    def forward(self, reads: Reads, at: View, buffer: Any, inject: Inject) -> tuple[Tensor, Any]:
        """Mix the normed reads.

        Args:
            reads: ``(B, P, d)``, or three of them for queries, keys and values.
            at: the positions of this sweep.
            buffer: what this mixer kept of earlier positions, or None.
            inject: the route's port, (normed read, k, v) -> (k, v) with k and v ``(B, P, heads,
                head_dim)``, before any convolution, QK-norm or rotary embedding. Given ``place``,
                an `lrt_kernels.Placement`, it norms and rotates the keys as well.

        Returns:
            the unit's output ``(B, P, d)`` and the buffer with these positions in it.
        """
        raise NotImplementedError

    def lookback(self) -> int | None:
        """How many positions before its own an output depends on; None is all of them."""
        return None

    def rescans(self, positions: range, buffer: Any) -> int:
        """Positions that a forward with these arguments evaluates beside ``positions``."""
        return 0

    def work(self, positions: range, buffer: Any) -> Hashable:
        """What the work of a forward depends on beside shapes; by default the positions.

        The meter executes sweeps that agree in this once.
        """
        return positions

    def allocate(self, batch: int, capacity: int, like: Tensor) -> Any:
        """An empty buffer for decoding in place, with room for ``capacity`` positions."""
        raise NotImplementedError

    def commit(self, buffer: Any) -> Any:
        """Fold positions that are final into constant-size state (identity for attention)."""
        return buffer

    def select(self, buffer: Any, rows: Tensor) -> Any:
        """The buffer of some rows of the batch, independent of the old one."""
        raise NotImplementedError


def alone(mixer: Mixer, reads: Reads, at: View, inject: Inject) -> Tensor:
    """What a mixer makes of each position by itself, ``(B, P, d)``; nothing is kept of it.

    Positions become rows, so this holds for any mixer: attention returns its own value, a delta
    rule starts from an empty state, a convolution sees its newest tap.
    """

    def apart(x: Tensor) -> Tensor:
        return x.flatten(0, 1).unsqueeze(1)

    def together(x: Tensor) -> Tensor:
        return x.squeeze(1).unflatten(0, at.ids.shape)

    def port(
        x: Tensor, k: Tensor, v: Tensor, place: Placement | None = None
    ) -> tuple[Tensor, Tensor]:
        # A mixer that leaves the keys where they are says nothing of places.
        named = {} if place is None else {"place": place}
        k, v = inject(together(x), together(k), together(v), **named)
        return apart(k), apart(v)

    rows = tuple(map(apart, reads)) if isinstance(reads, tuple) else apart(reads)
    y, _ = mixer(rows, at.alone(), None, port)
    return together(y)


@cache
def notice(option: str, window: int, length: int) -> None:
    """Say once that a window is longer than the context; it then ends at the context's start."""
    if window > length > 1:
        logging.getLogger("lrt_lab").warning(
            "mixer %s=%d is longer than the context: clamped to %d", option, window, length
        )
