"""The LRT release's model from the lab's classes, and where each of its weights goes.

The release is a nanochat fork. What differs from the lab's own parts is replaced here: norms
without gains and with the smallest eps, given (bf16-rounded) rotary tables, a value embedding with
a third gate, and a head that casts to float32 and caps its scores. Sweeps, the route and the
schedules are the lab's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrt_kernels import Placement
from lrt_lab.backbones import PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.frame import View
from lrt_lab.layers import constant, parameter, rms_norm, rotate
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT

EPS = torch.finfo(torch.float64).eps
BLOCKS, WIDTH, VOCAB, HEADS = 3, 16, 24, 2


class ReleaseAttention(Attention):
    """Given rotary tables, the smallest eps, and 2 sigmoid(W_e u) VE[token] added to v."""

    cos: Tensor
    sin: Tensor

    def setup(self, shape, block: int) -> None:
        super().setup(shape, block)
        kv_width = self.kv_heads * self.head_dim
        self.table = parameter(shape.vocab, kv_width, init=constant(0.0), role="embedding")
        self.table_gate = parameter(
            self.kv_heads, shape.width, init=constant(0.0), role="connection"
        )

    def forward(self, reads, at: View, buffer, inject):
        def with_values(x: Tensor, k: Tensor, v: Tensor, place: Placement) -> tuple[Tensor, Tensor]:
            # Keys take the place of this release, as queries do, and not the one that is given.
            k, v = inject(x, k, v)
            gate = 2 * torch.sigmoid(F.linear(x, self.table_gate)).unsqueeze(-1)
            return self.place(k, at), v + gate * F.embedding(at.ids, self.table).view_as(v)

        return super().forward(reads, at, buffer, with_values)

    def place(self, x: Tensor, at: View) -> Tensor:
        table = tuple(t[list(at.positions)].unsqueeze(-2) for t in (self.cos, self.sin))
        # A rounded table is no rotation any more: its order with the norm matters.
        return rms_norm(rotate(x, table), EPS)


class ReleaseDecoder(Decoder):
    """Scores in float32, capped at 15."""

    def logits(self, hidden: Tensor) -> Tensor:
        return 15 * torch.tanh(super().logits(hidden).float() / 15)


def names() -> dict[str, str]:
    """Name of each release weight -> name of the lab's parameter; triple gates are split apart."""
    found = {
        "transformer.wte.weight": "embedding",
        "lm_head.weight": "head",
        "resid_lambdas": "backbone.stream",
        "x0_lambdas": "backbone.skip",
        "interleaved_lambdas": "route.gamma",
    }
    for i in range(BLOCKS):
        mixer, ffn = f"units.{2 * i}.body.", f"units.{2 * i + 1}.body."
        theirs = f"transformer.h.{i}."
        found |= {
            f"{theirs}attn.c_q.weight": mixer + "query",
            f"{theirs}attn.c_k.weight": mixer + "key",
            f"{theirs}attn.c_v.weight": mixer + "value",
            f"{theirs}attn.c_proj.weight": mixer + "out",
            f"{theirs}mlp.c_fc.weight": ffn + "up",
            f"{theirs}mlp.c_proj.weight": ffn + "down",
            # The release's name for the key projection notwithstanding.
            f"interleaved_key_projections.{i}.W_v.weight": f"route.key_block{i}",
            f"interleaved_projections.{i}.W_v.weight": f"route.value_block{i}",
            f"interleaved_init_value_embeds.{i}.weight": mixer + "table",
        }
    return found


def split_gates(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The release's gate rows (local, recurrent, embedding): the route's two, the mixer's one."""
    return weight[: 2 * HEADS], weight[2 * HEADS :]


def targets(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Release weights, or their gradients, under the lab's names."""
    renamed = {ours: values[theirs] for theirs, ours in names().items()}
    for i in range(BLOCKS):
        route, own = split_gates(values[f"transformer.h.{i}.attn.triple_gate.weight"])
        renamed |= {f"route.gate_{i}": route, f"units.{2 * i}.body.table_gate": own}
    return renamed


def prefixed(arrays: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The arrays whose names start so, without that start."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def release_model(
    arrays: dict[str, Tensor],
    model: type[Decoder] = ReleaseDecoder,
    mixer: type[Attention] = ReleaseAttention,
) -> Decoder:
    """The release's model with the file's weights, float64."""
    decoder = model(
        WIDTH,
        BLOCKS,
        VOCAB,
        backbone=PreNorm(stream_scales=True),
        route=LRT(source="top", projections="layerwise"),
        mixer=mixer(heads=HEADS),
        eps=EPS,
    ).double()
    weights = targets(prefixed(arrays, "param."))
    # What the release does not have stays at its identity: gains of the norms, alpha.
    rest = {name for name, _ in decoder.named_parameters()} - set(weights)
    assert rest == {n for n in rest if n.endswith("norm.gain")} | {"route.alpha"}
    with torch.no_grad():
        for name, target in decoder.named_parameters():
            target.copy_(weights[name]) if name in weights else nn.init.ones_(target)
    for unit in decoder.units:
        if isinstance(unit.body, ReleaseAttention):
            unit.body.cos, unit.body.sin = arrays["cos"].double(), arrays["sin"].double()
    return decoder
