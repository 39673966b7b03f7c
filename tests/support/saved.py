"""What a training step keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Schedule


def kept_bytes(decoder: Decoder, loss: Callable[[], Tensor]) -> int:
    """Bytes of all storages that computing a loss keeps, each counted once, parameters not at all.

    Args:
        decoder: whose parameters do not count.
        loss: computes it.
    """
    weights = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        # The graph keeps the tensor alive, so no address is used twice before the count is over.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        # An output that its own node keeps whole would be a cycle that nothing ever frees.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total = loss()
    assert total.requires_grad
    return sum(sizes.values())


def saved_bytes(decoder: Decoder, schedule: Schedule, tokens: Tensor) -> int:
    """`kept_bytes` of one step's forward.

    Args:
        decoder: the model.
        schedule: its passes, each scored on the next token.
        tokens: ``(B, T + 1)``.
    """
    frame, targets = Frame(tokens[:, :-1]), tokens[:, 1:]

    def loss() -> Tensor:
        total = torch.zeros(())
        for scored in schedule.passes(decoder, frame, Clock()):
            logits = decoder.logits(scored.hidden)
            theirs = targets[:, list(scored.positions)]
            total = total + scored.weight * F.cross_entropy(logits.mT, theirs)
        return total

    return kept_bytes(decoder, loss)
