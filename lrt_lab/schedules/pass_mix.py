"""Full-bandwidth's training: mostly plain passes, some fed back once or twice (arXiv:2608.08888).

Every batch draws its number of passes K. Pass 1 is plain; for k = 2..K

    h~ = h^{k-1} + U(-sigma, sigma)     latent jitter on what is carried
    h^k = F(x, shift(h~))               except on a plain prefix of every document

    L = CE_1 + lambda mean_{k >= 2} CE_k

so a batch with feedback weighs 1 + lambda, as in the paper and its authors' code. Without any
batches of three passes the paper's model diverges when it is fed back further than it was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class PassMix(Schedule):
    """A random number of Jacobi passes per batch, with plain prefixes and latent jitter.

    In evaluation mode there is nothing random: as many passes as training has at most.

    Args:
        shares: relative share of the batches with one pass, two passes, and so on.
        feedback_weight: lambda, what the feedback passes weigh together beside the first one.
        normalize: divide all weights by their sum, so that every batch weighs the same.
        jitter: sigma, half the width of the uniform noise on the carried state.
        prefixes: run a random prefix of every document without memory, anew in every feedback pass:
            of its n positions the first 1 to n, evenly.
    """

    def __init__(
        self,
        shares: Sequence[float] = (0.75, 0.22, 0.03),
        feedback_weight: float = 1.0,
        normalize: bool = False,
        jitter: float = 0.02,
        prefixes: bool = True,
    ) -> None:
        shares = list(shares)
        if not shares or min(shares) < 0 or sum(shares) <= 0:
            raise UserError(
                f"schedule.shares={shares}: give one number per pass count, none negative,"
                " not all 0"
            )
        if feedback_weight < 0:
            raise UserError(f"schedule.feedback_weight={feedback_weight}: it cannot be negative")
        if jitter < 0:
            raise UserError(f"schedule.jitter={jitter}: it cannot be negative")
        self.shares = [share / sum(shares) for share in shares]
        self.feedback_weight, self.normalize = feedback_weight, normalize
        self.jitter, self.prefixes = jitter, prefixes

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        count = self.count(clock) if decoder.training else len(self.shares)
        memory = None
        for number, weight in enumerate(self.weights(count), start=1):
            out = decoder.sweep(frame, frame.positions, memory)
            yield Pass(out.positions, out.hidden, weight, f"pass {number}")
            if number < count and out.carried is not None:
                carried, keep = out.carried, None
                if decoder.training and self.jitter:
                    carried = carried + self.noise(carried, clock.generator(f"jitter {number}"))
                if decoder.training and self.prefixes:
                    keep = beyond_prefix(frame, clock.generator(f"prefix {number}"))
                memory = decoder.memory(carried, frame, frame.positions, keep)

    def count(self, clock: Clock) -> int:
        """Number of passes of this batch."""
        shares = torch.tensor(self.shares, dtype=torch.float64)
        return 1 + int(torch.multinomial(shares, 1, generator=clock.generator("pass count")))

    def weights(self, count: int) -> list[float]:
        """Weight of each of so many passes."""
        later = [self.feedback_weight / (count - 1)] * (count - 1) if count > 1 else []
        weights = [1.0, *later]
        return [w / sum(weights) for w in weights] if self.normalize else weights

    def noise(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """U(-sigma, sigma), drawn on the CPU so that it is the same on every device."""
        noise = torch.rand(like.shape, generator=generator) * 2 - 1
        return (self.jitter * noise).to(like.device, like.dtype)

    def cost(self, length: int, decoder: Decoder) -> float:
        return length * sum(share * count for count, share in enumerate(self.shares, start=1))

    def mixture(self) -> Sequence[tuple[float, Schedule]]:
        options = (self.feedback_weight, self.normalize, self.jitter, self.prefixes)
        return [
            (share, PassMix([0.0] * before + [1.0], *options))
            for before, share in enumerate(self.shares)
            if share
        ]


def beyond_prefix(frame: Frame, generator: torch.Generator) -> Tensor:
    """False on the first p positions of every document, ``(B, T)``, p = 1 + floor(u length)."""
    start = frame.start()
    column = torch.arange(frame.length, device=start.device).expand_as(start)
    begin = torch.where(start, column, 0).cummax(dim=1).values
    document = start.long().cumsum(dim=1) - 1
    length = torch.zeros_like(document).scatter_add(1, document, torch.ones_like(document))
    u = torch.rand(start.shape, generator=generator).to(start.device)
    prefix = 1 + (u * length).floor().long()
    return column - begin >= prefix.gather(1, document)
