"""mHC: hyper-connections with a near doubly stochastic carry (DeepSeek, arXiv:2512.24880).

Every position carries n streams X_s. A unit scores them together, reads one mixture, writes its
output to every stream and mixes the streams among themselves, with source s and destination r:

    m    = RMS(vec X) phi^T                                  scores: n read, n write, n^2 carry
    a    = sigmoid(alpha_1 m_read + beta_read) + eps_read
    b    = 2 sigmoid(alpha_2 m_write + beta_write)
    C    = Sinkhorn(alpha_3 m_carry + beta_carry)            C[source, destination], near doubly
                                                             stochastic; the paper's H_res is C^T
    u    = sum_s a_s X_s,        X'_r = sum_s C_sr X_s + b_r F(RMS(u))

Coefficients are float32 or wider under any precision.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from lrt_kernels import Sinkhorn, stream_coefficients, stream_read, stream_score
from lrt_lab.backbones.base import Backbone
from lrt_lab.backbones.streams import Coefficients, ParallelStreams, Streams
from lrt_lab.errors import UserError
from lrt_lab.layers import Shape, constant, parameter
from lrt_lab.layers.parameter import Init

Initial = Literal["prenorm", "authors"]
Readout = Literal["mean", "sum", "head"]


class Connection(nn.Module):
    """One unit's coefficients.

    Args:
        width: features d of a stream.
        initial: starting values of the bias ``(n + n + carries,)``: read, write, carry.
        streams: number n of streams.
        eps: inside the root mean square over all n d entries.
    """

    def __init__(self, width: int, initial: Tensor, streams: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        entries = streams * width
        self.gain = parameter(entries, init=constant(1.0), role="connection")
        self.phi = parameter(len(initial), entries, init=constant(0.0), role="router")
        # Of the read, write and carry scores.
        self.alpha = parameter(3, init=constant(0.01), role="connection")
        self.beta = parameter(len(initial), init=_values(initial), role="connection")

    def forward(
        self, streams: Tensor, mixing: Sinkhorn | Tensor, write_scale: float, read_eps: float
    ) -> Coefficients:
        """Coefficients for streams ``(B, P, n, d)``; the rest as of `stream_coefficients`."""
        scores = stream_score(streams, self.phi * self.gain, self.eps)
        gates = (write_scale, read_eps)
        return Coefficients(*stream_coefficients(scores, self.alpha, self.beta, mixing, *gates))


def _values(values: Tensor) -> Init:
    def fill(tensor: Tensor, g: torch.Generator) -> None:
        tensor.copy_(values)

    return fill


class MHC(ParallelStreams, Backbone):
    """mHC: n streams, mixed by near doubly stochastic matrices (arXiv:2512.24880).

    At step 0, with ``initial="prenorm"``, all streams are equal, so their mean is PreNorm's stream
    whatever the carry, and the branch norm removes the scale of the read: the outputs are PreNorm's
    (up to the eps of the norms and of Sinkhorn). Every unit prefers another stream to read, so the
    streams get different gradients and separate from the first step on. The paper does not say how
    phi and the biases start. A route's residual injection adds the change of the streams' mean to
    every stream; a route's sources are added to the embedding where they are present.

    Of a connection's parameters phi alone decays (the paper decays by .1 without saying what): it
    is a matrix, alpha and the biases are scales and logits. Since alpha = .01 makes phi's
    gradients small, the paper trains with an AdamW eps of 1e-20.

    Args:
        streams: number n of streams, at least 2.
        iterations: Sinkhorn-Knopp iterations.
        exact: the axis of the carry that is normalised last, so that its sums are one: "source",
            what arrives at each destination (the paper, DeepSeek's code), or "destination", what
            each source gives away (the mHC-lite authors' mHC).
        sinkhorn_eps: in Sinkhorn's denominators: 1e-6 in DeepSeek's code, 0 in the paper.
        write_scale: the factor 2 of the write; TileKernels' own default is 1.
        read_eps: added to the read: 1e-6 in DeepSeek-V4's code, 0 in the paper.
        readout: what the head reads: the "mean" of the streams, their "sum", or "head", a learned
            sigmoid mixture as in DeepSeek-V4, which starts as half the sum.
        initial: "prenorm": phi 0, read biases 4 at stream (unit mod n) and -4 elsewhere, write
            biases 0, carry biases 0 on the diagonal and -8 elsewhere. "authors", as the mHC-lite
            authors start their mHC: read and write biases 1 at that stream and -1 elsewhere, the
            rest the same; it does not equal PreNorm.
        eps: inside the root mean square of the scores: 1e-6 in DeepSeek-V4's code, 1e-20 in the
            paper.
    """

    def __init__(
        self,
        streams: int = 4,
        iterations: int = 20,
        exact: Literal["source", "destination"] = "source",
        sinkhorn_eps: float = 1e-6,
        write_scale: float = 2.0,
        read_eps: float = 0.0,
        readout: Readout = "mean",
        initial: Initial = "prenorm",
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if streams < 2:
            raise UserError(
                f"backbone.streams={streams}: one stream has nothing to mix;"
                " give 2 or more, or use PreNorm"
            )
        if iterations < 1:
            raise UserError(f"backbone.iterations={iterations}: give at least 1")
        for name, value, allowed in (
            ("exact", exact, ("source", "destination")),
            ("readout", readout, get_args(Readout)),
            ("initial", initial, get_args(Initial)),
        ):
            if value not in allowed:
                raise UserError(f"backbone.{name}={value!r}: give {' or '.join(allowed)}")
        self.streams, self.iterations, self.exact = streams, iterations, exact
        self.sinkhorn_eps, self.write_scale, self.read_eps = sinkhorn_eps, write_scale, read_eps
        self.readout, self.initial, self.eps = readout, initial, eps

    def setup(self, shape: Shape, slots: int) -> None:
        self.units = shape.units
        self.connections = nn.ModuleList(
            Connection(shape.width, self.start_bias(unit), self.streams, self.eps)
            for unit in range(shape.units)
        )
        if self.readout == "head":
            entries = self.streams * shape.width
            self.head_phi = parameter(self.streams, entries, init=constant(0.0), role="router")
            self.head_alpha = parameter(1, init=constant(0.01), role="connection")
            self.head_beta = parameter(self.streams, init=constant(0.0), role="connection")

    def start_bias(self, unit: int) -> Tensor:
        """Starting biases of a unit's read, write and carry."""
        own = torch.full((self.streams,), -1.0, device="cpu")
        own[unit % self.streams] = 1.0
        if self.initial == "authors":
            return torch.cat([own, own, self.start_carry()])
        return torch.cat([4 * own, 0 * own, self.start_carry()])

    def start_carry(self) -> Tensor:
        """Starting biases of the carry, near the identity."""
        return (8 * torch.eye(self.streams, device="cpu") - 8).flatten()

    def mixing(self) -> Sinkhorn | Tensor:
        """How logits become a carry."""
        return Sinkhorn(self.iterations, self.sinkhorn_eps, self.exact)

    def coefficients(self, streams: Tensor, unit: int) -> Coefficients:
        """A unit's read, write and carry for streams ``(B, P, n, d)``."""
        gates = (self.write_scale, self.read_eps)
        return self.connections[unit](streams, self.mixing(), *gates)

    def finish(self, state: Streams) -> Tensor:
        x = state.x
        if self.readout == "mean":
            return self.hidden(state, self.units)
        if self.readout == "sum":
            return x.sum(-2)
        scores = self.head_alpha * stream_score(x, self.head_phi, self.eps) + self.head_beta
        return stream_read(x, torch.sigmoid(scores) + self.read_eps)
