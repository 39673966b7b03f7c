"""GatherFFN: gather -> RMSNorm -> x embedding -> FFN, the baseline for Householder.

    g_t = gather of the bank of position t,    z_{t+1} = FFN(RMS(g_t) * e_{t+1})

with e the embedding of the token that the memory meets. z is a depth source of that position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, SquaredReLU, rms_norm
from lrt_lab.routes.base import Route, Traits
from lrt_lab.routes.gather import Gather, slot_sources


class GatherFFN(Route):
    """Gather the bank, norm it, gate it with the token's embedding, and pass it through an FFN.

    The result is one more source of the position: added to PreNorm's stream, one of the sources
    that Attention Residuals choose from. At step 0 it is zero, as every FFN's output is.

    Args:
        hidden: hidden features of the FFN; null takes 4 d.
        scale: divides the logits of the gather.
    """

    traits = Traits(zero_is_none=None)
    needs = Taps(bank=True)
    slots = 1

    def __init__(self, hidden: int | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.ffn = SquaredReLU(hidden)

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        self.carries = (1, shape.width)
        self.gather = Gather(shape, slots=1, arriving=1, scale=self.scale)
        self.ffn.setup(shape, 0)

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        return self.gather(taps["bank"])

    def receive(self, carried: Tensor, present: Tensor, at: View) -> Memory:
        assert at.embedding is not None
        gated = rms_norm(carried) * at.embedding.unsqueeze(-2)
        return super().receive(self.ffn(gated).to(carried.dtype), present, at)

    def sources(self, memory: Memory | None, at: View) -> Sequence[tuple[Tensor, Tensor]]:
        return slot_sources(memory, at, self.slots)
