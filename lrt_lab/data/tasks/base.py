"""What all tasks share: rows that are generated, never stored, and that no two splits share.

A row belongs to a split by a hash of its tokens: a tenth to test, a tenth to validation, the rest
to training. Each split draws from all rows and keeps its own, so the splits are disjoint by
construction, whatever the seed, as long as a tenth of all rows is not empty.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lrt_lab.data.base import Data, at_least, held_out
from lrt_lab.data.batch import Batch
from lrt_lab.data.corpora import SPLITS
from lrt_lab.data.slices import EvaluationSlice
from lrt_lab.errors import UserError
from lrt_lab.rng import generator, key

__all__ = ["Batches", "Task", "places", "split_of"]

#: Of so many rows one is for test and one for validation.
SHARES = 10
#: So many draws of rows without one of its own, and a split counts as empty.
PATIENCE, DRAWN = 100, 64


class Task(Data):
    """Rows with right and wrong answers; training never sees one twice but by chance.

    Batch i of a seed depends on the seed and on i alone, so every cell of a seed sees the same
    batches and a cut run goes on exactly. Validation and test rows depend on neither.

    Args:
        length: positions per row; evaluation adds rows of twice as many.
        batch_size: rows per training batch.
        seed: decides the training batches, and nothing else.
        test_rows: rows of the test slice.
        validation_rows: rows of the slice that is scored during training.
    """

    def __init__(
        self,
        length: int = 16,
        batch_size: int = 64,
        seed: int = 1,
        test_rows: int = 512,
        validation_rows: int = 256,
    ) -> None:
        at_least(
            {
                "length": (length, 1),
                "batch_size": (batch_size, 1),
                "seed": (seed, 0),
                "test_rows": (test_rows, 1),
                "validation_rows": (validation_rows, 1),
            }
        )
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.test_rows = test_rows
        self.validation_rows = validation_rows

    @abstractmethod
    def draw(self, count: int, length: int, g: torch.Generator) -> Batch:
        """So many rows of ``length`` positions, drawn alike and independently of each other."""

    def options(self) -> dict[str, Any]:
        """What rows of one length depend on beside the generator."""
        return {}

    def identity(self) -> dict[str, Any]:
        """The task and its rows, for the record of a run."""
        return {"task": type(self).__name__, "length": self.length, **self.options()}

    def size(self, split: str) -> int:
        """Positions of the slice on which runs are judged."""
        rows = self.test_rows if split == "test" else self.validation_rows
        return rows * self.length

    def train_dataloader(self) -> Batches:
        """Fresh batches without end."""
        return Batches(self)

    def batch(self, index: int, rank: int = 0) -> Batch:
        """Training batch ``index`` of one process."""
        g = generator(self.seed, type(self).__name__, "train", index, rank)
        return self.rows("train", self.batch_size, self.length, g)

    def slices(self, split: str, size: int | None) -> EvaluationSlice:
        """The fixed rows of a held-out split."""
        held_out(split)
        return self._slice(split, size, self.length)

    def longer(self, split: str) -> EvaluationSlice:
        """As many rows as the split is judged on, of twice as many positions."""
        held_out(split)
        return self._slice(split, 2 * self.size(split), 2 * self.length)

    def _slice(self, split: str, size: int | None, length: int) -> EvaluationSlice:
        count = max(1, (self.size(split) if size is None else size) // length)
        # A smaller slice is the head of a larger one: rows are drawn a fixed number at a time.
        g = generator(0, type(self).__name__, split, length)
        batch = self.rows(split, count, length, g)
        raw = b"".join(str(tuple(t.shape)).encode() + t.numpy().tobytes() for t in batch.values())
        return EvaluationSlice(batch, 0, hashlib.sha256(raw).hexdigest())

    def rows(self, split: str, count: int, length: int, g: torch.Generator) -> Batch:
        """So many rows of a split.

        Raises:
            UserError: none turns up; the task has too few rows of this length.
        """
        found: list[Batch] = []
        have = missed = 0
        while missed < PATIENCE:
            drawn = self.draw(DRAWN, length, g)
            own = split_of(drawn["tokens"]) == SPLITS.index(split)
            found.append({name: values[own] for name, values in drawn.items()})
            mine = int(own.sum())
            have, missed = have + mine, 0 if mine else missed + 1
            if have >= count:
                return {name: torch.cat([part[name] for part in found])[:count] for name in drawn}
        raise UserError(
            f"data.length is {length}: {type(self).__name__} has too few rows of this length for a "
            f"{split} split of their own; give a greater one."
        )


def split_of(tokens: Tensor) -> Tensor:
    """The split that each row ``(B, N)`` belongs to, as an index into `SPLITS`, ``(B,)``."""
    # Arithmetic modulo 2^64; odd factors drawn once and for all, one per column.
    g = torch.Generator().manual_seed(key(0, "splits"))
    factors = torch.randint(-(2**62), 2**62, (tokens.shape[1],), generator=g) * 2 + 1
    value = ((tokens + 1) * factors).sum(1)
    # The low bits of a sum of products mix poorly: fold the high ones in.
    value = (value ^ (value >> 31)) * 0x7FB5D329728EA185
    share = (value >> 33) % SHARES
    return torch.where(share == 0, 1, torch.where(share == 1, 2, 0))


def places(rows: int, count: int, among: int, g: torch.Generator) -> Tensor:
    """In each row so many different numbers below ``among``, in random order."""
    return torch.rand(rows, among, generator=g).argsort(1)[:, :count]


class Batches:
    """The training batches of a task, from where its state says.

    Its length is out of reach: one epoch holds the whole run. That it has one keeps Lightning from
    fetching ahead, and so the state from counting a batch that was not trained on.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.index = 0

    def __len__(self) -> int:
        return 2**31

    def __iter__(self) -> Iterator[Batch]:
        ranks = torch.distributed
        rank = ranks.get_rank() if ranks.is_available() and ranks.is_initialized() else 0
        while True:
            self.index += 1
            yield self.task.batch(self.index - 1, rank)

    def state_dict(self) -> dict[str, int]:
        """How many batches were handed out."""
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after as many."""
        self.index = state["index"]
