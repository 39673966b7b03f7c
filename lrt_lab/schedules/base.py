"""The schedule protocol: in what order a route's recurrence is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lrt_lab.data.batch import framed
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.rng import generator


@dataclass(frozen=True)
class Clock:
    """Where training stands; the source of a schedule's randomness and of what depends on progress.

    Attributes:
        step: optimizer steps done.
        microbatch: index of this batch within its optimizer step.
        seed: the run's seed.
        microbatches: how many of them make an optimizer step.
    """

    step: int = 0
    microbatch: int = 0
    seed: int = 1
    microbatches: int = 1

    def generator(self, purpose: str) -> torch.Generator:
        """A generator for one purpose at this step and microbatch, the same on every rank."""
        return generator(self.seed, "schedule", purpose, self.step, self.microbatch)


@dataclass(frozen=True)
class Pass:
    """A sweep whose predictions are scored.

    Attributes:
        positions: which positions.
        hidden: normed top states ``(B, P, d)``.
        weight: of this pass's mean loss in the total; the weights of all passes sum to 1 unless
            the schedule says otherwise.
        name: for logs.
    """

    positions: range
    hidden: Tensor
    weight: float
    name: str


class Schedule:
    """In what order a route's recurrence is evaluated; owns all randomness of training passes.

    The loss is sum_p weight_p * CE_p, each CE_p being the mean over pass p's own positions.
    """

    #: Whether the schedule lets memory in at all; a route needs one that does.
    feeds_memory: bool = True
    #: Whether it does so at silent positions only; a route has to be made for them.
    silent: bool = False
    #: Whether it evaluates one position after the other.
    stepwise: bool = False

    def prepare(self, batch: Mapping[str, Tensor], clock: Clock) -> tuple[Frame, Tensor]:
        """The frame ``(B, T)`` of a batch (`lrt_lab.data.batch`), and its positions' targets.

        Targets are `IGNORED` where nothing is predicted.
        """
        return framed(batch)

    def judged(self, batch: Mapping[str, Tensor]) -> tuple[Frame, Tensor]:
        """The same of a batch on which a model is judged: as training ends, nothing random."""
        return framed(batch)

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        """Yield the scored passes in order.

        The last one that scores a position has its final word. Nothing is drawn at random where
        the decoder is in evaluation mode.
        """
        raise NotImplementedError

    def cost(self, length: int, decoder: Decoder) -> float:
        """Token-forwards of a row of ``length`` positions, expected where pass counts are drawn."""
        raise NotImplementedError

    def rehearsal(self, length: int, device: torch.device) -> Frame:
        """A row such as training sees, for pricing; its ids mean nothing."""
        return Frame(torch.zeros(1, length, dtype=torch.long, device=device))

    def restarts(self, step: int) -> bool:
        """Whether the optimizer forgets its state before this optimizer step."""
        return False

    def mixture(self) -> Sequence[tuple[float, Schedule]]:
        """The schedules that batches are trained by, each with its share of the batches."""
        return ((1.0, self),)
