"""A learned gather over the bank: which of a position's raw outputs become the carried state.

For sources r_i (the embedding, the memory that arrived, every unit's output) and slot s

    l_si = (q_si . RMS(r_i) + b_si) / scale,    g_s = sum_i softmax_i(l_si) r_i

with a query for every pair, one per slot, or one per slot made from the position's normed top
state h, q_s = Q_s h. Absent sources are left out of the softmax, so the first pass does not depend
on their queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lrt_kernels import alike, depth_mix, depth_read, depth_score, no_autocast, wide
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, View
from lrt_lab.layers import Routing, Shape, constant, parameter
from lrt_lab.layers.parameter import Init, Role

Queries = Literal["pairwise", "shared", "input"]
#: What a bank holds: values ``(B, P, d)``, each with ``(B, P)`` bool where present, or None.
Bank = Sequence[tuple[Tensor, Tensor | None]]


class Gather(Routing):
    """Slots that each read the whole bank, in the engine's order: embedding, memory, outputs.

    Queries and biases start at zero, at the mean of the sources, unless told otherwise.

    Args:
        shape: of the decoder.
        slots: number of reads S.
        arriving: sources of the bank that are memory.
        scale: divides the logits.
        eps: inside the keys' root mean square.
        queries: "pairwise", "shared" by a slot's sources, or "input".
        init: of the queries.
    """

    def __init__(
        self,
        shape: Shape,
        slots: int,
        arriving: int,
        scale: float = 1.0,
        eps: float = 1e-6,
        queries: Queries = "pairwise",
        init: Init | None = None,
    ) -> None:
        super().__init__()
        if scale <= 0:
            raise UserError(f"route.scale={scale}: it divides the logits; give a positive number")
        sources, zero, width = 1 + arriving + shape.units, constant(0.0), shape.width
        self.slots, self.scale, self.eps, self.queries = slots, scale, eps, queries
        form = {
            "pairwise": (sources, slots, width),
            "shared": (slots, width),
            "input": (slots, width, width),
        }
        init = zero if init is None else init
        # A map from the state is a matrix, not a vector of its own.
        role: Role = "router" if queries == "input" else "connection"
        self.query = parameter(*form[queries], init=init, role=role)
        self.bias = parameter(sources, slots, init=zero, role="connection")

    def forward(self, bank: Bank, top: Tensor) -> Tensor:
        """g ``(B, P, S, d)`` of a bank, and the normed top state ``(B, P, d)``."""
        values, masks = zip(*bank, strict=True)
        if self.queries == "input":
            reads = [depth_mix(own, values, masks) for own in self.logits(values, top)]
            return torch.stack(reads, dim=-2)
        query = self.query.unsqueeze(1) if self.queries == "shared" else self.query.transpose(0, 1)
        return depth_read(alike(values), query, self.bias.mT, self.scale, self.eps, masks)

    def weights(self, bank: Bank, top: Tensor) -> Tensor:
        """The softmax weights ``(B, P, S, sources)``; 0 where a source is absent."""
        values, masks = zip(*bank, strict=True)
        # A mixture of one-hot values is the weights themselves.
        marks = torch.eye(len(values), dtype=wide(top.dtype), device=top.device)
        ones = marks.expand(*top.shape[:-1], -1, -1).unbind(-2)
        return torch.stack([depth_mix(o, ones, masks) for o in self.logits(values, top)], dim=-2)

    def logits(self, values: Sequence[Tensor], top: Tensor) -> list[tuple[Tensor, ...]]:
        """l, by slot and by source, ``(B, P)`` each."""
        if self.queries == "input":
            scores = self.from_input(values, top)
        else:
            one = self.queries == "shared"
            queries = [self.query] * len(values) if one else self.query.unbind()
            scores = [
                depth_score(value, query, self.eps, bias, self.scale)
                for value, query, bias in zip(values, queries, self.bias, strict=True)
            ]
        return list(zip(*(score.unbind(-1) for score in scores), strict=True))

    def from_input(self, values: Sequence[Tensor], top: Tensor) -> list[Tensor]:
        """l by source, ``(B, P, S)``, with queries made from the top state."""
        with no_autocast(top.device.type):
            dtype = wide(top.dtype)
            query = torch.einsum("...d,sed->...se", top.to(dtype), self.query.to(dtype))
            scores = []
            for value, bias in zip(values, self.bias.to(dtype), strict=True):
                key = value.to(dtype)
                inverse = torch.rsqrt(key.square().mean(-1, keepdim=True) + self.eps)
                product = torch.einsum("...sd,...d->...s", query, key)
                scores.append((product * inverse + bias) / self.scale)
            return scores


def slot_sources(memory: Memory | None, at: View, slots: int) -> list[tuple[Tensor, Tensor]]:
    """Slots ``(B, P, S, d)`` as depth sources, absent in sweeps without memory."""
    if memory is not None:
        return [(slot, memory.present) for slot in memory.value.unbind(-2)]
    assert at.embedding is not None
    like = at.embedding
    absent = torch.zeros(like.shape[:-1], dtype=torch.bool, device=like.device)
    return [(torch.zeros_like(like), absent)] * slots
