"""Parity of the bits so far: the smallest state that has to be carried, one bit."""

from __future__ import annotations

import torch

from lrt_lab.data.batch import Batch
from lrt_lab.data.tasks.base import Task

__all__ = ["Parity"]


class Parity(Task):
    """Bits, and at each position the parity of all so far: y_t = y_{t-1} xor x_t, y_{-1} = 0.

    Both are tokens 0 and 1.
    """

    @property
    def vocabulary(self) -> int:
        """Two bits."""
        return 2

    def draw(self, count: int, length: int, g: torch.Generator) -> Batch:
        bits = torch.randint(2, (count, length), generator=g)
        return {"tokens": bits, "targets": bits.cumsum(1) % 2}
