"""Householder slot compaction: what leaves a position is reflected, not replaced (s3e42).

Each slot s gathers the whole bank of position t-1 (`lrt_lab.routes.retain`) and is then turned by
the token x_t that it meets, with one table m of token vectors for all slots:

    v_s = W_s (m(x_t) * RMS(g_s)),    n_s = v_s / |v_s|,    z_s = g_s - 2 n_s (n_s . g_s)

A reflection keeps the norm of what was gathered, whatever v_s: the projection chooses how the state
turns. The slots z_s are depth sources of position t and part of the bank that the next one gathers.
`lrt_lab.routes.turns` has other ways to turn.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import no_autocast, slot_compact, wide
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, View
from lrt_lab.layers import Shape, constant, fan_in, parameter
from lrt_lab.routes.compactor import Compactor, Gate
from lrt_lab.routes.composed import Enters, Retain
from lrt_lab.routes.retain import Queries
from lrt_lab.routes.turns import TURNS


class Householder(Compactor):
    """s3e42's compactor: slots gather the bank, and a token-conditioned reflection turns them.

    Queries, biases and the token table start at 0, 0 and 1; the projections are random, since a
    direction must not be zero.

    Args:
        count: number of slots that gather.
        turn: "reflection"; "generalised", I - b n n' with a gate b in (0, 2); "double", two
            reflections; "cayley", a rotation in the plane of two directions; "delta", a gated delta
            write into the slot that had arrived.
        gate: of the token: "none"; "lookup", one table for all slots; "embedding".
        queries: of the gather: "pairwise", one for each slot and source; "shared", one for each
            slot; "input", one for each slot and position, made from the top state.
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
        turn: Literal["reflection", "generalised", "double", "cayley", "delta"] = "reflection",
        gate: Gate = "lookup",
        queries: Queries = "pairwise",
        scale: float = 16.0,
        eps: float = 1e-6,
        retain: Retain = "gather",
        source: int | Literal["top"] | None = None,
        enters: Enters = "source",
        readers: list[int] | None = None,
    ) -> None:
        super().__init__(count, gate, queries, scale, eps, retain, source, enters, readers)
        if turn not in TURNS:
            raise UserError(f"route.turn={turn!r}: give {', '.join(TURNS)}")
        self.how = TURNS[turn]

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        width, how = shape.width, self.how
        self.turn = torch.nn.ParameterList(
            parameter(width, width, init=fan_in, role="matrix")
            for _ in range(self.kept * how.vectors)
        )
        if how.gates:
            each = (self.kept, len(how.gates))
            self.gate_weight = parameter(*each, width, init=constant(0.0), role="connection")
            self.gate_bias = torch.nn.ParameterList(
                parameter(self.kept, init=constant(start), role="connection") for start in how.gates
            )
        if how.before:
            self.carries = (2 * self.kept, width)

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        g = super().emit(taps, memory, at)
        if not self.how.before:
            return g
        before = torch.zeros_like(g) if memory is None else memory.value.to(g.dtype)
        return torch.cat([g, before], dim=-2)

    def change(self, retained: Tensor, present: Tensor, at: View) -> Tensor:
        # What is absent is an arbitrary number: made harmless here, before it is divided by.
        g, *before = torch.where(present[..., None, None], retained, 1.0).split(self.kept, dim=-2)
        if self.how is TURNS["reflection"]:
            return slot_compact(g, list(self.turn), self.token(at), self.eps)
        gated = self.gated(g, at)
        return self.how(g, self.directions(gated), self.gates(gated), *before)

    def directions(self, gated: Tensor) -> list[Tensor]:
        """v, ``(B, P, kept, d)`` each."""
        slots = gated.unbind(-2)
        made = [
            F.linear(own, w) for own, w in zip(slots * self.how.vectors, self.turn, strict=True)
        ]
        return list(torch.stack(made, dim=-2).split(self.kept, dim=-2))

    def gates(self, gated: Tensor) -> list[Tensor]:
        """The turn's logits, ``(B, P, kept, 1)`` each."""
        if not self.how.gates:
            return []
        with no_autocast(gated.device.type):
            dtype = wide(gated.dtype)
            made = torch.einsum("...sd,sgd->g...s", gated.to(dtype), self.gate_weight.to(dtype))
            return [
                (logit + bias.to(dtype)).unsqueeze(-1)
                for logit, bias in zip(made, self.gate_bias, strict=True)
            ]
