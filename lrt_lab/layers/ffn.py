"""Feed-forward bodies of a unit: ``(B, P, d) -> (B, P, d)``, the output map starting at zero."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lrt_lab.errors import UserError
from lrt_lab.layers.norm import RMSNorm
from lrt_lab.layers.parameter import constant, fan_in, parameter
from lrt_lab.layers.shape import Shape


class FeedForward(nn.Module):
    """Base of the feed-forward variants.

    Args:
        hidden: hidden features, one number for all blocks or a list with one per block; null takes
            the variant's own multiple of the width.
        reallocate: let the widths rise from half to one and a half times ``hidden`` with depth
            (`rising`), which leaves their sum as it is.
        inner_norm: RMSNorm the hidden features before the output map, y = W2 RMS(a) g (NormFormer,
            Shleifer et al., arXiv:2110.09456); the gain starts at 1.
    """

    def __init__(
        self,
        hidden: int | list[int] | None = None,
        reallocate: bool = False,
        inner_norm: bool = False,
    ) -> None:
        super().__init__()
        widths = hidden if isinstance(hidden, list) else [hidden]
        if not widths or any(width is not None and width < 1 for width in widths):
            raise UserError(
                f"ffn.hidden={hidden}: give a positive number, a list with one per block, or null"
            )
        if reallocate and isinstance(hidden, list):
            raise UserError(
                f"ffn.hidden={hidden} with ffn.reallocate: the list already gives every block's"
                " width; drop one of the two"
            )
        self.hidden, self.reallocate = hidden, reallocate
        self.inner: nn.Module = nn.Identity()
        self.inner_norm = inner_norm

    def setup(self, shape: Shape, block: int) -> None:
        """Create the parameters of this block's body."""
        raise NotImplementedError

    def features(self, shape: Shape, block: int, default: int) -> int:
        """Hidden features of a block, with the inner norm created for them."""
        if isinstance(self.hidden, list):
            if len(self.hidden) != shape.blocks:
                raise UserError(
                    f"ffn.hidden has {len(self.hidden)} widths for {shape.blocks} blocks:"
                    " give one per block"
                )
            hidden = self.hidden[block]
        else:
            hidden = default if self.hidden is None else self.hidden
            if self.reallocate:
                hidden = rising(hidden, block, shape.blocks)
        if self.inner_norm:
            self.inner = RMSNorm(hidden)
        return hidden


def rising(hidden: int, block: int, blocks: int) -> int:
    """Hidden features of a block when widths rise with depth (MUDDFormer, arXiv:2502.12170 Eq. 9).

        D_l = D (l / (L - 1) + 1/2)    for blocks l = 0 .. L - 1

    rounded to multiples of 128 as the authors' code does; where D is under 1024, to multiples of
    the largest power of two that is at most D / 8, so that small models rise evenly too. A single
    block keeps D.
    """
    if blocks == 1:
        return hidden
    multiple = min(128, 1 << max(0, (hidden // 8).bit_length() - 1))
    return max(1, round(hidden * (block / (blocks - 1) + 0.5) / multiple) * multiple)


class SquaredReLU(FeedForward):
    """W2 relu(W1 x)^2 with 4d hidden features by default (So et al., arXiv:2109.08668)."""

    def setup(self, shape: Shape, block: int) -> None:
        hidden = self.features(shape, block, 4 * shape.width)
        self.up = parameter(hidden, shape.width, init=fan_in, role="matrix")
        self.down = parameter(shape.width, hidden, init=constant(0.0), role="matrix")

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.inner(F.relu(F.linear(x, self.up)).square()), self.down)


class SwiGLU(FeedForward):
    """W2 (silu(W1 x) * W3 x) with 8d/3 hidden features, in eights (Shazeer, arXiv:2002.05202)."""

    def setup(self, shape: Shape, block: int) -> None:
        hidden = self.features(shape, block, -(-8 * shape.width // 24) * 8)
        self.gate = parameter(hidden, shape.width, init=fan_in, role="matrix")
        self.up = parameter(hidden, shape.width, init=fan_in, role="matrix")
        self.down = parameter(shape.width, hidden, init=constant(0.0), role="matrix")

    def forward(self, x: Tensor) -> Tensor:
        gated = F.silu(F.linear(x, self.gate)) * F.linear(x, self.up)
        return F.linear(self.inner(gated), self.down)
