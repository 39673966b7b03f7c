"""Chains of additions modulo m: a state of log2(m) bits that every position changes."""

from __future__ import annotations

from typing import Any

import torch

from lrt_lab.data.base import at_least
from lrt_lab.data.batch import Batch
from lrt_lab.data.tasks.base import Task

__all__ = ["ModularAddition"]


class ModularAddition(Task):
    """Numbers, and at each position the sum of all so far: y_t = (y_{t-1} + x_t) mod m, y_{-1} = 0.

    Both are tokens 0..m - 1. Modulo 2 it is parity.

    Args:
        modulus: m.
        length: positions per row; evaluation adds rows of twice as many.
        batch_size: rows per training batch.
        seed: decides the training batches, and nothing else.
        test_rows: rows of the test slice.
        validation_rows: rows of the slice that is scored during training.
    """

    def __init__(
        self,
        modulus: int = 7,
        length: int = 16,
        batch_size: int = 64,
        seed: int = 1,
        test_rows: int = 512,
        validation_rows: int = 256,
    ) -> None:
        super().__init__(length, batch_size, seed, test_rows, validation_rows)
        at_least({"modulus": (modulus, 2)})
        self.modulus = modulus

    @property
    def vocabulary(self) -> int:
        """The numbers below m."""
        return self.modulus

    def options(self) -> dict[str, Any]:
        return {"modulus": self.modulus}

    def draw(self, count: int, length: int, g: torch.Generator) -> Batch:
        numbers = torch.randint(self.modulus, (count, length), generator=g)
        return {"tokens": numbers, "targets": numbers.cumsum(1) % self.modulus}
