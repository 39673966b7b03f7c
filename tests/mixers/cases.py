"""Every mixer, alone and in patterns, as cases for small float64 decoders."""

from __future__ import annotations

from typing import TypeVar

from lrt_lab.layers import Shape
from lrt_lab.mixers import Attention, DeltaNet, GatedDeltaNet, Mixer, SimplicialAttention
from tests.support.models import randomise

M = TypeVar("M", bound=Mixer)
ATTENTION = Attention(heads=2, kv_heads=1)
#: A delta mixer's chunks are at least 16 positions: `LONG` has three of them.
LONG = 37
MIXERS: dict[str, Mixer | list[Mixer]] = {
    "DeltaNet": DeltaNet(heads=2),
    "DeltaNet, all options": DeltaNet(
        heads=2, head_dim=3, expand_v=2, conv=2, negative=True, output_gate=True, chunk=16
    ),
    "DeltaNet, bare": DeltaNet(heads=2, conv=1, output_norm=False, chunk=16),
    "GatedDeltaNet": GatedDeltaNet(heads=2, chunk=16),
    "GatedDeltaNet, wide": GatedDeltaNet(heads=2, head_dim=3, expand_v=2, negative=True),
    "SimplicialAttention": SimplicialAttention(heads=2, kv_heads=1, window=5, pair_window=3),
    "SimplicialAttention, long": SimplicialAttention(heads=4, bias=True, qk_norm=False),
    "SimplicialAttention, rotary": SimplicialAttention(
        heads=2, window=3, pair_window=6, position="rotary"
    ),
    "hybrid": [*[GatedDeltaNet(heads=2, chunk=16)] * 3, ATTENTION],
    "all": [
        SimplicialAttention(heads=2, kv_heads=1, window=5, pair_window=3),
        ATTENTION,
        DeltaNet(heads=2),
    ],
}
#: What the costlier batteries meet.
PLAIN = ("DeltaNet", "GatedDeltaNet", "SimplicialAttention", "hybrid")


def alone(made: M, width: int) -> M:
    """A mixer set up on its own, float64, with no zero left in it."""
    made.setup(Shape(width, 1, 1), 0)
    for target in made.parameters():
        target.data = target.data.double().zero_()
    randomise(made)
    return made
