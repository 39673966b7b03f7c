"""Feed-forward bodies of a unit: ``(B, P, d) -> (B, P, d)``, the output map starting at zero."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lrt_lab.errors import UserError
from lrt_lab.layers.parameter import constant, fan_in, parameter
from lrt_lab.layers.shape import Shape


class FeedForward(nn.Module):
    """Base of the feed-forward variants.

    Args:
        hidden: hidden features; None takes the variant's own multiple of the width.
    """

    def __init__(self, hidden: int | None = None) -> None:
        super().__init__()
        if hidden is not None and hidden < 1:
            raise UserError(f"ffn.hidden is {hidden}; it must be positive, or null for the default")
        self.hidden = hidden

    def setup(self, shape: Shape) -> None:
        """Create the parameters for a decoder of this shape."""
        raise NotImplementedError


class SquaredReLU(FeedForward):
    """W2 relu(W1 x)^2 with 4d hidden features by default (So et al., arXiv:2109.08668)."""

    def setup(self, shape: Shape) -> None:
        hidden = self.hidden or 4 * shape.width
        self.up = parameter(hidden, shape.width, init=fan_in, role="matrix")
        self.down = parameter(shape.width, hidden, init=constant(0.0), role="matrix")

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, self.up)).square(), self.down)


class SwiGLU(FeedForward):
    """W2 (silu(W1 x) * W3 x) with 8d/3 hidden features, in eights (Shazeer, arXiv:2002.05202)."""

    def setup(self, shape: Shape) -> None:
        hidden = self.hidden or -(-8 * shape.width // 24) * 8
        self.gate = parameter(hidden, shape.width, init=fan_in, role="matrix")
        self.up = parameter(hidden, shape.width, init=fan_in, role="matrix")
        self.down = parameter(shape.width, hidden, init=constant(0.0), role="matrix")

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.gate)) * F.linear(x, self.up), self.down)
