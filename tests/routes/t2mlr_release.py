"""The model that T2MLR's release was run with: a Llama with RoPE turned the other way, no QK-norm.

Norms, embedding input and rotation are replaced here; the route and its schedule are the lab's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lrt_kernels import Placement
from lrt_lab.decoder import Decoder
from lrt_lab.frame import View
from lrt_lab.layers import SwiGLU
from lrt_lab.mixers import Attention
from lrt_lab.routes import T2MLR

BLOCKS, WIDTH, VOCAB, HEADS, HIDDEN = 5, 16, 24, 2, 32
FIRST, LAST = 1, 3


class LlamaAttention(Attention):
    """Rotation by +theta, no norm of queries and keys."""

    def placement(self, at: View, dtype: torch.dtype) -> Placement:
        cos, sin = at.rotary(self.head_dim, self.rotary_base, dtype)
        return Placement(None, (cos, -sin))


class LlamaDecoder(Decoder):
    """The embedding enters as it is."""

    def embed(self, at: View) -> Tensor:
        assert at.embedding is not None
        return at.embedding


def names() -> dict[str, str]:
    """The lab's parameter -> name of the release's weight."""
    root = "t2mlr_model.model."
    found = {
        "embedding": root + "embed_tokens.weight",
        "head": "t2mlr_model.lm_head.weight",
        "norm.gain": root + "norm.weight",
    }
    for i in range(BLOCKS):
        theirs = f"{root}layers.{i}." + ("model." if i == FIRST else "")
        mixer, ffn = f"units.{2 * i}.", f"units.{2 * i + 1}."
        for ours, name in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            found[f"{mixer}body.{ours}"] = f"{theirs}self_attn.{name}_proj.weight"
        for name in ("gate", "up", "down"):
            found[f"{ffn}body.{name}"] = f"{theirs}mlp.{name}_proj.weight"
        found[f"{mixer}norm.gain"] = theirs + "input_layernorm.weight"
        found[f"{ffn}norm.gain"] = theirs + "post_attention_layernorm.weight"
    gate = f"{root}layers.{FIRST}.t2mlr_mixing_module."
    return found | {f"route.{ours}": gate + theirs for ours, theirs in GATE.items()}


#: The route's parameter -> name in the release's gate.
GATE = {
    "projection": "recurrent_projection.weight",
    "recurrent_gate": "recurrent_gate_proj.weight",
    "recurrent_bias": "recurrent_gate_proj.bias",
    "recurrent_strength": "rezero_gamma_recurrent_gate",
    "current_gate": "input_gate_proj.weight",
    "current_bias": "input_gate_proj.bias",
    "current_strength": "rezero_gamma_input_gate",
}


def release_model(arrays: dict[str, Tensor]) -> Decoder:
    """The release's model with the file's weights, float64."""
    decoder = LlamaDecoder(
        WIDTH,
        BLOCKS,
        VOCAB,
        route=T2MLR(FIRST, LAST, features="projected", norm="clamped"),
        mixer=LlamaAttention(heads=HEADS, qk_norm=False),
        ffn=SwiGLU(HIDDEN),
    ).double()
    known = names()
    with torch.no_grad():
        for name, target in decoder.named_parameters():
            target.copy_(arrays[f"param.{known[name]}"])
    assert len(known) == len(list(decoder.parameters()))
    return decoder


def release_gate(arrays: dict[str, Tensor], width: int, prefix: str = "param.") -> T2MLR:
    """The release's gate alone."""
    route = (
        Decoder(width, 1, 2, route=T2MLR(0, 0, features="projected"), mixer=Attention(heads=1))
        .double()
        .route
    )
    assert isinstance(route, T2MLR)
    with torch.no_grad():
        for ours, theirs in GATE.items():
            nn.Module.get_parameter(route, ours).copy_(arrays[prefix + theirs])
    return route
