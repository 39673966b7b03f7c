"""Compactors: slots that gather the bank, and change as the token that they meet has it.

What a slot's change is made from is c_s = m(x_t) * RMS(g_s), where m is 1, a table of its own, or
the token's embedding.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import slot_gate
from lrt_lab.errors import UserError
from lrt_lab.frame import View
from lrt_lab.layers import Shape, constant, parameter
from lrt_lab.routes.composed import Composed, Enters, Retain
from lrt_lab.routes.retain import Queries

Gate = Literal["none", "lookup", "embedding"]


class Compactor(Composed, ABC):
    """A composed route of several slots with a token gate.

    Args:
        count: number of slots that gather.
        gate: "none"; "lookup", one table of token vectors for all slots, which starts at 1; or
            "embedding", the raw token embedding.
        queries, scale, eps, retain, source, enters, readers: as of `Composed`.
    """

    def __init__(
        self,
        count: int,
        gate: Gate,
        queries: Queries,
        scale: float,
        eps: float,
        retain: Retain,
        source: int | Literal["top"] | None,
        enters: Enters,
        readers: Sequence[int] | None,
    ) -> None:
        if count < 1:
            raise UserError(f"route.count={count}: there must be at least one slot")
        if gate not in ("none", "lookup", "embedding"):
            raise UserError(f"route.gate={gate!r}: give none, lookup or embedding")
        super().__init__(retain, source, enters, readers, count, scale, eps, queries)
        self.gate = gate

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        if self.gate == "lookup":
            self.table = parameter(shape.vocab, shape.width, init=constant(1.0), role="embedding")

    def token(self, at: View) -> Tensor | None:
        """m(x_t) ``(B, P, d)``; None is ones."""
        if self.gate == "lookup":
            return F.embedding(at.ids, self.table)
        return at.embedding if self.gate == "embedding" else None

    def gated(self, g: Tensor, at: View) -> Tensor:
        """c from g, ``(B, P, kept, d)`` each."""
        return slot_gate(g, self.token(at), self.eps)
