"""What a training step keeps for its backward pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Schedule


def saved_bytes(decoder: Decoder, schedule: Schedule, tokens: Tensor) -> int:
    """Bytes of all storages saved in one step's forward, each counted once, parameters not at all.

    Args:
        decoder: the model.
        schedule: its passes, each scored on the next token.
        tokens: ``(B, T + 1)``.
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

    frame, targets = Frame(tokens[:, :-1]), tokens[:, 1:]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = torch.zeros(())
        for scored in schedule.passes(decoder, frame, Clock()):
            logits = decoder.logits(scored.hidden)
            theirs = targets[:, list(scored.positions)]
            loss = loss + scored.weight * F.cross_entropy(logits.mT, theirs)
    assert loss.requires_grad
    return sum(sizes.values())
