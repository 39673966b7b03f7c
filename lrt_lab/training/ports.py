"""How strongly a route's memory enters, block by block: log of |gamma_l m| over |x|.

One treatment by name need not be one in strength: the streams that it enters differ in length from
backbone to backbone and over depth. Measured as `depth.observe` sees a model, in the second Jacobi
pass, on vectors as they meet: x is the block's input before the injection, m what enters it, and
the mean is over positions that have a memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame, Memory
from lrt_lab.routes.injection import Injection


@torch.no_grad()
def strength(decoder: Decoder, frame: Frame) -> dict[str, Any] | None:
    """By block the mean of ln(|gamma_l| |m| / |x|), and what m is; None without an injection.

    Args:
        decoder: in evaluation mode; left as it was.
        frame: ids ``(B, T)``.
    """
    route = decoder.route
    if not isinstance(route, Injection) or not hasattr(route, "gamma"):
        return None
    memory, found = None, {}
    if route.traits.fed:
        carried = decoder.sweep(frame, frame.positions).carried
        assert carried is not None
        memory = decoder.memory(carried, frame, frame.positions)
    inject = route.inject

    def noted(unit: int, x: Tensor, memory: Memory | None) -> Tensor:
        if unit % 2 == 0 and memory is not None:
            block = unit // 2
            m = route.gamma[block] * route.injected(memory, block)
            ratio = (norm(m) / norm(x))[memory.present]
            found[block] = float(ratio.clamp_min(torch.finfo(ratio.dtype).tiny).log().mean())
        return inject(unit, x, memory)

    route.inject = noted  # type: ignore[method-assign]
    try:
        decoder.sweep(frame, frame.positions, memory)
    finally:
        del route.inject
    if not found:
        return None
    return {
        "backbone": type(decoder.backbone).__name__,
        "vector": decoder.backbone.stands_for,
        "log_ratio": [found[block] for block in sorted(found)],
    }


def norm(x: Tensor) -> Tensor:
    """Length of each vector, ``(B, P)``."""
    return torch.linalg.vector_norm(x.double(), dim=-1)
