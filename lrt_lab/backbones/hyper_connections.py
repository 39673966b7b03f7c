"""Hyper-Connections: n parallel residual streams (Zhu et al., arXiv:2409.19606 section 2).

With streams X ``(n, d)``, source stream s, destination stream r, and X-bar each stream normed over
its features, unit u reads, carries and writes by

    a_s    = read_s     + alpha tanh(X-bar_s . w_read)
    R_{rs} = carry_{rs} + alpha tanh(X-bar_s . w_carry,r)
    b_s    = write_s    + beta  tanh(X-bar_s . w_write)

    x = sum_s a_s X_s,    X'_r = sum_s R_{rs} X_s + b_r F_u(RMS(x) g_u)

The paper's A_r is R transposed, [source, destination]; here it is [destination, source]. Nothing
bounds R: a product of carries over depth can grow without limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrt_kernels import no_autocast, wide
from lrt_lab.backbones.base import Backbone, Source, unchanged
from lrt_lab.errors import UserError
from lrt_lab.layers import Shape, constant, parameter


class Coefficients(NamedTuple):
    """Read and write ``(..., n)``, carry [destination, source] ``(..., n, n)`` of one unit."""

    read: Tensor
    carry: Tensor
    write: Tensor


class Streams(NamedTuple):
    """The streams ``(B, P, n, d)``, and from `enter` on the coming unit's coefficients."""

    x: Tensor
    coefficients: Coefficients | None = None


class StreamConnection(nn.Module):
    """One unit's coefficients.

    Axes: ``read`` and ``write`` (stream,), ``carry`` (destination, source), ``read_weight`` and
    ``write_weight`` (d,), ``carry_weight`` (destination, d).
    """

    def __init__(
        self,
        width: int,
        streams: int,
        unit: int,
        dynamic: bool,
        tanh: bool,
        norm: Literal["layer", "rms"],
        eps: float,
    ) -> None:
        super().__init__()
        self.streams, self.dynamic, self.tanh = streams, dynamic, tanh
        self.norm, self.eps = norm, eps

        def one_hot(tensor: Tensor, g: torch.Generator) -> None:
            tensor.zero_()[unit % streams] = 1.0

        def identity(tensor: Tensor, g: torch.Generator) -> None:
            nn.init.eye_(tensor)

        zero, one = constant(0.0), constant(1.0)
        self.read = parameter(streams, init=one_hot, role="connection")
        self.carry = parameter(streams, streams, init=identity, role="connection")
        self.write = parameter(streams, init=one, role="connection")
        if not dynamic:
            return
        self.gain = parameter(width, init=one, role="connection")
        if norm == "layer":
            self.bias = parameter(width, init=zero, role="connection")
        self.read_weight = parameter(width, init=zero, role="router")
        self.carry_weight = parameter(streams, width, init=zero, role="router")
        self.write_weight = parameter(width, init=zero, role="router")
        self.mix_scale = parameter(1, init=constant(0.01), role="connection")
        self.write_scale = parameter(1, init=constant(0.01), role="connection")

    def forward(self, x: Tensor) -> Coefficients:
        """Coefficients for streams ``(..., n, d)``, float32 or wider."""
        dtype = wide(x.dtype)
        read, carry, write = (p.to(dtype) for p in (self.read, self.carry, self.write))
        if not self.dynamic:
            return Coefficients(read, carry, write)
        with no_autocast(x.device.type):
            scores = self.scores(x.to(dtype))
            if self.tanh:
                scores = torch.tanh(scores)
            # Scores are (..., source, what): the carry's last two axes are source, destination.
            on_read, on_write, on_carry = scores.split([1, 1, self.streams], dim=-1)
            return Coefficients(
                read + self.mix_scale * on_read.squeeze(-1),
                carry + self.mix_scale * on_carry.transpose(-1, -2),
                write + self.write_scale * on_write.squeeze(-1),
            )

    def scores(self, x: Tensor) -> Tensor:
        """X-bar against the read, write and carry weights, ``(..., n, 2 + n)``.

        The norm is folded behind the product, so that no normed copy of the streams is kept:
        LN(x) . w = ((x - mean) . (g w)) / std + bias . w.
        """
        width = x.shape[-1]
        weight = torch.cat(
            [self.read_weight.unsqueeze(0), self.write_weight.unsqueeze(0), self.carry_weight]
        ).to(x.dtype)
        scaled = weight * self.gain
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / width
        if self.norm == "rms":
            return F.linear(x, scaled) * torch.rsqrt(square + self.eps)
        # Centred weights see centred streams; one more row takes the streams' mean.
        rows = torch.cat(
            [scaled - scaled.mean(-1, keepdim=True), x.new_full((1, width), 1 / width)]
        )
        products, mean = F.linear(x, rows).split([len(weight), 1], dim=-1)
        rescale = torch.rsqrt(square - mean.square() + self.eps)
        return products * rescale + F.linear(self.bias, weight)


