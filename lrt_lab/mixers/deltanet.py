"""DeltaNet: a matrix state that each position corrects at its key (arXiv:2102.11174, 2406.06484).

    q, k, v = silu(conv(Wq u)), silu(conv(Wk u)), silu(conv(Wv u));    q, k <- q / |q|, k / |k|
    beta    = sigmoid(Wb u)
    S_t     = S_{t-1} (I - beta k k^T) + beta v k^T,    o = S_t q / sqrt(K)
    y       = Wo rms(o)

per head, with a depthwise causal convolution; as in flash-linear-attention. A route's keys and
values enter before the convolution.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import delta_rule, l2_norm, no_autocast, short_conv
from lrt_lab.errors import UserError
from lrt_lab.frame import View
from lrt_lab.layers import RMSNorm, Routing, Shape, constant, fan_in, parameter, uniform
from lrt_lab.mixers.base import Inject, Mixer, Reads
from lrt_lab.mixers.delta_buffer import Columns, DeltaBuffer

CHUNKS = (16, 32, 64)


class DeltaNet(Routing, Mixer):
    """Linear attention with the delta rule: each write first erases what its key holds.

    Memory and time per decoded position do not grow. There are no positions but the order of the
    writes and the convolution. State, convolution and all else restart at document starts. With
    three reads, queries and the output gate have the first, keys and strengths the second.
    At step 0 its output is zero, since the output projection starts at zero.

    Args:
        heads: heads of queries, keys and values.
        head_dim: features per head of queries and keys; null is width / heads.
        expand_v: features of a value over those of a key. A route's memory, as wide as a key,
            enters each of these slices of a value alike.
        conv: positions that the convolution sees, the current one counted; 1 is none but a scale.
        negative: let strengths reach 2, for eigenvalues of the transition down to -1.
        output_norm: norm each head's output, with a learned gain.
        output_gate: multiply the normed output by silu(Wg u).
        chunk: positions solved at once in training: 16, 32 or 64.
    """

    def __init__(
        self,
        heads: int = 4,
        head_dim: int | None = None,
        expand_v: int = 1,
        conv: int = 4,
        negative: bool = False,
        output_norm: bool = True,
        output_gate: bool = False,
        chunk: int = 32,
    ) -> None:
        super().__init__()
        counts = {"heads": heads, "expand_v": expand_v, "conv": conv}
        for name, value in {**counts, "head_dim": 1 if head_dim is None else head_dim}.items():
            if value < 1:
                raise UserError(f"mixer {name}={value}: it must be at least 1")
        if chunk not in CHUNKS:
            raise UserError(f"mixer chunk={chunk}: give 16, 32 or 64")
        self.heads, self.head_dim, self.expand_v, self.conv = heads, head_dim, expand_v, conv
        self.negative, self.chunk = negative, chunk
        self.output_norm, self.output_gate = output_norm, output_gate

    def kv(self, shape: Shape) -> tuple[int, int]:
        if self.head_dim is not None:
            return self.heads, self.head_dim
        if shape.width % self.heads:
            raise UserError(
                f"width {shape.width} with {self.heads} heads: "
                "heads must divide the width, or give mixer head_dim"
            )
        return self.heads, shape.width // self.heads

    def setup(self, shape: Shape, block: int) -> None:
        _, self.key_dim = self.kv(shape)
        self.value_dim = self.expand_v * self.key_dim
        width, keys, values = shape.width, self.heads * self.key_dim, self.heads * self.value_dim
        # Torch's own start of a depthwise convolution.
        start = uniform(self.conv**-0.5)
        for name, features in (("query", keys), ("key", keys), ("value", values)):
            weight = parameter(features, width, init=fan_in, role="matrix")
            self.register_parameter(name, weight)
            kernel = parameter(features, self.conv, init=start, role="connection")
            self.register_parameter(f"{name}_conv", kernel)
        self.beta = parameter(self.heads, width, init=fan_in, role="router")
        if self.output_norm:
            self.norm = RMSNorm(self.value_dim, 1e-5)
        if self.output_gate:
            self.gate = parameter(values, width, init=fan_in, role="matrix")
        self.out = parameter(width, values, init=constant(0.0), role="matrix")

    def forward(
        self, reads: Reads, at: View, buffer: DeltaBuffer | None, inject: Inject
    ) -> tuple[Tensor, DeltaBuffer]:
        read_q, read_k, read_v = reads if isinstance(reads, tuple) else (reads, reads, reads)
        q = F.linear(read_q, self.get_parameter("query")).unflatten(-1, (self.heads, -1))
        k = F.linear(read_k, self.get_parameter("key")).unflatten(-1, (self.heads, -1))
        v = F.linear(read_v, self.get_parameter("value")).unflatten(-1, (self.heads, -1))
        k, v = self.enter(inject, read_k, k, v)
        with no_autocast(q.device.type):
            columns = Columns(q, k, v, self.strength(read_k), self.log_decay(read_k))
        if buffer is None:
            buffer = DeltaBuffer(0, None, columns)
            first, state = 0, None
        else:
            old, buffer = buffer, buffer.write(at.positions, columns)
            first, state = old.anchor, old.before
            if at.positions.start == old.end and old.after is not None:
                first, state = old.end, old.after
        o, buffer = self.scan(buffer, first, state, at)
        if self.output_norm:
            o = self.norm(o)
        if self.output_gate:
            o = o * F.silu(F.linear(read_q, self.gate)).unflatten(-1, (self.heads, -1))
        return F.linear(o.flatten(-2), self.out), buffer

    def enter(self, inject: Inject, read: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The route's port, once per slice of the values that is as wide as a key."""
        if self.expand_v == 1:
            return inject(read, k, v)
        entered = [inject(read, k, piece) for piece in v.split(self.key_dim, dim=-1)]
        return entered[0][0], torch.cat([piece for _, piece in entered], dim=-1)

    def strength(self, read: Tensor) -> Tensor:
        """beta ``(B, P, H)``, float32 or wider."""
        beta = torch.sigmoid(F.linear(read.to(self.beta.dtype), self.beta))
        return 2 * beta if self.negative else beta

    def log_decay(self, read: Tensor) -> Tensor | None:
        """The logarithm of the decay ``(B, P, H)``; None is none."""
        return None

    def scan(
        self, buffer: DeltaBuffer, first: int, state: Tensor | None, at: View
    ) -> tuple[Tensor, DeltaBuffer]:
        """Outputs at the sweep's positions, by the recurrence from ``first`` to the last of them.

        Args:
            buffer: with the sweep's own columns in it.
            first: a position whose state is known.
            state: before it.
            at: the sweep.
        """
        stop = at.positions[-1] + 1
        skip = min(self.conv - 1, first - (buffer.anchor - buffer.lead))
        low = first - skip
        offset = buffer.anchor - buffer.lead
        columns = buffer.columns.at(slice(low - offset, stop - offset))
        start = starts(at, low, stop)
        q, k, v = (
            short_conv(x.flatten(-2), self.get_parameter(f"{name}_conv"), skip, start).view(
                x.shape[0], stop - first, *x.shape[2:]
            )
            for name, x in (("query", columns.q), ("key", columns.k), ("value", columns.v))
        )
        decay = columns.log_decay
        o, after = delta_rule(
            l2_norm(q),
            l2_norm(k),
            v,
            columns.beta[:, skip:],
            None if decay is None else decay[:, skip:],
            state,
            None if start is None else start[:, skip:],
            scale=self.key_dim**-0.5,
            chunk=self.chunk,
        )
        own = at.positions
        o = o[:, own.start - first : own.stop - first : own.step]
        known = after if stop == buffer.end else None
        return o, DeltaBuffer(buffer.anchor, buffer.before, buffer.columns, buffer.lead, known)

    def rescans(self, positions: range, buffer: DeltaBuffer | None) -> int:
        # The recurrence runs from the last known state, whatever positions are asked for.
        if buffer is None:
            first = 0
        elif positions.start == buffer.end and buffer.after is not None:
            first = buffer.end
        else:
            first = buffer.anchor
        return positions[-1] + 1 - first - len(positions)

    def work(self, positions: range, buffer: DeltaBuffer | None) -> Hashable:
        if positions.step == 1:
            return positions
        return len(positions), self.rescans(positions, buffer)

    def allocate(self, batch: int, capacity: int, like: Tensor) -> DeltaBuffer:
        key = like.new_zeros(batch, 0, self.heads, self.key_dim)
        beta = like.new_zeros(batch, 0, self.heads)
        value = like.new_zeros(batch, 0, self.heads, self.value_dim)
        decay = None if type(self).log_decay is DeltaNet.log_decay else beta
        return DeltaBuffer(0, None, Columns(key, key, value, beta, decay))

    def commit(self, buffer: DeltaBuffer) -> DeltaBuffer:
        return buffer.commit(self.conv - 1)

    def select(self, buffer: DeltaBuffer, rows: Tensor) -> DeltaBuffer:
        return buffer.select(rows)


def starts(at: View, first: int, stop: int) -> Tensor | None:
    """Where a document starts among the positions ``first .. stop - 1``, ``(B, stop - first)``."""
    if at.key_document is None:
        return None
    document = at.key_document[:, max(0, first - 1) : stop]
    changes = document[:, 1:] != document[:, :-1]
    return changes if first else F.pad(changes, (1, 0), value=True)
