"""Gated DeltaNet: the delta rule with a decay per head and position (arXiv:2412.06464).

    g   = -exp(A_log) softplus(Wa u + dt_bias)
    S_t = exp(g_t) S_{t-1} (I - beta k k^T) + beta v k^T
    y   = Wo (rms(o) * silu(Wg u))

and the rest as in `DeltaNet`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.layers import Shape, fan_in, parameter
from lrt_lab.mixers.deltanet import DeltaNet

#: Smallest rate that is drawn: a rate of zero has the logarithm -inf and never learns.
FLOOR = 0.01


class GatedDeltaNet(DeltaNet):
    """DeltaNet whose state also decays, by as much as each position says, with an output gate.

    Decays are computed in float32 or wider under any precision. Their rates start between 0.01 and
    16 (the published range from 0 can draw a head that is dead for ever), their biases so that
    softplus gives 0.001 to 0.1, both without weight decay. The published layer has ``head_dim`` of
    3/4 width / heads and ``expand_v`` 2.

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
        output_gate: bool = True,
        chunk: int = 32,
    ) -> None:
        super().__init__(heads, head_dim, expand_v, conv, negative, output_norm, output_gate, chunk)

    def setup(self, shape: Shape, block: int) -> None:
        super().setup(shape, block)
        self.decay = parameter(self.heads, shape.width, init=fan_in, role="router")
        self.A_log = parameter(self.heads, init=log_rate, role="connection")
        self.dt_bias = parameter(self.heads, init=time_step, role="connection")

    def log_decay(self, read: Tensor) -> Tensor:
        step = F.linear(read.to(self.decay.dtype), self.decay)
        return -self.A_log.exp() * F.softplus(step + self.dt_bias)


def log_rate(tensor: Tensor, g: torch.Generator) -> None:
    """The logarithm of U(0.01, 16)."""
    tensor.uniform_(FLOOR, 16.0, generator=g).log_()


def time_step(tensor: Tensor, g: torch.Generator) -> None:
    """softplus^-1(dt), with log dt uniform between log 0.001 and log 0.1."""
    low, high = math.log(1e-3), math.log(0.1)
    step = tensor.uniform_(low, high, generator=g).exp_()
    # softplus^-1(dt) = dt + log(1 - exp(-dt)).
    tensor.copy_(step + torch.log(-torch.expm1(-step)))