class HyperConnections(Backbone):
    """Hyper-Connections: n residual streams that units read, mix and write by learned weights.

    At step 0 unit u reads stream u mod n, every stream is carried as it is and written with weight
    1: all streams are PreNorm's stream, their sum is exactly n times it, and the output equals
    PreNorm's (up to the final norm's eps). The rotating read sets the streams apart from the first
    step on.

    A route's residual injection is made on the mean of the streams, and its change is added to
    every one of them; a route's sources are added to the embedding where they are present. The
    head reads the sum of the streams.

    Static coefficients, norms and scales do not decay; the weights of the dynamic part do (paper
    section 4). The paper's sqrt(n) on the initial output maps has no object here: they start at 0.

    Args:
        streams: number n of streams; one alone is worse than PreNorm (paper Table 1).
        dynamic: let the streams themselves adjust the coefficients; False leaves the static ones.
        tanh: bound that adjustment (paper: equally good with and without).
        norm: of the streams before the router, LayerNorm as in the paper, or RMSNorm.
        eps: inside that norm.
    """

    def __init__(
        self,
        streams: int = 4,
        dynamic: bool = True,
        tanh: bool = True,
        norm: Literal["layer", "rms"] = "layer",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        if streams < 2:
            raise UserError(
                f"backbone.streams={streams}: HyperConnections needs at least 2; with one stream"
                " take PreNorm"
            )
        if norm not in ("layer", "rms"):
            raise UserError(f"backbone.norm={norm!r}: give layer or rms")
        self.streams, self.dynamic, self.tanh = streams, dynamic, tanh
        self.norm, self.eps = norm, eps

    def setup(self, shape: Shape, slots: int) -> None:
        options = (self.dynamic, self.tanh, self.norm, self.eps)
        self.connections = nn.ModuleList(
            StreamConnection(shape.width, self.streams, unit, *options)
            for unit in range(shape.units)
        )

    def start(self, x: Tensor, sources: Sequence[Source]) -> Streams:
        for value, present in sources:
            x = x + value * present.unsqueeze(-1)
        return Streams(x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1]))

    def enter(self, state: Streams, unit: int, inject: Callable[[Tensor], Tensor]) -> Streams:
        x = state.x
        if inject is not unchanged:
            mean = x.mean(-2)
            injected = inject(mean)
            if injected is not mean:
                x = x + (injected - mean).unsqueeze(-2)
        return Streams(x, self.connection(unit)(x))

    def read(self, state: Streams, unit: int) -> Tensor:
        read = self._coefficients(state, unit).read.to(state.x.dtype)
        with no_autocast(read.device.type):
            return (read.unsqueeze(-2) @ state.x).squeeze(-2)

    def write(self, state: Streams, unit: int, y: Tensor) -> Streams:
        _, carry, write = self._coefficients(state, unit)
        x = state.x
        with no_autocast(x.device.type):
            carried = carry.to(x.dtype) @ x
            written = write.to(x.dtype).unsqueeze(-1)
            return Streams(torch.addcmul(carried, written, y.to(x.dtype).unsqueeze(-2)))

    def hidden(self, state: Streams, unit: int) -> Tensor:
        return state.x.mean(-2)

    def finish(self, state: Streams) -> Tensor:
        return state.x.sum(-2)

    def connection(self, unit: int) -> StreamConnection:
        """A unit's connection."""
        return cast(StreamConnection, self.connections[unit])

    def _coefficients(self, state: Streams, unit: int) -> Coefficients:
        return state.coefficients or self.connection(unit)(state.x)
