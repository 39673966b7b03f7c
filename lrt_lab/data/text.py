"""TextData: a prepared corpus as training sees it.

The same seed gives every cell the same batches in the same order.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader
from torch import Tensor

from lrt_lab.data import corpora
from lrt_lab.data.base import Data, at_least, held_out
from lrt_lab.data.batch import Batch
from lrt_lab.data.cards import Card
from lrt_lab.data.chunks import SEPARATOR, VOCABULARY, prepared, stream, tokens
from lrt_lab.data.slices import EvaluationSlice, document_ids, windows
from lrt_lab.errors import UserError

__all__ = ["TextData"]


def collate(items: list[Tensor]) -> Batch:
    """Windows (length + 1,) -> the batch: tokens and document ids, both int64 (B, length + 1)."""
    stacked = torch.stack(items).long()
    return {"tokens": stacked, "document": document_ids(stacked, SEPARATOR)}


class TextData(Data):
    """Byte-level text, packed into windows with document separators.

    Args:
        corpus: Name of the corpus: `shakespeare`, `python` or `python+shakespeare`.
        length: Positions per window; a window holds one token more, the last target.
        batch_size: Windows per training batch.
        workers: Processes that read training batches; 0 reads in the training process. Their number
            is part of what decides the order.
        seed: Decides the order of the training windows, and nothing else.
        test_bytes: Size of the test slice in predicted tokens; None takes the whole split.
        validation_bytes: The same for the slice that is scored during training.
    """

    separator = SEPARATOR

    def __init__(
        self,
        corpus: str = "shakespeare",
        length: int = 128,
        batch_size: int = 16,
        workers: int = 0,
        seed: int = 1,
        test_bytes: int | None = None,
        validation_bytes: int = 32768,
    ) -> None:
        at_least(
            {
                "length": (length, 1),
                "batch_size": (batch_size, 1),
                "workers": (workers, 0),
                "seed": (seed, 0),
                "validation_bytes": (validation_bytes, 1),
                "test_bytes": (1 if test_bytes is None else test_bytes, 1),
            }
        )
        corpora.corpus(corpus)
        self.corpus = corpus
        self.length = length
        self.batch_size = batch_size
        self.workers = workers
        self.seed = seed
        self.test_bytes = test_bytes
        self.validation_bytes = validation_bytes

    @property
    def vocabulary(self) -> int:
        """256 bytes and the separator."""
        return VOCABULARY

    def size(self, split: str) -> int | None:
        """Predicted tokens of the slice on which runs are judged."""
        return self.test_bytes if split == "test" else self.validation_bytes

    def prepare_data(self) -> None:
        """Prepares the corpus once, in one process per machine."""
        prepared(self.corpus, self.length)

    @cached_property
    def _prepared(self) -> tuple[Path, Card]:
        return prepared(self.corpus, self.length)

    @property
    def card(self) -> Card:
        """What was prepared: documents, bytes, tokens, windows and hashes of each split."""
        return self._prepared[1]

    def identity(self) -> dict[str, Any]:
        """The text, its chunks and the tokens that training can see, for the record of a run."""
        found = {key: self.card[key] for key in ("corpus", "corpus_sha256", "index_sha256")}
        return {**found, "training_tokens": self.card["splits"]["train"]["tokens"]}

    def train_dataloader(self) -> StreamingDataLoader:
        """Shuffled training batches {"tokens", "document"}, each int64 (batch_size, length + 1).

        The loader's `state_dict` resumes exactly, within an epoch and between two.
        """
        folder, card = self._prepared
        windows_there = card["splits"]["train"]["windows"]
        if windows_there < self.batch_size:
            raise UserError(
                f"data.batch_size is {self.batch_size}, but the training split has only "
                f"{windows_there} windows of {self.length} positions: choose a smaller batch or a "
                "shorter length."
            )
        dataset = tokens(
            folder / "train", self.length, shuffle=True, drop_last=True, seed=self.seed
        )
        return StreamingDataLoader(
            dataset,
            batch_size=self.batch_size,
            num_workers=self.workers,
            drop_last=True,
            collate_fn=collate,
            # Without a generator, a loader draws from the global one whenever an epoch starts.
            generator=torch.Generator().manual_seed(self.seed),
        )

    def slices(self, split: str, size: int | None) -> EvaluationSlice:
        """The fixed windows of a held-out split, spread evenly over it.

        The slice's ``bytes`` counts the targets that are bytes: a separator carries none.
        """
        held_out(split)
        folder, _ = self._prepared
        return windows(stream(folder / split, self.length), self.length, size, SEPARATOR)
