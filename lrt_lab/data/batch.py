"""A batch: one row per example, in training and in evaluation alike.

It is a mapping of tensors that only a schedule's `prepare` turns into the frame and the targets of
its positions, in one of three forms:

    tokens (B, T + 1), document (B, T + 1)    text: each position predicts the next token
    tokens (B, T + 1), labels (B, T + 1)      steps: the same, but the question is not predicted
    tokens (B, T), targets (B, T)             each position answers, or is `IGNORED`

Document ids tell packed documents apart; without them a row is one document.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lrt_lab.frame import Frame

__all__ = ["ANSWER", "IGNORED", "PADDING", "QUESTION", "Batch", "framed", "positions"]

Batch = dict[str, Tensor]

#: A target that is not predicted, as torch's cross entropy has it.
IGNORED = -100
#: Labels of a row's tokens beside the numbers 1, 2, .. of its steps.
QUESTION, ANSWER, PADDING = 0, -1, -2


def framed(batch: Mapping[str, Tensor]) -> tuple[Frame, Tensor]:
    """The frame ``(B, T)`` of a batch, and the target of each of its positions, ``(B, T)``."""
    tokens = batch["tokens"]
    if "targets" in batch:
        return Frame(tokens), batch["targets"]
    ids, targets = tokens[:, :-1], tokens[:, 1:]
    if "labels" in batch:
        label = batch["labels"]
        given = (label == QUESTION) | (label == PADDING)
        frame = Frame(ids, question=given[:, :-1])
        return frame, torch.where(given[:, 1:], IGNORED, targets)
    return Frame.packed(ids, batch["document"][:, :-1]), targets


def positions(batch: Mapping[str, Tensor]) -> int:
    """How many positions a batch has, B T."""
    return (batch["targets"] if "targets" in batch else batch["tokens"][:, 1:]).numel()
