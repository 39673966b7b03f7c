"""Decoders over the golden files' branches: tanh(W u) in place of mixers and feed-forward bodies.

Axes: units first (unit 2l is block l's mixer, 2l+1 its feed-forward body), then (B, T, d); W is
(out, in).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.backbones import Backbone
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame, View
from lrt_lab.layers import FeedForward, Shape, fan_in, parameter
from lrt_lab.mixers import Mixer


class Branch(FeedForward):
    """tanh(W u)."""

    def setup(self, shape: Shape, block: int) -> None:
        self.weight = parameter(shape.width, shape.width, init=fan_in, role="matrix")

    def forward(self, u: Tensor) -> Tensor:
        return torch.tanh(F.linear(u, self.weight))


class BranchMixer(Mixer):
    """The same where a mixer goes: every position sees itself only."""

    def setup(self, shape: Shape, block: int) -> None:
        self.weight = parameter(shape.width, shape.width, init=fan_in, role="matrix")

    def kv(self, shape: Shape) -> tuple[int, int]:
        return 1, shape.width

    def forward(self, reads, at, buffer, inject):
        return torch.tanh(F.linear(reads, self.weight)), None


class Stack(Decoder):
    """One embedding row per position of the batch, entering the stack as it is."""

    def embed(self, at: View) -> Tensor:
        return at.embedding


def stack(backbone: Backbone, arrays: dict[str, Tensor]) -> tuple[Stack, Frame]:
    """A decoder with a file's embeddings, unit weights and gains, and the frame that reads them.

    Args:
        backbone: what is tested.
        arrays: ``embed (B, T, d)``, ``W (units, d, d)`` and, where it has them, ``input_norm_weight
            (units, d)``, ``final_norm_weight (d,)``; gains are 1 otherwise.
    """
    embed, weight = arrays["embed"], arrays["W"]
    rows, columns, width = embed.shape
    decoder = Stack(
        width,
        len(weight) // 2,
        rows * columns,
        backbone=backbone,
        mixer=BranchMixer(),
        ffn=Branch(),
        eps=float(arrays["eps"]),
    ).to(embed.dtype)
    with torch.no_grad():
        decoder.embedding.copy_(embed.reshape(-1, width))
        for unit, module in enumerate(decoder.units):
            module.body.weight.copy_(weight[unit])
            if "input_norm_weight" in arrays:
                module.norm.gain.copy_(arrays["input_norm_weight"][unit])
        if "final_norm_weight" in arrays:
            decoder.norm.gain.copy_(arrays["final_norm_weight"])
    return decoder, Frame(torch.arange(rows * columns).view(rows, columns))
