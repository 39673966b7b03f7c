"""Evaluation slices: the fixed windows on which every cell of a comparison is judged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from lrt_lab.data.batch import Batch, positions

__all__ = ["EvaluationSlice", "document_ids", "windows"]


def document_ids(tokens: Tensor, separator: int) -> Tensor:
    """Counts the separators at or before each position of its window: (..., T) -> (..., T).

    A window that starts inside a document has id 0 there; the first separator starts id 1.
    """
    return (tokens == separator).long().cumsum(-1)


@dataclass(frozen=True)
class EvaluationSlice:
    """Fixed rows of one split.

    Attributes:
        batch: All rows, as in a training batch. Of text, windows in order: neighbours in the full
            split share one token, the last target of one and the first input of the next, so each
            token is a target once.
        bytes: How many targets are bytes, 0 where there is no text. Separators are predicted and
            their loss counts, but they carry no byte, so bits per byte divide by this number.
        sha256: Hash of the rows and their shape: equal hashes mean the same evaluation.
    """

    batch: Batch
    bytes: int
    sha256: str

    def __len__(self) -> int:
        return len(self.batch["tokens"])

    @property
    def positions(self) -> int:
        """How many positions there are, all rows together."""
        return positions(self.batch)

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the rows."""
        return {name: values[start:stop] for name, values in self.batch.items()}


def windows(stream: Tensor, length: int, size: int | None, separator: int) -> EvaluationSlice:
    """Cuts a stream into windows of `length` predictions.

    With `size`, at most `size` targets are kept (but at least one window): whole windows at equal
    distances over the split, so that a small slice still sees every long document. Without, all.
    """
    total = (len(stream) - 1) // length
    kept = total if size is None else max(1, min(total, size // length))
    starts = torch.arange(kept) * total // kept * length
    tokens = stream.long()[starts[:, None] + torch.arange(length + 1)]
    raw = str(tuple(tokens.shape)).encode() + tokens.numpy().astype("<i2").tobytes()
    return EvaluationSlice(
        batch={"tokens": tokens, "document": document_ids(tokens, separator)},
        bytes=int((tokens[:, 1:] != separator).sum()),
        sha256=hashlib.sha256(raw).hexdigest(),
    )
