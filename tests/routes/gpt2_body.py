"""GPT-2 from the lab's classes, the body that Coconut's release was run with.

LayerNorms and biases, learned positions, GELU, and a head tied to the embedding. Sweeps, what
enters a silent position and the schedule are the lab's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Memory, View
from lrt_lab.layers import FeedForward
from lrt_lab.mixers import Attention
from lrt_lab.mixers.attention import KeyValue
from lrt_lab.routes import Coconut

BLOCKS, WIDTH, VOCAB, HEADS, PLACES = 2, 16, 32, 2, 32


class GPT2Attention(Attention):
    """One map with biases to q, k and v; neither norm nor rotation."""

    def setup(self, shape, block: int) -> None:
        _, self.head_dim = self.kv(shape)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        named(self)

    def forward(self, reads, at: View, buffer, inject):
        q, k, v = self.attn(reads).unflatten(-1, (3 * HEADS, self.head_dim)).chunk(3, dim=-2)
        k, v = inject(reads, k, v)
        buffer = KeyValue(k, v) if buffer is None else buffer.write(at.positions, k, v)
        heads = (t.transpose(1, 2) for t in (q, buffer.k[:, : at.reach], buffer.v[:, : at.reach]))
        mask = at.mask()
        causal = mask is None and len(at.positions) > 1
        y = F.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=causal)
        return self.proj(y.transpose(1, 2).flatten(-2)), buffer


class GPT2FeedForward(FeedForward):
    """W2 gelu(W1 x + b1) + b2, with the approximate GELU."""

    def setup(self, shape, block: int) -> None:
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        named(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Placed(Coconut):
    """GPT-2 adds its positions to whatever enters the stack, so after the route's port."""

    def setup(self, shape) -> None:
        super().setup(shape)
        self.places = nn.Embedding(PLACES, WIDTH)
        named(self)

    def embed(self, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        return super().embed(x, memory, at) + self.places(at.position)


class GPT2(Decoder):
    """The embedding enters as it is."""

    def embed(self, at: View) -> Tensor:
        assert at.embedding is not None
        return at.embedding


def named(module: nn.Module) -> None:
    """Give torch's parameters what the lab's initialisation asks of its own."""
    for target in module.parameters():
        target.initial, target.role = lambda *_: None, "matrix"  # type: ignore[attr-defined]


def gpt2(arrays: dict[str, Tensor]) -> tuple[Decoder, dict[str, nn.Parameter]]:
    """The model with the file's weights, float64, and its parameters by the release's names."""
    decoder = GPT2(
        WIDTH, BLOCKS, VOCAB, route=Placed(), mixer=GPT2Attention(HEADS), ffn=GPT2FeedForward()
    )
    decoder.head = decoder.embedding
    decoder.norm = nn.LayerNorm(WIDTH)
    found = {"wte.weight": decoder.embedding, "wpe.weight": decoder.route.places.weight}
    layers = {"ln_f": decoder.norm}
    for i in range(BLOCKS):
        mixer, ffn = decoder.units[2 * i], decoder.units[2 * i + 1]
        mixer.norm, ffn.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        layers |= {
            f"h.{i}.ln_1": mixer.norm,
            f"h.{i}.attn.c_attn": mixer.body.attn,
            f"h.{i}.attn.c_proj": mixer.body.proj,
            f"h.{i}.ln_2": ffn.norm,
            f"h.{i}.mlp.c_fc": ffn.body.up,
            f"h.{i}.mlp.c_proj": ffn.body.down,
        }
    decoder.double()
    for name, layer in layers.items():
        found |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    with torch.no_grad():
        for name, target in found.items():
            value = arrays[f"param.transformer.{name}"]
            target.copy_(value.T if ".c_" in name and value.dim() > 1 else value)
    assert {id(p) for p in found.values()} == {id(p) for p in decoder.parameters()}
    return decoder, found
