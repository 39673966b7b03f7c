"""What a trained model carries from position to position: its directions, its slots, their sources.

Of the exact recurrence m* on some rows (`rollout`):

    directions  of vectors: mean pairwise cosine, and effective rank exp(-sum p log p) with p the
                singular values of the normed vectors over their sum (Roy and Vetterli, 2007)
    slots       of a route that gathers the bank: what each slot gathers from, and how long it is

`carried` says both of the memory as it enters positions, for a run's final record; the contraction
diagnostic says them beside what else it measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame, Memory
from lrt_lab.routes.retain import Gather
from lrt_lab.training.depth import pairwise_cosine

#: Bins of positions.
BINS = 16


@torch.no_grad()
def carried(decoder: Decoder, frame: Frame) -> dict[str, Any] | None:
    """The memory that enters the positions of these rows; None where nothing finite is carried.

    Args:
        decoder: the model, in evaluation mode.
        frame: ids ``(B, T)``.

    Returns:
        ``rank``, ``width`` and ``cosine`` of the vectors at positions that receive; ``position``,
        centres of bins, and ``size``, root mean square entries in them, for each slot; ``sources``
        and ``weights`` where slots gather, else None.
    """
    received = decoder.route.receives(decoder.view(frame, frame.positions, frame.length))
    if not (decoder.route.traits.recurrent and received.any()):
        return None
    left = torch.cat(rollout(decoder, frame)[1], dim=1)
    memory = decoder.memory(left, frame, frame.positions)
    vectors = memory.value[memory.present]
    # Of a diverged model.
    if not vectors.isfinite().all():
        return None
    found = {"positions": len(vectors), **directions(vectors), **lengths(memory)}
    return found | (gathered(decoder, frame, memory) or {"sources": None, "weights": None})


def rollout(decoder: Decoder, frame: Frame) -> tuple[Tensor, list[Tensor]]:
    """The exact recurrence: normed top states ``(B, T, d)``, and what left each position, if any.

    ``(B, 1, ...)`` each.
    """
    cache = decoder.cache(len(frame.ids), frame.length)
    tops, left = [], []
    for t in frame.positions:
        top, cache = decoder.serial(frame.head(t + 1), cache)
        tops.append(top)
        if cache.carried is not None:
            left.append(cache.carried)
    return torch.cat(tops, dim=1), left


def centres(length: int) -> list[float]:
    """Of the bins of so many positions."""
    bins = torch.arange(length).split(-(-length // BINS))
    return [float(part.double().mean()) for part in bins]


def binned(x: Tensor) -> list[float]:
    """Root mean square entry of ``(B, T, ...)`` in each bin of positions."""
    square = x.detach().double().square().flatten(2).mean((0, 2))
    return [float(part.mean().sqrt()) for part in square.split(-(-len(square) // BINS))]


def lengths(memory: Memory) -> dict[str, Any]:
    """``position``, centres of bins, and ``size``, a list of bins for each slot that enters.

    A memory without slots counts as one.
    """
    value = memory.value
    entering: Sequence[Tensor] = value.unbind(-2) if value.dim() > 3 else [value]
    return {"position": centres(value.shape[1]), "size": [binned(slot) for slot in entering]}


@torch.no_grad()
def gathered(decoder: Decoder, frame: Frame, memory: Memory) -> dict[str, Any] | None:
    """What each slot of a route gathers, by mean weight over the positions that receive.

    Returns:
        ``sources``, their names, and ``weights``, a list over them for each slot; None of a route
        that does not gather.
    """
    found = [module for module in decoder.route.modules() if isinstance(module, Gather)]
    if not found:
        return None
    (gather,), seen = found, list[Any]()
    handle = gather.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    try:
        decoder.sweep(frame, frame.positions, memory)
    finally:
        handle.remove()
    ((bank, top),) = seen
    weights = gather.weights(bank, top)[memory.present].double().mean(0)
    arriving = weights.shape[1] - 1 - decoder.shape.units
    return {
        "sources": [
            "embedding",
            *(f"slot {slot}" for slot in range(arriving)),
            *(f"unit {unit}" for unit in range(decoder.shape.units)),
        ],
        "weights": weights.tolist(),
    }


def slots(decoder: Decoder, frame: Frame, memory: Memory) -> dict[str, Any] | None:
    """`gathered` and `lengths` of a route that gathers; None of another."""
    found = gathered(decoder, frame, memory)
    return None if found is None else {**found, **lengths(memory)}


def directions(vectors: Tensor) -> dict[str, float]:
    """How different vectors ``(..., d)`` are, their lengths aside.

    Returns:
        ``cosine``, the mean over all pairs; ``rank``, effective, from 1 to ``width``, which is d.
    """
    vectors = vectors.detach().double().flatten(0, -2)
    singular = torch.linalg.svdvals(torch.nn.functional.normalize(vectors, dim=-1))
    share = singular / singular.sum().clamp_min(torch.finfo(singular.dtype).tiny)
    entropy = -torch.xlogy(share, share).sum()
    return {
        "cosine": pairwise_cosine(vectors),
        "rank": float(entropy.exp()),
        "width": vectors.shape[-1],
    }
