"""The training loss: what each scored pass predicts, weighed as its schedule says."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lrt_kernels import linear_cross_entropy
from lrt_lab.data.batch import IGNORED
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Schedule

#: Kinds of devices on which the head's scores are made in chunks.
CHUNKED = frozenset({"cuda"})


def training_loss(
    decoder: Decoder, schedule: Schedule, frame: Frame, targets: Tensor, clock: Clock
) -> Tensor:
    """sum_p weight_p * mean cross entropy over pass p's own positions, in nats per token.

    A pass of weight 0 is run for what it carries; its head is not.

    Args:
        decoder: the model.
        schedule: which passes are run and how they weigh.
        frame: ids ``(B, T)``.
        targets: what each position predicts, ``(B, T)``; `IGNORED` where it predicts nothing.
        clock: where training stands.
    """
    terms = []
    for scored in schedule.passes(decoder, frame, clock):
        if not scored.weight:
            # Its term is zero and has no gradient; the head is what a pass costs beside its sweep.
            wide = torch.promote_types(scored.hidden.dtype, torch.float32)
            terms.append(scored.hidden.new_zeros((), dtype=wide))
            continue
        own = pick(targets, scored.positions)
        # What is ignored counts as zero; a pass over few positions may predict nothing at all.
        mean = total_loss(decoder, scored.hidden, own) / (own != IGNORED).sum().clamp(min=1)
        terms.append(scored.weight * mean)
    return torch.stack(terms).sum()


def total_loss(decoder: Decoder, hidden: Tensor, targets: Tensor) -> Tensor:
    """The sum of `token_losses`.

    On a CUDA device scores are made in chunks and none are kept: those of a large vocabulary
    outweigh all that a pass leaves. On a CPU chunks are slower up to some thousand tokens of
    vocabulary and round differently, and records of suites that run there are to stay as they are.
    The products are the same, so what the meter counts holds for both. A model that alters its
    scores has all of them.
    """
    own = getattr(decoder.logits, "__func__", None) is Decoder.logits
    if own and hidden.device.type in CHUNKED:
        return linear_cross_entropy(hidden, decoder.head, targets, IGNORED)
    if decoder.recompute and torch.is_grad_enabled():
        return checkpoint(token_losses, decoder, hidden, targets, use_reentrant=False).sum()
    return token_losses(decoder, hidden, targets).sum()


def pick(targets: Tensor, positions: range) -> Tensor:
    """Columns ``(B, P)`` of ``(B, T)``."""
    return targets[:, positions.start : positions.stop : positions.step]


def token_losses(decoder: Decoder, hidden: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in nats of targets ``(B, P)``, given normed top states ``(B, P, d)``."""
    logits = decoder.logits(hidden)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    losses = F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(targets.shape)
