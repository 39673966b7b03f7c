"""Bits per byte: how well a model codes text, whatever its tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric


class BitsPerByte(Metric):
    """sum of nats / (bytes * ln 2) over everything it was given.

    Separators carry nats but no byte: coding where documents end is part of coding the text.
    """

    full_state_update = False
    higher_is_better = False
    nats: Tensor
    tokens: Tensor
    bytes: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("nats", "tokens", "bytes"):
            # float64: sums over millions of tokens must not lose the last digits.
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, losses: Tensor, targets: Tensor) -> None:
        """Add tokens.

        Args:
            losses: nats per token, any shape.
            targets: the token ids that they are of, the same shape; ids below 256 are bytes.
        """
        self.nats += losses.double().sum()
        self.tokens += losses.numel()
        self.bytes += (targets < 256).sum()

    def compute(self) -> Tensor:
        """Bits per byte."""
        return self.nats / (self.bytes * math.log(2))

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nats / self.tokens)
