"""Householder slot compaction: what leaves a position is reflected, not replaced (s3e42).

Each slot s gathers the whole bank of position t-1 (`lrt_lab.routes.retain`) and is then turned by
the token x_t that it meets, with one table m of token vectors for all slots:

    v_s = W_s (m(x_t) * RMS(g_s)),    n_s = v_s / |v_s|,    z_s = g_s - 2 n_s (n_s . g_s)

A reflection keeps the norm of what was gathered, whatever v_s: the projection chooses how the state
turns. The slots z_s are depth sources of position t and part of the bank that the next one gathers.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import no_autocast, wide
from lrt_lab.errors import UserError
from lrt_lab.frame import View
from lrt_lab.layers import Shape, constant, fan_in, parameter, rms_norm
from lrt_lab.routes.composed import Composed, Enters, Retain


class Householder(Composed):
    """s3e42's compactor: slots gather the bank, and a token-conditioned reflection turns them.

    Queries, biases and the token table start at 0, 0 and 1; the projections are random, since a
    direction must not be zero.

    Args:
        count: number of slots that gather.
        scale: divides the logits of the gather.
        eps: inside the root mean squares.
        retain: "gather"; "block", one slot that holds one block's state; "bank", one slot for the
            embedding and for every unit's output.
        source: the block to retain: the state after so many, null for ceil(3 L / 4), or "top".
        enters: "source", or as LRT has them "injection" into every block, or "read".
        readers: units that see the memory as sources, the head being unit U; null is all.
    """

    def __init__(
        self,
        count: int = 2,
        scale: float = 16.0,
        eps: float = 1e-6,
        retain: Retain = "gather",
        source: int | Literal["top"] | None = None,
        enters: Enters = "source",
        readers: list[int] | None = None,
    ) -> None:
        if count < 1:
            raise UserError(f"route.count={count}: there must be at least one slot")
        super().__init__(retain, source, enters, readers, count, scale, eps)

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        width = shape.width
        self.table = parameter(shape.vocab, width, init=constant(1.0), role="embedding")
        self.turn = torch.nn.ParameterList(
            parameter(width, width, init=fan_in, role="matrix") for _ in range(self.kept)
        )

    def change(self, retained: Tensor, present: Tensor, at: View) -> Tensor:
        # What is absent is an arbitrary number: made harmless here, before it is divided by.
        g = torch.where(present[..., None, None], retained, 1.0)
        gated = F.embedding(at.ids, self.table).unsqueeze(-2) * rms_norm(g, self.eps)
        vectors = [F.linear(own, w) for own, w in zip(gated.unbind(-2), self.turn, strict=True)]
        return reflect(g, torch.stack(vectors, dim=-2))


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
