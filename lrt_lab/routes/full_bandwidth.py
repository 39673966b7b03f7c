"""Full-bandwidth Transformer: the top state is the next position's input (arXiv:2608.08888).

One vector z_t, the state that the head reads, leaves each position. With the embedding e_t of the
token that it meets, it becomes that position's whole input:

    u_t = (W_U z_{t-1}) * sigmoid(W_G N(e_t)),    h_t^0 = N(u_t)

with N = RMSNorm without a gain, on the gate's token as on the plain input. There is no additive
path: a position without memory (a document start, a plain prefix) takes the plain input instead,
since fusing with a zero state would leave it with none. The first author's reproduction
(xidulu/Full-bandwidth-transformer) also trains "concat projection", W [z_{t-1}, N(e_t)], and finds
the two equally good.

The rest of the paper's stability kit lies elsewhere: depth scaling and tied embeddings with the
model (``model.depth_scale``, ``model.tied``), jitter with the schedule.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import gated_product, no_autocast, wide
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, fan_in, parameter, rms_norm
from lrt_lab.routes.base import Route, Traits


class FullBandwidth(Route):
    """Full-bandwidth: the top state, gated by the token, replaces the input of the stack.

    The latent jitter and the plain prefixes of its recipe belong to its schedule, PassMix.

    Args:
        state: what is carried: "normed", the state that the head reads (the authors' code), or
            "raw", the same before the final norm (the paper, which keeps it of order one by scaling
            its branches).
        gate_norm: RMS-norm the token's embedding before it is fused (the detailed recipe).
        input_norm: RMS-norm the fused input, as the plain one is.
        fuse: "gate", the equation above, or "concat", one linear map of state and token.
        eps: inside the norms' root mean square.
    """

    traits = Traits(zero_is_none=False)

    def __init__(
        self,
        state: Literal["normed", "raw"] = "normed",
        gate_norm: bool = True,
        input_norm: bool = True,
        eps: float = 1e-6,
        fuse: Literal["gate", "concat"] = "gate",
    ) -> None:
        super().__init__()
        if fuse not in ("gate", "concat"):
            raise UserError(f"route.fuse={fuse!r}: give gate or concat")
        self.kind = fuse
        if state not in ("normed", "raw"):
            raise UserError(f"route.state={state!r}: give normed or raw")
        self.state, self.gate_norm, self.input_norm, self.eps = state, gate_norm, input_norm, eps

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        self.needs = Taps(top=True) if self.state == "normed" else Taps(units=(shape.units,))
        if self.kind == "concat":
            self.value = parameter(shape.width, 2 * shape.width, init=fan_in, role="matrix")
            return
        self.value = parameter(shape.width, shape.width, init=fan_in, role="matrix")
        self.gate = parameter(shape.width, shape.width, init=fan_in, role="matrix")

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        return taps["top" if self.state == "normed" else self.needs.units[0]]

    def receive(self, carried: Tensor, present: Tensor, at: View) -> Memory:
        assert at.embedding is not None
        return super().receive(self.fuse(carried, at.embedding), present, at)

    def fuse(self, carried: Tensor, embedding: Tensor) -> Tensor:
        """h^0 from z_{t-1} and the raw embedding e_t, ``(B, P, d)`` each."""
        read = rms_norm(embedding, self.eps) if self.gate_norm else embedding
        # Under autocast a product comes out narrower than it went in.
        if self.kind == "concat":
            both = torch.cat([carried, read.to(carried.dtype)], dim=-1)
            fused = F.linear(both, self.value).to(carried.dtype)
            return rms_norm(fused, self.eps) if self.input_norm else fused
        with no_autocast(read.device.type):
            dtype = wide(read.dtype)
            logits = F.linear(read.to(dtype), self.gate.to(dtype))
        product = F.linear(carried, self.value)
        return gated_product(product, logits, self.eps if self.input_norm else None, carried.dtype)

    def embed(self, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        if memory is None:
            return x
        return torch.where(memory.present.unsqueeze(-1), memory.value.to(x.dtype), x)
