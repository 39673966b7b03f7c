"""GatherFFN: gather -> RMSNorm -> x embedding -> FFN, the baseline for Householder.

    g_t = gather of the bank of position t,    z_{t+1} = FFN(RMS(g_t) * e_{t+1})

with e the embedding of the token that the memory meets. z is a depth source of that position.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrt_kernels import slot_gate
from lrt_lab.errors import UserError
from lrt_lab.frame import View
from lrt_lab.layers import Shape, SquaredReLU, constant, normal, parameter
from lrt_lab.routes.compactor import Compactor, Gate
from lrt_lab.routes.composed import Enters, Retain
from lrt_lab.routes.retain import Queries

Upto = Literal["gather", "norm", "token", "linear", "ffn"]
STEPS: tuple[Upto, ...] = get_args(Upto)


class GatherFFN(Compactor):
    """Gather the bank, norm it, gate it with the token's embedding, and pass it through an FFN.

    The result is one more source of the position: added to PreNorm's stream, one of the sources
    that Attention Residuals choose from. At step 0 it is zero, as every FFN's output is.

    Args:
        hidden: hidden features of the FFN; null takes ``expand`` d.
        expand: hidden features over the width, where ``hidden`` does not say them.
        upto: how far it goes: "gather" hands on what was gathered, "norm" norms it, "token" gates
            that, "linear" takes a map of what was gated, "ffn" an FFN.
        count: number of slots that gather, each with a map or an FFN of its own. Without FFNs
            several slots start from random queries: nothing else would ever tell them apart.
        gate: of the token: "none"; "lookup", one table for all slots; "embedding".
        queries: of the gather: "pairwise", one for each slot and source; "shared", one for each
            slot; "input", one for each slot and position, made from the top state.
        scale: divides the logits of the gather.
        eps: inside the root mean squares.
        retain: "gather"; "block", one block's state; "bank", the embedding and every unit's output,
            which share the map or FFN.
        source: the block to retain: the state after so many, null for ceil(3 L / 4), or "top".
        enters: "source", or as LRT has them "injection" into every block, or "read".
        readers: units that see the memory as a source, the head being unit U; null is all.
    """

    def __init__(
        self,
        hidden: int | None = None,
        expand: float = 4.0,
        upto: Upto = "ffn",
        count: int = 1,
        gate: Gate = "embedding",
        queries: Queries = "pairwise",
        scale: float = 1.0,
        eps: float = 1e-6,
        retain: Retain = "gather",
        source: int | Literal["top"] | None = None,
        enters: Enters = "source",
        readers: list[int] | None = None,
    ) -> None:
        if upto not in STEPS:
            raise UserError(f"route.upto={upto!r}: give {', '.join(STEPS)}")
        if expand <= 0:
            raise UserError(f"route.expand={expand}: give a positive multiple of the width")
        steps = STEPS.index(upto)
        # No step, no table.
        gate = gate if steps >= STEPS.index("token") else "none"
        super().__init__(count, gate, queries, scale, eps, retain, source, enters, readers)
        self.upto, self.expand = upto, expand
        self.maps = count if retain == "gather" else 1
        if upto == "ffn":
            self.ffn = nn.ModuleList(SquaredReLU(hidden) for _ in range(self.maps))
        elif count > 1:
            self.query_init = normal(0.02)

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        if self.upto == "ffn":
            for module in self.ffn:
                ffn = cast(SquaredReLU, module)
                ffn.hidden = ffn.hidden or max(1, round(self.expand * shape.width))
                ffn.setup(shape, 0)
        elif self.upto == "linear":
            square = (shape.width, shape.width)
            self.linear = nn.ParameterList(
                parameter(*square, init=constant(0.0), role="matrix") for _ in range(self.maps)
            )

    def change(self, retained: Tensor, present: Tensor, at: View) -> Tensor:
        match self.upto:
            case "gather":
                return retained
            case "norm":
                return slot_gate(retained, eps=self.eps)
            case "token":
                return self.gated(retained, at)
            case _:
                return self.mapped(self.gated(retained, at)).to(retained.dtype)

    def mapped(self, gated: Tensor) -> Tensor:
        """The maps of the slots, or the one that all share; ``(B, P, kept, d)`` each."""
        slots = [gated] if self.maps == 1 else gated.split(1, dim=-2)
        if self.upto == "ffn":
            out = [ffn(own) for own, ffn in zip(slots, self.ffn, strict=True)]
        else:
            out = [F.linear(own, w) for own, w in zip(slots, self.linear, strict=True)]
        return torch.cat(out, dim=-2)
