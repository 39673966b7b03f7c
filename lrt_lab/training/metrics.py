"""What predictions are worth: bits per byte of text, accuracy where there are answers."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassExactMatch

from lrt_lab.data.batch import IGNORED


class Nats(Metric):
    """Cross entropy per predicted position, over everything it was given."""

    full_state_update = False
    higher_is_better = False
    nats: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        # float64: sums over millions of tokens must not lose the last digits.
        for name in ("nats", "tokens"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, losses: Tensor, targets: Tensor) -> None:
        """Add positions.

        Args:
            losses: nats per position, any shape; 0 where nothing is predicted.
            targets: the token ids that they are of, the same shape, or `IGNORED`.
        """
        self.nats += losses.double().sum()
        self.tokens += (targets != IGNORED).sum()

    def compute(self) -> Tensor:
        """Nats per position."""
        return self.nats / self.tokens

    @property
    def loss(self) -> float:
        """Nats per position, whatever else a metric below this one computes."""
        return float(self.nats / self.tokens)


class BitsPerByte(Nats):
    """sum of nats / (bytes * ln 2) over everything it was given.

    Separators carry nats but no byte: coding where documents end is part of coding the text.
    """

    bytes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("bytes", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, losses: Tensor, targets: Tensor) -> None:
        """Add tokens; ids below 256 are bytes."""
        super().update(losses, targets)
        self.bytes += (targets < 256).sum()

    def compute(self) -> Tensor:
        """Bits per byte."""
        return self.nats / (self.bytes * math.log(2))


class Accuracy:
    """Shares of predictions that are right.

    Over all positions that answer, over the last one of each row, and over rows that are right at
    all of theirs.

    Args:
        vocab: number of token ids.
    """

    def __init__(self, vocab: int) -> None:
        # Any number of classes gives the same shares, but torchmetrics wants two.
        classes = max(vocab, 2)
        self.metrics = {
            "accuracy": MulticlassAccuracy(classes, average="micro", ignore_index=IGNORED),
            "last_accuracy": MulticlassAccuracy(classes, average="micro"),
            "exact_match": MulticlassExactMatch(classes, ignore_index=IGNORED),
        }

    def update(self, predicted: Tensor, targets: Tensor) -> None:
        """Add rows ``(B, T)`` of predicted ids and targets; each row answers at least once."""
        answers = targets != IGNORED
        places = torch.arange(targets.shape[1], device=targets.device)
        last = (answers * places).argmax(1, keepdim=True)
        self.metrics["accuracy"].update(predicted, targets)
        self.metrics["exact_match"].update(predicted, targets)
        self.metrics["last_accuracy"].update(predicted.gather(1, last), targets.gather(1, last))

    def record(self) -> dict[str, float]:
        """The shares by name."""
        return {name: float(metric.compute()) for name, metric in self.metrics.items()}
