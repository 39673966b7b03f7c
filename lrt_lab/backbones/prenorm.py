"""PreNorm: x <- x + F(RMS(x)) (Xiong et al., arXiv:2002.04745)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from lrt_lab.backbones.base import Backbone, Source
from lrt_lab.layers import RMSNorm, Shape, constant, parameter


class Stream(NamedTuple):
    """The carried stream and, where it is read again, the embedding below it, ``(B, P, d)``."""

    x: Tensor
    embedding: Tensor | None


class PreNorm(Backbone):
    """The additive residual stream: every unit reads the sum of everything before it.

        x_{u+1} = x_u + F_u(RMS(x_u) g_u)

    With NormFormer's two further norms, which even out gradient scales over depth,

        mixer:  x' = x + RMS(F(RMS(x) g)) p
        FFN:    x' = x + W_2 (RMS(a(W_1 RMS(x) g)) q)

    where p and q start at 1.

    A route's residual injection changes the carried stream, so every later unit sees it; a route's
    sources are added to the embedding where they are present. At step 0, with output maps at zero,
    the stream is the embedding.

    Args:
        stream_scales: before each block x <- a x + b x_0 with the embedding x_0, learned a and b
            per block that start at 1 and 0.1 (nanochat's ``resid_lambdas`` and ``x0_lambdas``).
        normformer: the norms after the mixer and inside the FFN (Shleifer et al., arXiv:2110.09456;
            its scaling of attention heads and of the stream are not norms, and left out). Norming a
            zero output multiplies its gradient by 1 / sqrt(eps) at step 0.
    """

    stands_for = "the residual stream itself, the sum of everything before"

    def __init__(self, stream_scales: bool = False, normformer: bool = False) -> None:
        super().__init__()
        self.stream_scales, self.normformer = stream_scales, normformer
        self.inner_norm = normformer

    def setup(self, shape: Shape, slots: int) -> None:
        if self.stream_scales:
            self.stream = parameter(shape.blocks, init=constant(1.0), role="connection")
            self.skip = parameter(shape.blocks, init=constant(0.1), role="connection")
        if self.normformer:
            self.mixer_norm = nn.ModuleList(RMSNorm(shape.width) for _ in range(shape.blocks))

    def start(self, x: Tensor, sources: Sequence[Source]) -> Stream:
        embedding = x if self.stream_scales else None
        for value, present in sources:
            x = x + value * present.unsqueeze(-1)
        return Stream(x, embedding)

    def enter(self, state: Stream, unit: int, inject: Callable[[Tensor], Tensor]) -> Stream:
        x = state.x
        if state.embedding is not None and unit % 2 == 0:
            x = self.stream[unit // 2] * x + self.skip[unit // 2] * state.embedding
        return state._replace(x=inject(x))

    def read(self, state: Stream, unit: int) -> Tensor:
        return state.x

    def write(self, state: Stream, unit: int, y: Tensor) -> Stream:
        if self.normformer and unit % 2 == 0:
            y = self.mixer_norm[unit // 2](y)
        return state._replace(x=state.x + y)

    def hidden(self, state: Stream, unit: int) -> Tensor:
        return state.x

    def finish(self, state: Stream) -> Tensor:
        return state.x
