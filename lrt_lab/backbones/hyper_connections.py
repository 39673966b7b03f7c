"""Hyper-Connections: n parallel residual streams (Zhu et al., arXiv:2409.19606 section 2).

With streams X ``(n, d)``, source stream s, destination stream r, and X-bar each stream normed over
its features, unit u reads, carries and writes by

    a_s   = read_s   + alpha tanh(X-bar_s . w_read)
    b_s   = write_s  + beta  tanh(X-bar_s . w_write)
    C_sr  = carry_sr + alpha tanh(X-bar_s . w_carry,r)

    x = sum_s a_s X_s,    X'_r = sum_s C_sr X_s + b_r F_u(RMS(x) g_u)

C, [source, destination], is the paper's A_r. Nothing bounds it: a product of carries over depth can
grow without limit.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrt_kernels import no_autocast, normed_scores, stream_adjustments, wide
from lrt_lab.backbones.base import Backbone
from lrt_lab.backbones.streams import Coefficients, ParallelStreams, Streams
from lrt_lab.errors import UserError
from lrt_lab.layers import Shape, constant, parameter


class StreamConnection(nn.Module):
    """One unit's coefficients.

    Axes: ``read`` and ``write`` (stream,), ``carry`` (source, destination), ``read_weight`` and
    ``write_weight`` (1, d), ``carry_weight`` (destination, d).
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
        self.read_weight = parameter(1, width, init=zero, role="router")
        self.write_weight = parameter(1, width, init=zero, role="router")
        self.carry_weight = parameter(streams, width, init=zero, role="router")
        self.mix_scale = parameter(1, init=constant(0.01), role="connection")
        self.write_scale = parameter(1, init=constant(0.01), role="connection")

    def forward(self, x: Tensor) -> Coefficients:
        """Coefficients for streams ``(..., n, d)``, float32 or wider."""
        dtype = wide(x.dtype)
        read, write, carry = (p.to(dtype) for p in (self.read, self.write, self.carry))
        if not self.dynamic:
            positions = x.shape[:-2]
            return Coefficients(*(p.expand(*positions, *p.shape) for p in (read, write, carry)))
        weight = torch.cat([self.read_weight, self.write_weight, self.carry_weight]).to(dtype)
        scores = normed_scores(x, weight, self.gain, self.eps, self.norm == "layer")
        shift = None
        if self.norm == "layer":
            with no_autocast(x.device.type):
                shift = F.linear(self.bias.to(dtype), weight)
        learned = (read, write, carry, self.mix_scale, self.write_scale)
        return Coefficients(*stream_adjustments(scores, *learned, shift, self.tanh))


class HyperConnections(ParallelStreams, Backbone):
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
        self.units = shape.units
        options = (self.dynamic, self.tanh, self.norm, self.eps)
        self.connections = nn.ModuleList(
            StreamConnection(shape.width, self.streams, unit, *options)
            for unit in range(shape.units)
        )

    def finish(self, state: Streams) -> Tensor:
        return state.x.sum(-2)

    def coefficients(self, streams: Tensor, unit: int) -> Coefficients:
        return self.connections[unit](streams)
