"""Multi-query associative recall (Arora et al., arXiv:2312.04927): the control.

A single attention layer solves it, and nothing has to be carried from one position to the next, so
no route should gain; a mixer whose state has a fixed size has to overwrite once there are more
associations than its keys have dimensions.
"""

from __future__ import annotations

from typing import Any

import torch

from lrt_lab.data.base import at_least
from lrt_lab.data.batch import IGNORED, Batch
from lrt_lab.data.tasks.base import Task, places
from lrt_lab.errors import UserError

__all__ = ["MQAR"]


class MQAR(Task):
    """Pairs of a key and its value, then each key again: its value is to be recalled.

    Of T positions the first 2 n hold n pairs, each key at most once. Then each key stands alone at
    a place drawn from the rest, where its value is the target; what is left is filled. Tokens: 0
    fills, then the keys, then the values. At twice the length there are as many pairs, and they are
    recalled from further away.

    A running row asks as it goes: every T / n positions hold a pair and, at their last one, any key
    so far. Accuracy by position is then recall by the number of associations held.

    Args:
        associations: pairs per row, n.
        keys: how many keys there are to draw from.
        values: how many values there are to draw from.
        running: ask for a key after every pair.
        length: positions per row, at least 3 n; evaluation adds rows of twice as many.
        batch_size: rows per training batch.
        seed: decides the training batches, and nothing else.
        test_rows: rows of the test slice.
        validation_rows: rows of the slice that is scored during training.
    """

    def __init__(
        self,
        associations: int = 8,
        keys: int = 64,
        values: int = 64,
        running: bool = False,
        length: int = 64,
        batch_size: int = 64,
        seed: int = 1,
        test_rows: int = 512,
        validation_rows: int = 256,
    ) -> None:
        super().__init__(length, batch_size, seed, test_rows, validation_rows)
        at_least({"associations": (associations, 1), "keys": (keys, 1), "values": (values, 2)})
        if associations > keys or 3 * associations > length:
            raise UserError(
                f"data.associations is {associations}: give at most data.keys ({keys}), and a "
                f"third of data.length ({length})."
            )
        self.associations, self.keys, self.values = associations, keys, values
        self.running = running

    @property
    def vocabulary(self) -> int:
        """Filler, keys, values."""
        return 1 + self.keys + self.values

    def options(self) -> dict[str, Any]:
        names = ("associations", "keys", "values", "running")
        return {name: getattr(self, name) for name in names}

    def draw(self, count: int, length: int, g: torch.Generator) -> Batch:
        n = self.associations
        keys = 1 + places(count, n, self.keys, g)
        values = 1 + self.keys + torch.randint(self.values, (count, n), generator=g)
        if self.running:
            first = length // n * torch.arange(n)
            at = (first + length // n - 1).expand(count, n)
            asked = (torch.rand(count, n, generator=g) * torch.arange(1, n + 1)).long()
        else:
            first = 2 * torch.arange(n)
            at = 2 * n + places(count, n, length - 2 * n, g)
            asked = torch.arange(n).expand(count, n)
        tokens = torch.zeros(count, length, dtype=torch.long)
        tokens[:, first], tokens[:, first + 1] = keys, values
        targets = torch.full_like(tokens, IGNORED)
        return {
            "tokens": tokens.scatter(1, at, keys.gather(1, asked)),
            "targets": targets.scatter(1, at, values.gather(1, asked)),
        }
