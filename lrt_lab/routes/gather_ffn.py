"""GatherFFN: gather -> RMSNorm -> x embedding -> FFN, the baseline for Householder.

    g_t = gather of the bank of position t,    z_{t+1} = FFN(RMS(g_t) * e_{t+1})

with e the embedding of the token that the memory meets. z is a depth source of that position.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from lrt_lab.frame import View
from lrt_lab.layers import Shape, SquaredReLU, rms_norm
from lrt_lab.routes.composed import Composed, Enters, Retain


class GatherFFN(Composed):
    """Gather the bank, norm it, gate it with the token's embedding, and pass it through an FFN.

    The result is one more source of the position: added to PreNorm's stream, one of the sources
    that Attention Residuals choose from. At step 0 it is zero, as every FFN's output is.

    Args:
        hidden: hidden features of the FFN; null takes 4 d.
        scale: divides the logits of the gather.
        retain: "gather"; "block", one block's state; "bank", the embedding and every unit's output,
            which share the FFN.
        source: the block to retain: the state after so many, null for ceil(3 L / 4), or "top".
        enters: "source", or as LRT has them "injection" into every block, or "read".
        readers: units that see the memory as a source, the head being unit U; null is all.
    """

    def __init__(
        self,
        hidden: int | None = None,
        scale: float = 1.0,
        retain: Retain = "gather",
        source: int | Literal["top"] | None = None,
        enters: Enters = "source",
        readers: list[int] | None = None,
    ) -> None:
        super().__init__(retain, source, enters, readers, scale=scale)
        self.ffn = SquaredReLU(hidden)

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        self.ffn.setup(shape, 0)

    def change(self, retained: Tensor, present: Tensor, at: View) -> Tensor:
        assert at.embedding is not None
        gated = rms_norm(retained) * at.embedding.unsqueeze(-2)
        return self.ffn(gated).to(retained.dtype)
