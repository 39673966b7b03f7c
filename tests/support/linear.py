"""A linear recurrence that can be followed by hand, through the engine's own code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, SquaredReLU
from lrt_lab.mixers import Attention
from lrt_lab.routes import Route


class Linear(Route):
    """m_t = A m_{t-1} + b_t, b_t being the token's number in every entry."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        self.needs = Taps(top=True)

    def emit(self, taps: dict, memory: Memory | None, at: View) -> Tensor:
        return taps["top"]

    def embed(self, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        b = at.ids.to(x.dtype).unsqueeze(-1).expand_as(x)
        return b if memory is None else b + memory.value @ self.matrix.to(x.dtype).T


def linear_decoder(matrix: Tensor) -> Decoder:
    """A float64 decoder whose top state is m_t: units that are silent, and no final norm."""
    width = len(matrix)
    decoder = Decoder(
        width, 1, 2, route=Linear(matrix), mixer=Attention(heads=1), ffn=SquaredReLU(width)
    )
    decoder.norm = nn.Identity()
    return decoder.double().eval()


def scalar(a: float) -> Tensor:
    """a times the identity of two dimensions, the narrowest that a decoder can have."""
    return a * torch.eye(2, dtype=torch.float64)
