"""Memory as an injection: into every block's residual input, keys and values, as LRT has it.

With block l's residual input x, u = RMS(x_hat) as the mixer reads it, m the memory that enters the
position, and one gate per K/V head h:

    x_hat   = alpha_l x + gamma_l m
    [g, r]  = 2 sigmoid(W_gate^l u)
    k       = g_h k_local + r_h (W_k m)_h
    v       = g_h v_local + r_h (W_v m)_h

then QK-norm and rotation at the current position; the mixed K/V are the ordinary cache entries. A
memory of several vectors z_s enters block l as m = sum_s softmax_s(w_l) z_s, w starting at zero.
Gates are computed from the memory-aware read, as LRT's public release does.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import Placement, inject_kv, no_autocast
from lrt_lab.frame import Memory
from lrt_lab.layers import Routing, Shape, constant, fan_in, parameter

#: Values with which an injection changes nothing, by the start of the parameters' names.
IDENTITY = (("alpha", 1.0), ("gamma", 0.0), ("gate_", 0.0), ("key_", 0.0), ("value_", 0.0))


class Injection(Routing):
    """What fills ports 2 and 3 of a route whose memory is ``kept`` vectors, ``(B, P, kept, d)``.

    At step 0 all gates are 1, alpha 1 and gamma 0.1 unless told otherwise. Zero memory equals no
    memory exactly.
    """

    kept: int
    projections: Literal["shared", "layerwise"]
    initial_gamma: float

    def setup_injection(self, shape: Shape) -> None:
        """The projections, gates and scales of the memory's way in."""
        self.kv = shape.kv
        kv_widths = [heads * head_dim for heads, head_dim in shape.kv]
        self.groups = [f"block{block}" for block in range(shape.blocks)]
        if self.projections == "shared":
            self.groups = [f"{heads}x{head_dim}" for heads, head_dim in shape.kv]
        for group, kv_width in dict(zip(self.groups, kv_widths, strict=True)).items():
            for name in ("key", "value"):
                weight = parameter(kv_width, shape.width, init=fan_in, role="matrix")
                self.register_parameter(f"{name}_{group}", weight)
        for block, (heads, _) in enumerate(shape.kv):
            gate = parameter(2 * heads, shape.width, init=constant(0.0), role="connection")
            self.register_parameter(f"gate_{block}", gate)
        self.alpha = parameter(shape.blocks, init=constant(1.0), role="connection")
        self.gamma = parameter(shape.blocks, init=constant(self.initial_gamma), role="connection")
        if self.kept > 1:
            zero = constant(0.0)
            self.choice = parameter(shape.blocks, self.kept, init=zero, role="connection")

    def inject(self, unit: int, x: Tensor, memory: Memory | None) -> Tensor:
        """x_hat, ``(B, P, d)``; only the units that mix positions receive."""
        if unit % 2:
            return x
        block = unit // 2
        if memory is None:
            return self.alpha[block] * x
        return self.alpha[block] * x + self.gamma[block] * self.injected(memory, block)

    def mix(
        self,
        unit: int,
        x: Tensor,
        k: Tensor,
        v: Tensor,
        memory: Memory | None,
        place: Placement | None,
    ) -> tuple[Tensor, Tensor]:
        """The mixed keys and values, ``(B, P, heads, head_dim)`` each."""
        block = unit // 2
        weight = self.get_parameter(f"gate_{block}")
        with no_autocast(x.device.type):
            logits = F.linear(x.to(weight.dtype), weight)
        memory_k: Tensor | None = None
        memory_v: Tensor | None = None
        if memory is not None:
            memory_k, memory_v = self.project(memory, block)
        return inject_kv(k, v, logits, memory_k, memory_v, place)

    def project(self, memory: Memory, block: int) -> tuple[Tensor, Tensor]:
        """W_k m and W_v m, ``(B, P, heads, head_dim)``; once per sweep, weights and memory."""
        group, own = self.groups[block], block if self.kept > 1 else None
        for name in ("key", "value"):
            if (name, group, own) not in memory.derived:
                weight = self.get_parameter(f"{name}_{group}")
                projected = F.linear(self.injected(memory, block), weight)
                memory.derived[name, group, own] = projected.unflatten(-1, self.kv[block])
        return memory.derived["key", group, own], memory.derived["value", group, own]

    def injected(self, memory: Memory, block: int) -> Tensor:
        """The one vector m that a block receives, ``(B, P, d)``."""
        if self.kept == 1:
            return memory.value.squeeze(-2)
        name = ("choice", block)
        if name not in memory.derived:
            weights = torch.softmax(self.choice[block], dim=-1).to(memory.value.dtype)
            memory.derived[name] = (weights.unsqueeze(-1) * memory.value).sum(-2)
        return memory.derived[name]
