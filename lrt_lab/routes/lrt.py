"""Latent Recurrent Transformer (Huang et al., arXiv:2605.26797).

One vector m_t leaves each position as it is, and enters every block of the next one: its residual
input, and gated by K/V head its keys and values (`lrt_lab.routes.injection` has the equations).
Read-only, x_hat is what the block's mixer reads, and the stream that is carried on stays x. As a
first-class source m_{t-1} is instead one more depth source of position t, beside the embedding and
the outputs of its units: the backbone's reads choose among them, and the route has no weights.

Three controls put another vector in the place of m_{t-1}, through the same ports and parameters:
zero; the previous token's embedding, which one sweep knows beforehand; or the position's own state
of the sweep before, which makes of the recurrence a loop over two sweeps, each of which attends to
its own keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, rms_norm
from lrt_lab.routes.base import Traits
from lrt_lab.routes.composed import Composed, Enters, Retain


class LRT(Composed):
    """Latent Recurrent Transformer: m_t enters every block's residual input, keys and values.

    The defaults are the paper's form; the public release (OoDBag/Latent_recurrent_transformer) is
    ``source="top", projections="layerwise"``. At step 0 all gates are 1, alpha 1 and gamma 0.1.
    Zero memory equals no memory exactly.

    Args:
        source: what is carried: the hidden state after this many blocks (the paper's searched
            "upper-middle" block), null for ceil(3 L / 4) of them, or "top" for the normed state
            that the head reads.
        projections: "shared", one pair of recurrent K/V projections for all depths (one per
            distinct K/V shape), or "layerwise", one pair per block.
        gamma: initial scale of the memory in the residual input.
        enters: "injection", "read", the same into what the mixers read only, or "source", as a
            depth source of its own.
        memory: "recurrent", m_{t-1}, or in its place a control: "zero", "shift" (the embedding of
            token t-1) or "self" (m_t of the sweep before).
        retain: "block" carries ``source``; "gather" a learned selection over the bank and the
            memory that arrived; "bank" the embedding and every unit's output, as one source each or
            injected in a learned mixture per block.
        readers: units that see the memory as a source, the head being unit U; null is all.
    """

    def __init__(
        self,
        source: int | Literal["top"] | None = None,
        projections: Literal["shared", "layerwise"] = "shared",
        gamma: float = 0.1,
        enters: Enters = "injection",
        memory: Literal["recurrent", "zero", "shift", "self"] = "recurrent",
        retain: Retain = "block",
        readers: list[int] | None = None,
    ) -> None:
        super().__init__(retain, source, enters, readers, projections=projections, gamma=gamma)
        if memory not in ("recurrent", "zero", "shift", "self"):
            raise UserError(f"route.memory={memory!r}: give recurrent, zero, shift or self")
        self.kind = memory
        if memory != "recurrent":
            loops, lookback = int(memory == "self") + 1, int(memory == "shift")
            self.traits = Traits(recurrent=False, loops=loops, lookback=lookback)

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        if self.kind in ("zero", "shift"):
            self.needs = Taps()

    def change(self, retained: Tensor, present: Tensor, at: View) -> Tensor:
        return retained

    def receives(self, at: View) -> Tensor:
        return torch.ones_like(at.start) if self.kind == "self" else super().receives(at)

    def incoming(
        self, memory: Memory | None, at: View, lookup: Callable[[Tensor], Tensor]
    ) -> Memory | None:
        if self.kind != "shift":
            return memory
        assert at.before is not None
        before = rms_norm(lookup(at.before)).unsqueeze(-2)
        return self.receive(before.expand(-1, -1, self.kept, -1), self.receives(at), at)
