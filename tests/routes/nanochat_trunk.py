"""nanochat's trunk from the lab's classes, for the references that were run on it.

What differs from the lab's own parts is replaced here: norms without gains and with the smallest
eps, given rotary tables, sharper attention, value embeddings in the last block and every other one
below, the previous token's embedding smeared into the plain input, half of the stack backed out of
the top, capped scores. Sweeps, the route and its schedule are the lab's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrt_kernels import Placement
from lrt_lab.backbones import PreNorm
from lrt_lab.backbones.prenorm import Stream
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame, View
from lrt_lab.layers import constant, parameter, rms_norm, rotate
from lrt_lab.mixers import Attention
from lrt_lab.routes import Route

WIDTH, VOCAB, HEADS, SMEARED, GATED = 48, 24, 2, 24, 12


def embeds(block: int, blocks: int) -> bool:
    """Whether a block adds value embeddings."""
    return block % 2 == (blocks - 1) % 2


class TrunkAttention(Attention):
    """Given tables, q and k times 1.2, and 3 sigmoid(W u[:12]) VE[token] added to some values."""

    cos: Tensor
    sin: Tensor
    eps: float

    def setup(self, shape, block: int) -> None:
        super().setup(shape, block)
        self.embeds = embeds(block, shape.blocks)
        if self.embeds:
            kv_width = self.kv_heads * self.head_dim
            self.table = parameter(shape.vocab, kv_width, init=constant(0.0), role="embedding")
            self.table_gate = parameter(self.kv_heads, GATED, init=constant(0.0), role="matrix")

    def forward(self, reads, at: View, buffer, inject):
        def with_values(x: Tensor, k: Tensor, v: Tensor, place: Placement) -> tuple[Tensor, Tensor]:
            # Keys take the place of this release, as queries do, and not the one that is given.
            k, v = inject(x, k, v)
            if self.embeds:
                gate = 3 * torch.sigmoid(F.linear(x[..., :GATED], self.table_gate)).unsqueeze(-1)
                v = v + gate * F.embedding(at.ids, self.table).view_as(v)
            return self.place(k, at), v

        return super().forward(reads, at, buffer, with_values)

    def place(self, x: Tensor, at: View) -> Tensor:
        table = tuple(t[list(at.positions)].unsqueeze(-2) for t in (self.cos, self.sin))
        return 1.2 * rms_norm(rotate(x, table), self.eps)


class Halfway(NamedTuple):
    """PreNorm's stream, and what it was after the middle block."""

    x: Tensor
    embedding: Tensor
    middle: Tensor | None = None


class Backout(PreNorm):
    """x_top - lambda x_middle reaches the head."""

    def setup(self, shape, slots: int) -> None:
        super().setup(shape, slots)
        self.middle = 2 * (shape.blocks // 2) + 1
        self.out = parameter(1, init=constant(0.0), role="connection")

    def start(self, x, sources) -> Stream:
        return Halfway(*super().start(x, sources))  # type: ignore[return-value]

    def write(self, state, unit: int, y: Tensor):
        state = super().write(state, unit, y)
        return state._replace(middle=state.x) if unit == self.middle else state

    def finish(self, state) -> Tensor:
        return state.x - self.out * state.middle


class TrunkDecoder(Decoder):
    """The smear, and scores capped at 15."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.smear = parameter(1, init=constant(0.0), role="connection")
        self.smear_gate = parameter(1, SMEARED, init=constant(0.0), role="connection")

    def view(self, frame: Frame, positions: range, reach: int) -> View:
        at = super().view(frame, positions, reach)
        at.before = frame.ids[:, [max(0, t - 1) for t in positions]]  # type: ignore[attr-defined]
        return at

    def embed(self, at: View) -> Tensor:
        x, before = super().embed(at), F.embedding(at.before, self.embedding)  # type: ignore[attr-defined]
        gate = self.smear * torch.sigmoid(F.linear(x[..., :SMEARED], self.smear_gate))
        first = torch.tensor([t == 0 for t in at.positions]).unsqueeze(-1)
        return x + (gate * rms_norm(before, self.eps)).masked_fill(first, 0.0)

    def logits(self, hidden: Tensor) -> Tensor:
        return 15 * torch.tanh(super().logits(hidden) / 15)


def names(blocks: int) -> dict[str, str]:
    """The lab's parameter -> name of the reference's."""
    found = {
        "embedding": "transformer.wte.weight",
        "head": "lm_head.weight",
        "smear": "smear_lambda",
        "smear_gate": "smear_gate.weight",
        "backbone.out": "backout_lambda",
        "backbone.stream": "resid_lambdas",
        "backbone.skip": "x0_lambdas",
    }
    for i in range(blocks):
        mixer, theirs = f"units.{2 * i}.body.", f"transformer.h.{i}."
        for ours, name in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "proj")):
            found[mixer + ours] = f"{theirs}attn.c_{name}.weight"
        found[f"units.{2 * i + 1}.body.up"] = f"{theirs}mlp.c_fc.weight"
        found[f"units.{2 * i + 1}.body.down"] = f"{theirs}mlp.c_proj.weight"
        if embeds(i, blocks):
            found[f"{mixer}table"] = f"value_embeds.{i}.weight"
            found[f"{mixer}table_gate"] = f"{theirs}attn.ve_gate.weight"
    return found


def initial_scalars(blocks: int, length: int) -> dict[str, list[float]]:
    """nanochat's learned scalars before training, and each block's window, of the pattern SSSL."""
    # A quarter of the context, rounded up to whole tiles of 128; the last block sees everything.
    short = -(-length // 4 // 128) * 128
    windows = [length if block % 4 == 3 else short for block in range(blocks)]
    return {
        "resid_lambdas": [1.15 - 0.10 * block / (blocks - 1) for block in range(blocks)],
        "x0_lambdas": [0.20 - 0.15 * block / (blocks - 1) for block in range(blocks)],
        "backout": [0.2],
        "smear_lambda": [0.0],
        "windows": [*windows[:-1], length],
    }


def trunk(
    arrays: dict[str, Tensor],
    blocks: int,
    kv_heads: int,
    dtype: torch.dtype,
    route: Route | None = None,
    **more: Tensor,
) -> Decoder:
    """The trunk with the file's weights, and with more of them under the lab's names."""
    eps = torch.finfo(dtype).eps
    decoder = TrunkDecoder(
        WIDTH,
        blocks,
        VOCAB,
        backbone=Backout(stream_scales=True),
        route=route,
        mixer=TrunkAttention(heads=HEADS, kv_heads=kv_heads),
        eps=eps,
    ).to(dtype)
    weights = {ours: arrays[f"param.{theirs}"] for ours, theirs in names(blocks).items()} | more
    rest = {name for name, _ in decoder.named_parameters()} - set(weights)
    assert all(name.endswith("norm.gain") for name in rest)
    with torch.no_grad():
        for name, target in decoder.named_parameters():
            target.copy_(weights[name]) if name in weights else nn.init.ones_(target)
    for unit in decoder.units:
        if isinstance(unit.body, TrunkAttention):
            unit.body.cos, unit.body.sin, unit.body.eps = arrays["cos"], arrays["sin"], eps
    return decoder
