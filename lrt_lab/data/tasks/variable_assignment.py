"""Variable assignment: following a variable through several assignments to its value.

A chain x = 7, y = x, z = y has depth 2 at z. Attention takes a layer per assignment, or two per
doubling; a recurrence that resolves each variable as it is assigned takes one for all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from lrt_lab.data.base import at_least
from lrt_lab.data.batch import IGNORED, Batch
from lrt_lab.data.tasks.base import Task, places
from lrt_lab.errors import UserError

__all__ = ["VariableAssignment"]


class VariableAssignment(Task):
    """Chains of assignments, interleaved, then the last variable of each: its value is the target.

    An assignment is two tokens, a variable and what it is set to: a value at the head of its chain,
    else the variable before it. Chains keep their own order and are mixed at random. After all of
    them come the last variables in random order, one token each, their values being the targets.
    Rows hold as many chains as fit, after a filler. Tokens: 0 fills, then the values, then the
    variables. At twice the length there are twice as many chains of the same depth, or one more.

    Args:
        depth: assignments between a queried variable and the one that was set to a value, k.
        values: how many values there are to draw from.
        length: positions per row; a chain takes 2 (k + 1) + 1. Evaluation adds rows of twice as
            many.
        batch_size: rows per training batch.
        seed: decides the training batches, and nothing else.
        test_rows: rows of the test slice.
        validation_rows: rows of the slice that is scored during training.
    """

    def __init__(
        self,
        depth: int = 3,
        values: int = 10,
        length: int = 36,
        batch_size: int = 64,
        seed: int = 1,
        test_rows: int = 512,
        validation_rows: int = 256,
    ) -> None:
        super().__init__(length, batch_size, seed, test_rows, validation_rows)
        at_least({"depth": (depth, 0), "values": (values, 2)})
        self.depth, self.values = depth, values
        if not self.chains(length):
            raise UserError(
                f"data.length is {length}: a chain of depth {depth} takes {2 * depth + 3} positions"
            )

    def chains(self, length: int) -> int:
        """How many chains a row of so many positions holds."""
        return length // (2 * self.depth + 3)

    @property
    def variables(self) -> int:
        """Enough for rows of twice the length."""
        return self.chains(2 * self.length) * (self.depth + 1)

    @property
    def vocabulary(self) -> int:
        """Filler, values, variables."""
        return 1 + self.values + self.variables

    def options(self) -> dict[str, Any]:
        return {"depth": self.depth, "values": self.values}

    def draw(self, count: int, length: int, g: torch.Generator) -> Batch:
        chains, links = self.chains(length), self.depth + 1
        value = 1 + torch.randint(self.values, (count, chains), generator=g)
        names = 1 + self.values + places(count, chains * links, self.variables, g)
        names = names.view(count, chains, links)
        source = torch.cat([value.unsqueeze(2), names[:, :, :-1]], dim=2)
        assignments = torch.stack([names, source], dim=3).flatten(1, 2)
        # Random times, in order within each chain.
        order = torch.rand(count, chains, links, generator=g).sort(2).values.flatten(1).argsort(1)
        assignments = assignments.gather(1, order.unsqueeze(2).expand(-1, -1, 2)).flatten(1)
        asked = places(count, chains, chains, g)
        filler = torch.zeros(count, length - chains * (2 * links + 1), dtype=torch.long)
        tokens = torch.cat([filler, assignments, names[:, :, -1].gather(1, asked)], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, -chains:] = value.gather(1, asked)
        return {"tokens": tokens, "targets": targets}
