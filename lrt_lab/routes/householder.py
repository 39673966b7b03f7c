"""Householder slot compaction: what leaves a position is reflected, not replaced (s3e42).

Each slot s gathers the whole bank of position t-1 (`lrt_lab.routes.gather`) and is then turned by
the token x_t that it meets, with one table m of token vectors for all slots:

    v_s = W_s (m(x_t) * RMS(g_s)),    n_s = v_s / |v_s|,    z_s = g_s - 2 n_s (n_s . g_s)

A reflection keeps the norm of what was gathered, whatever v_s: the projection chooses how the state
turns. The slots z_s are depth sources of position t and part of the bank that the next one gathers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import no_autocast, wide
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, constant, fan_in, parameter, rms_norm
from lrt_lab.routes.base import Route, Traits
from lrt_lab.routes.gather import Gather, slot_sources


class Householder(Route):
    """s3e42's compactor: slots gather the bank, and a token-conditioned reflection turns them.

    Queries, biases and the token table start at 0, 0 and 1; the projections are random, since a
    direction must not be zero.

    Args:
        count: number of slots.
        scale: divides the logits of the gather.
        eps: inside the root mean squares.
    """

    traits = Traits(zero_is_none=None)
    needs = Taps(bank=True)

    def __init__(self, count: int = 2, scale: float = 16.0, eps: float = 1e-6) -> None:
        super().__init__()
        if count < 1:
            raise UserError(f"route.count={count}: there must be at least one slot")
        self.slots, self.scale, self.eps = count, scale, eps

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        slots, width = self.slots, shape.width
        self.carries = (slots, width)
        self.gather = Gather(shape, slots, arriving=slots, scale=self.scale, eps=self.eps)
        self.table = parameter(shape.vocab, width, init=constant(1.0), role="embedding")
        self.turn = torch.nn.ParameterList(
            parameter(width, width, init=fan_in, role="matrix") for _ in range(slots)
        )

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        return self.gather(taps["bank"])

    def receive(self, carried: Tensor, present: Tensor, at: View) -> Memory:
        # What is absent is an arbitrary number: made harmless here, before it is divided by.
        carried = torch.where(present[..., None, None], carried, 1.0)
        gated = F.embedding(at.ids, self.table).unsqueeze(-2) * rms_norm(carried, self.eps)
        vectors = [F.linear(own, w) for own, w in zip(gated.unbind(-2), self.turn, strict=True)]
        return super().receive(reflect(carried, torch.stack(vectors, dim=-2)), present, at)

    def sources(self, memory: Memory | None, at: View) -> Sequence[tuple[Tensor, Tensor]]:
        return slot_sources(memory, at, self.slots)


def reflect(g: Tensor, v: Tensor) -> Tensor:
    """g mirrored in the hyperplane normal to v, ``(..., d)`` each; g itself where v is zero.

    In float32 or wider, so that the norm survives thousands of positions.
    """
    with no_autocast(g.device.type):
        dtype = wide(g.dtype)
        state, normal = g.to(dtype), v.to(dtype)
        tiny = torch.finfo(dtype).tiny
        # Squares of very small numbers would vanish. The result does not depend on this scale, so
        # neither does its gradient.
        largest = normal.detach().abs().amax(-1, keepdim=True).clamp_min(tiny)
        normal = F.normalize(normal / largest, dim=-1, eps=tiny)
        along = (normal * state).sum(-1, keepdim=True)
        return (state - 2 * normal * along).to(g.dtype)
