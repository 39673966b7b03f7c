"""Softmax attention: grouped queries, QK-norm, rotary positions, a window, document masks.

    q, k, v = Wq u, Wk u, Wv u;   k, v = inject(u, k, v)
    y = Wo softmax(rms(rope(q)) rms(rope(k))^T / sqrt(h)) v

Gains of the QK-norm would be redundant with its scale, so the norm has none; then norm and rotation
commute. Sources: Vaswani et al. arXiv:1706.03762, Ainslie et al. arXiv:2305.13245, Henry et al.
arXiv:2010.04245.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import Placement, place_heads
from lrt_lab.errors import UserError
from lrt_lab.frame import View
from lrt_lab.layers import Shape, constant, fan_in, parameter
from lrt_lab.mixers.base import Inject, Mixer, Reads, notice

#: Inside the root mean square of queries and keys.
EPS = 1e-6


@dataclass(frozen=True)
class KeyValue:
    """Rotated, normed keys, and values, of every position: ``(B, N, kv_heads, head_dim)`` each."""

    k: Tensor
    v: Tensor
    in_place: bool = False

    def write(self, positions: range, k: Tensor, v: Tensor) -> KeyValue:
        """These positions replaced, or appended where they are new."""
        if self.in_place:
            return self._write_in_place(positions, k, v)
        if positions[0] >= self.k.shape[1]:
            return KeyValue(torch.cat([self.k, k], 1), torch.cat([self.v, v], 1))
        span = (1, positions.start, positions.stop, positions.step)
        return KeyValue(
            torch.slice_scatter(self.k, k, *span), torch.slice_scatter(self.v, v, *span)
        )

    def _write_in_place(self, positions: range, k: Tensor, v: Tensor) -> KeyValue:
        room = self
        if positions[-1] >= self.k.shape[1]:
            # Doubling keeps the cost of growing linear in the final length.
            extra = max(self.k.shape[1], positions[-1] + 1 - self.k.shape[1])
            pad = self.k.new_zeros(self.k.shape[0], extra, *self.k.shape[2:])
            room = KeyValue(torch.cat([self.k, pad], 1), torch.cat([self.v, pad], 1), True)
        cut = slice(positions.start, positions.stop, positions.step)
        room.k[:, cut], room.v[:, cut] = k, v
        return room


class Attention(Mixer):
    """Softmax attention over earlier positions of the same document.

    At step 0 its output is zero, since the output projection starts at zero.

    Args:
        heads: query heads; they divide the width.
        kv_heads: heads of keys and values, dividing ``heads``; None is as many as query heads.
        qk_norm: normalise queries and keys per head.
        rotary_base: base of the rotary angles; 0 switches positions off.
        window: positions a query looks back, itself not counted; None is all.
    """

    def __init__(
        self,
        heads: int = 4,
        kv_heads: int | None = None,
        qk_norm: bool = True,
        rotary_base: float = 10000.0,
        window: int | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise UserError(
                f"mixer heads={heads}, kv_heads={kv_heads}: both positive, kv_heads dividing heads"
            )
        if window is not None and window < 0:
            raise UserError(
                f"mixer window={window}: it must be 0 or more, or null for all positions"
            )
        self.heads, self.kv_heads = heads, kv_heads
        self.qk_norm, self.rotary_base, self.window = qk_norm, rotary_base, window

    def kv(self, shape: Shape) -> tuple[int, int]:
        if shape.width % self.heads or (shape.width // self.heads) % 2:
            raise UserError(
                f"width {shape.width} with {self.heads} heads: "
                "heads must divide the width into an even head size"
            )
        return self.kv_heads, shape.width // self.heads

    def setup(self, shape: Shape, block: int) -> None:
        _, self.head_dim = self.kv(shape)
        width, kv_width = shape.width, self.kv_heads * self.head_dim
        self.query = parameter(width, width, init=fan_in, role="matrix")
        self.key = parameter(kv_width, width, init=fan_in, role="matrix")
        self.value = parameter(kv_width, width, init=fan_in, role="matrix")
        self.out = parameter(width, width, init=constant(0.0), role="matrix")

    def forward(
        self, reads: Reads, at: View, buffer: KeyValue | None, inject: Inject
    ) -> tuple[Tensor, KeyValue]:
        read_q, read_k, read_v = reads if isinstance(reads, tuple) else (reads, reads, reads)
        if self.window is not None and self.training and at.positions == range(at.reach):
            notice("window", self.window, at.reach)
        q = F.linear(read_q, self.query).unflatten(-1, (self.heads, self.head_dim))
        k = F.linear(read_k, self.key).unflatten(-1, (self.kv_heads, self.head_dim))
        v = F.linear(read_v, self.value).unflatten(-1, (self.kv_heads, self.head_dim))
        k, v = inject(read_k, k, v, place=self.placement(at, k.dtype))
        q = self.place(q, at)
        buffer = KeyValue(k, v) if buffer is None else buffer.write(at.positions, k, v)
        # Torch's kernel takes (B, heads, positions, head_dim); the transposes are views.
        seen = slice(None, at.reach)
        keys, values = buffer.k[:, seen].transpose(1, 2), buffer.v[:, seen].transpose(1, 2)
        mask = at.mask(self.window)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None and len(at.positions) > 1,
            enable_gqa=self.heads != self.kv_heads,
        )
        return F.linear(y.transpose(1, 2).flatten(-2), self.out), buffer

    def place(self, x: Tensor, at: View) -> Tensor:
        """Normalise heads and rotate them to their positions."""
        return place_heads(x, self.placement(at, x.dtype))

    def placement(self, at: View, dtype: torch.dtype) -> Placement:
        """The norm of heads, and the angles of their positions."""
        rotary = at.rotary(self.head_dim, self.rotary_base, dtype) if self.rotary_base else None
        return Placement(EPS if self.qk_norm else None, rotary)

    def lookback(self) -> int | None:
        return self.window

    def work(self, positions: range, buffer: KeyValue | None) -> Hashable:
        # Strided positions are written over old ones and need a mask, wherever they start.
        strided = positions.step > 1 and len(positions) > 1
        return len(positions) if strided else positions

    def allocate(self, batch: int, capacity: int, like: Tensor) -> KeyValue:
        shape = (batch, capacity, self.kv_heads, self.head_dim)
        return KeyValue(like.new_zeros(shape), like.new_zeros(shape), True)

    def select(self, buffer: KeyValue, rows: Tensor) -> KeyValue:
        return KeyValue(buffer.k[rows], buffer.v[rows], buffer.in_place)
