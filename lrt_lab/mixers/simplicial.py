"""2-simplicial attention: one softmax over pairs of positions (arXiv:2507.02754).

    q, k, v, k', v' = Wq u, Wk u, Wv u, Wk' u, Wv' u;    k, v = inject(u, k, v)
    y_i = Wo sum_jl softmax_jl(<q_i, k_j, k'_l> / sqrt(h)) v_j * v'_l

over pairs in two causal windows (`lrt_kernels.simplicial_attention`). A route's keys and values
enter k and v, those of the wide window, so its projections are the ones that attention has.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import simplicial_attention
from lrt_lab.errors import UserError
from lrt_lab.frame import View
from lrt_lab.layers import Shape, constant, fan_in, parameter, rms_norm, rotate
from lrt_lab.mixers.attention import KeyValue
from lrt_lab.mixers.base import Inject, Mixer, Reads, notice

Position = Literal["none", "rotary", "determinant"]


class SimplicialAttention(Mixer):
    """Attention to pairs of positions: trilinear scores, one position from each of two windows.

    Its cost grows with the product of the windows. At step 0 its output is zero, since the output
    projection starts at zero.

    Args:
        heads: query heads; they divide the width.
        kv_heads: heads of both keys and both values, dividing ``heads``; null is as many as query
            heads.
        window: positions that k and v are taken from, the query's own counted.
        pair_window: likewise for k' and v'.
        qk_norm: normalise queries and both keys per head.
        bias: add 1 / h to k' and 1 to v': where these are small it is close to attention.
        position: "none" (the windows localise), "rotary" on q and k alone, which makes scores
            depend on absolute positions, or "determinant", the form that depends on differences
            alone: q, k and k' rotated in triples of features, whose determinants are summed.
        rotary_base: base of the rotary angles.
    """

    def __init__(
        self,
        heads: int = 4,
        kv_heads: int | None = None,
        window: int = 512,
        pair_window: int = 32,
        qk_norm: bool = True,
        bias: bool = False,
        position: Position = "none",
        rotary_base: float = 10000.0,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise UserError(
                f"mixer heads={heads}, kv_heads={kv_heads}: both positive, kv_heads dividing heads"
            )
        if window < 1 or pair_window < 1:
            raise UserError(
                f"mixer window={window}, pair_window={pair_window}: both at least 1, "
                "a position counts itself"
            )
        if position not in ("none", "rotary", "determinant"):
            raise UserError(f"mixer position={position!r}: give none, rotary or determinant")
        self.heads, self.kv_heads = heads, kv_heads
        self.windows = (window, pair_window)
        self.qk_norm, self.bias = qk_norm, bias
        self.position, self.rotary_base = position, rotary_base

    def kv(self, shape: Shape) -> tuple[int, int]:
        if shape.width % self.heads:
            raise UserError(
                f"width {shape.width} with {self.heads} heads: heads must divide the width"
            )
        head_dim = shape.width // self.heads
        divisor = {"none": 1, "rotary": 2, "determinant": 3}[self.position]
        if head_dim % divisor:
            raise UserError(
                f"mixer position={self.position} with {head_dim} features per head "
                f"(width {shape.width}, {self.heads} heads): they must be a multiple of {divisor}"
            )
        return self.kv_heads, head_dim

    def setup(self, shape: Shape, block: int) -> None:
        _, self.head_dim = self.kv(shape)
        width, kv_width = shape.width, self.kv_heads * self.head_dim
        self.query = parameter(width, width, init=fan_in, role="matrix")
        self.key = parameter(kv_width, width, init=fan_in, role="matrix")
        self.value = parameter(kv_width, width, init=fan_in, role="matrix")
        self.pair_key = parameter(kv_width, width, init=fan_in, role="matrix")
        self.pair_value = parameter(kv_width, width, init=fan_in, role="matrix")
        self.out = parameter(width, width, init=constant(0.0), role="matrix")

    def forward(
        self, reads: Reads, at: View, buffer: KeyValue | None, inject: Inject
    ) -> tuple[Tensor, KeyValue]:
        read_q, read_k, read_v = reads if isinstance(reads, tuple) else (reads, reads, reads)
        if self.training and at.positions == range(at.reach):
            for option, window in zip(("window", "pair_window"), self.windows, strict=True):
                notice(option, window, at.reach)
        q = F.linear(read_q, self.query).unflatten(-1, (self.heads, -1))
        k, pair_k = (
            F.linear(read_k, weight).unflatten(-1, (self.kv_heads, -1))
            for weight in (self.key, self.pair_key)
        )
        v, pair_v = (
            F.linear(read_v, weight).unflatten(-1, (self.kv_heads, -1))
            for weight in (self.value, self.pair_value)
        )
        k, v = inject(read_k, k, v)
        if self.qk_norm:
            q, k, pair_k = rms_norm(q), rms_norm(k), rms_norm(pair_k)
        q, k, pair_k = self.place(q, k, pair_k, at)
        if self.bias:
            pair_k, pair_v = pair_k + 1 / self.head_dim, pair_v + 1
        # Both keys, and both values, side by side on the axis of heads: one buffer as attention's.
        k, v = torch.cat([k, pair_k], 2), torch.cat([v, pair_v], 2)
        buffer = KeyValue(k, v) if buffer is None else buffer.write(at.positions, k, v)
        k, pair_k = buffer.k.chunk(2, dim=2)
        v, pair_v = buffer.v.chunk(2, dim=2)
        y = simplicial_attention(
            q,
            (k, pair_k),
            (v, pair_v),
            self.windows,
            at.positions,
            at.key_document,
            determinant=self.position == "determinant",
        )
        return F.linear(y.flatten(-2), self.out), buffer

    def place(
        self, q: Tensor, k: Tensor, pair_k: Tensor, at: View
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate to positions what the position option says."""
        if self.position == "rotary":
            table = at.rotary(self.head_dim, self.rotary_base, q.dtype)
            return rotate(q, table), rotate(k, table), pair_k
        if self.position == "determinant":
            table = at.rotary(2 * self.head_dim // 3, self.rotary_base, q.dtype)
            return turn(q, table), turn(k, table), turn(pair_k, table)
        return q, k, pair_k

    def lookback(self) -> int | None:
        return max(self.windows) - 1

    def allocate(self, batch: int, capacity: int, like: Tensor) -> KeyValue:
        shape = (batch, capacity, 2 * self.kv_heads, self.head_dim)
        return KeyValue(like.new_zeros(shape), like.new_zeros(shape), True)

    def select(self, buffer: KeyValue, rows: Tensor) -> KeyValue:
        return KeyValue(buffer.k[rows], buffer.v[rows], buffer.in_place)


def turn(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate consecutive triples of features about their third axis, an angle per triple."""
    cos, sin = table
    x1, x2, x3 = x.unflatten(-1, (-1, 3)).unbind(-1)
    return torch.stack([x1 * cos + x2 * sin, x2 * cos - x1 * sin, x3], dim=-1).flatten(-2)
