"""Latent Recurrent Transformer (Huang et al., arXiv:2605.26797).

One vector m_t leaves each position and enters every block of the next one, in two ways. With block
l's residual input x, u = RMS(x_hat) as the mixer reads it, and one gate per K/V head h:

    x_hat   = alpha_l x + gamma_l m_{t-1}
    [g, r]  = 2 sigmoid(W_gate^l u)
    k       = g_h k_local + r_h (W_k m_{t-1})_h
    v       = g_h v_local + r_h (W_v m_{t-1})_h

then QK-norm and rotation at the current position; the mixed K/V are the ordinary cache entries.
Read-only, x_hat is what the block's mixer reads, and the stream that is carried on stays x.
As a first-class source m_{t-1} is instead one more depth source of position t, beside the embedding
and the outputs of its units: the backbone's reads choose among them, and the route has no weights.
Three controls put another vector in the place of m_{t-1}, through the same ports and parameters:
zero; the previous token's embedding, which one sweep knows beforehand; or the position's own state
of the sweep before, which makes of the recurrence a loop over two sweeps, each of which attends to
its own keys and values.
Gates are computed from the memory-aware read, as the public release
(OoDBag/Latent_recurrent_transformer) does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import no_autocast
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, constant, fan_in, parameter, rms_norm
from lrt_lab.routes.base import Route, Traits
from lrt_lab.routes.gather import no_memory


class LRT(Route):
    """Latent Recurrent Transformer: m_t enters every block's residual input, keys and values.

    The defaults are the paper's form; the public release is ``source="top",
    projections="layerwise"``. At step 0 all gates are 1, alpha 1 and gamma 0.1. Zero memory equals
    no memory exactly.

    Args:
        source: what is carried: the hidden state after this many blocks (the paper's searched
            "upper-middle" block), null for ceil(3 L / 4) of them, or "top" for the normed state
            that the head reads.
        projections: "shared", one pair of recurrent K/V projections for all depths (one per
            distinct K/V shape), or "layerwise", one pair per block.
        gamma: initial scale of the memory in the residual input.
        enters: "injection", the equations above, "read", the same into what the mixers read only,
            or "source", as a depth source of its own.
        memory: "recurrent", m_{t-1}, or in its place a control: "zero", "shift" (the embedding of
            token t-1) or "self" (m_t of the sweep before).
    """

    traits = Traits(
        identity=(("alpha", 1.0), ("gamma", 0.0), ("gate_", 0.0), ("key_", 0.0), ("value_", 0.0))
    )

    def __init__(
        self,
        source: int | Literal["top"] | None = None,
        projections: Literal["shared", "layerwise"] = "shared",
        gamma: float = 0.1,
        enters: Literal["injection", "read", "source"] = "injection",
        memory: Literal["recurrent", "zero", "shift", "self"] = "recurrent",
    ) -> None:
        super().__init__()
        if enters not in ("injection", "read", "source"):
            raise UserError(f"route.enters={enters!r}: give injection, read or source")
        if memory not in ("recurrent", "zero", "shift", "self"):
            raise UserError(f"route.memory={memory!r}: give recurrent, zero, shift or self")
        self.enters, self.kind = enters, memory
        if enters == "source":
            self.slots, self.traits = 1, Traits(zero_is_none=None)
        if memory != "recurrent":
            loops, lookback = int(memory == "self") + 1, int(memory == "shift")
            self.traits = Traits(recurrent=False, loops=loops, lookback=lookback)
        if projections not in ("shared", "layerwise"):
            raise UserError(f"route.projections={projections!r}: give shared or layerwise")
        self.source, self.projections, self.initial_gamma = source, projections, gamma

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        source = -(-3 * shape.blocks // 4) if self.source is None else self.source
        if source != "top" and source not in range(1, shape.blocks + 1):
            raise UserError(
                f"route.source={source}: give a number of blocks from 1 to {shape.blocks}, or top"
            )
        self.tap: int | Literal["top"] = "top" if source == "top" else 2 * source
        if self.kind in ("recurrent", "self"):
            self.needs = Taps(top=True) if self.tap == "top" else Taps(units=(self.tap,))
        self.interval = range(shape.units if self.tap == "top" else self.tap)
        if self.enters != "source":
            self.setup_injection(shape)

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

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        return taps[self.tap]

    def receives(self, at: View) -> Tensor:
        return torch.ones_like(at.start) if self.kind == "self" else super().receives(at)

    def incoming(self, memory: Memory | None, at: View, table: Tensor) -> Memory | None:
        if self.kind != "shift":
            return memory
        assert at.before is not None
        return self.receive(rms_norm(F.embedding(at.before, table)), self.receives(at), at)

    def enter(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        return self.inject(unit, x, memory) if self.enters == "injection" else x

    def read(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        return self.inject(unit, x, memory) if self.enters == "read" else x

    def inject(self, unit: int, x: Tensor, memory: Memory | None) -> Tensor:
        """alpha x + gamma m before a mixer, ``(B, P, d)``."""
        if unit % 2:
            return x
        block = unit // 2
        if memory is None:
            return self.alpha[block] * x
        return self.alpha[block] * x + self.gamma[block] * memory.value

    def keys_values(
        self, unit: int, x: Tensor, k: Tensor, v: Tensor, memory: Memory | None, at: View
    ) -> tuple[Tensor, Tensor]:
        if self.enters == "source":
            return k, v
        block = unit // 2
        heads, head_dim = self.kv[block]
        weight = self.get_parameter(f"gate_{block}")
        with no_autocast(x.device.type):
            gates = 2 * torch.sigmoid(F.linear(x.to(weight.dtype), weight))
        local, recurrent = gates.to(v.dtype).unsqueeze(-1).split(heads, dim=-2)
        k, v = local * k, local * v
        if memory is None:
            return k, v
        projected_k, projected_v = self.project(memory, self.groups[block], (heads, head_dim))
        return k + recurrent * projected_k, v + recurrent * projected_v

    def project(self, memory: Memory, group: str, kv: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """W_k m and W_v m, ``(B, P, heads, head_dim)``; once per sweep and set of weights."""
        for name in ("key", "value"):
            if (name, group) not in memory.derived:
                weight = self.get_parameter(f"{name}_{group}")
                memory.derived[name, group] = F.linear(memory.value, weight).unflatten(-1, kv)
        return memory.derived["key", group], memory.derived["value", group]

    def sources(self, memory: Memory | None, at: View) -> Sequence[tuple[Tensor, Tensor]]:
        if self.enters != "source":
            return ()
        if memory is None:
            assert at.embedding is not None
            return no_memory(at.embedding, self.slots)
        return [(memory.value, memory.present)]
