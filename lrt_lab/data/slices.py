"""Evaluation slices: the fixed windows on which every cell of a comparison is judged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["EvaluationSlice", "document_ids", "windows"]


def document_ids(tokens: Tensor, separator: int) -> Tensor:
    """Counts the separators at or before each position of its window: (..., T) -> (..., T).

    A window that starts inside a document has id 0 there; the first separator starts id 1.
    """
    return (tokens == separator).long().cumsum(-1)


@dataclass(frozen=True)
class EvaluationSlice:
    """Fixed windows of one split, in order of the text.

    Attributes:
        tokens: (N, length + 1) int64. A window predicts its positions 1..length. Neighbours in the
            full split share one token, the last target of one and the first input of the next, so
            each token is a target once.
        document: (N, length + 1) int64 document ids, as in a training batch.
        bytes: How many targets are bytes. Separators are predicted and their loss counts, but they
            carry no byte of text, so bits per byte divide by this number.
        sha256: Hash of the tokens and their shape: equal hashes mean the same evaluation.
    """

    tokens: Tensor
    document: Tensor
    bytes: int
    sha256: str

    @property
    def targets(self) -> int:
        """How many tokens are predicted, separators included."""
        return self.tokens[:, 1:].numel()


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
        tokens=tokens,
        document=document_ids(tokens, separator),
        bytes=int((tokens[:, 1:] != separator).sum()),
        sha256=hashlib.sha256(raw).hexdigest(),
    )
