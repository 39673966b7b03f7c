"""A learned gather over the bank: which of a position's raw outputs become the carried state.

For sources r_i (the embedding, the memory that arrived, every unit's output) and slot s

    l_si = (q_si . RMS(r_i) + b_si) / scale,    g_s = sum_i softmax_i(l_si) r_i

Absent sources are left out of the softmax, so the first pass does not depend on their queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lrt_kernels import depth_mix, depth_score
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, View
from lrt_lab.layers import Routing, Shape, constant, parameter


class Gather(Routing):
    """Slots that each read the whole bank, in the engine's order: embedding, memory, outputs.

    Queries and biases start at zero, at the mean of the sources.

    Args:
        shape: of the decoder.
        slots: number of reads S.
        arriving: sources of the bank that are memory.
        scale: divides the logits.
        eps: inside the keys' root mean square.
    """

    def __init__(
        self, shape: Shape, slots: int, arriving: int, scale: float = 1.0, eps: float = 1e-6
    ) -> None:
        super().__init__()
        if scale <= 0:
            raise UserError(f"route.scale={scale}: it divides the logits; give a positive number")
        sources, zero = 1 + arriving + shape.units, constant(0.0)
        self.slots, self.scale, self.eps = slots, scale, eps
        self.query = parameter(sources, slots, shape.width, init=zero, role="connection")
        self.bias = parameter(sources, slots, init=zero, role="connection")

    def forward(self, bank: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        """g ``(B, P, S, d)`` of a bank of ``(B, P, d)`` with ``(B, P)`` bool where present."""
        values, masks = zip(*bank, strict=True)
        logits = [
            depth_score(value, query, self.eps, bias, self.scale).unbind(-1)
            for value, query, bias in zip(values, self.query, self.bias, strict=True)
        ]
        reads = [depth_mix(own, values, masks) for own in zip(*logits, strict=True)]
        return torch.stack(reads, dim=-2)


def slot_sources(memory: Memory | None, at: View, slots: int) -> list[tuple[Tensor, Tensor]]:
    """Slots ``(B, P, S, d)`` as depth sources, absent in sweeps without memory."""
    if memory is not None:
        return [(slot, memory.present) for slot in memory.value.unbind(-2)]
    assert at.embedding is not None
    like = at.embedding
    absent = torch.zeros(like.shape[:-1], dtype=torch.bool, device=like.device)
    return [(torch.zeros_like(like), absent)] * slots
