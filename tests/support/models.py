"""Small float64 decoders with no zero left in them, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.layers import SquaredReLU, initialize
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Clock, Pass, Schedule

B, T, WIDTH, BLOCKS, VOCAB = 2, 12, 8, 4, 40


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0, routing: float = 1.0) -> None:
    """Add noise to every parameter: zero output maps, queries and gates would hide every bug.

    Args:
        module: what to change.
        seed: of the noise.
        routing: factor on the noise of parameters that route.
    """
    g = torch.Generator().manual_seed(seed)
    for target in module.parameters():
        std = target.shape[-1] ** -0.5 if target.dim() > 1 else 0.3
        if getattr(target, "role", None) in ("connection", "router"):
            std *= routing
        target.add_(torch.randn(target.shape, generator=g, dtype=target.dtype) * std)


def small_decoder(
    backbone: Any = None, route: Any = None, routing: float = 1.0, **options: Any
) -> Decoder:
    """A float64 decoder, two query heads on one K/V head, all of its weights random."""
    defaults = {
        "width": WIDTH,
        "blocks": BLOCKS,
        "vocab": VOCAB,
        "mixer": Attention(heads=2, kv_heads=1),
        "ffn": SquaredReLU(2 * WIDTH),
    }
    decoder = Decoder(backbone=backbone, route=route, **{**defaults, **options}).double()
    # Nothing is drawn at random in evaluation mode.
    decoder.eval()
    randomise(decoder, routing=routing)
    return decoder


def started_decoder(backbone: Any = None, route: Any = None, **options: Any) -> Decoder:
    """A decoder at its initial values, but for the output maps of its units, which are not zero."""
    decoder = small_decoder(backbone, route, **options)
    initialize(decoder, 1)
    for unit in decoder.units:
        out = unit.body.out if isinstance(unit.body, Attention) else unit.body.down
        randomise(nn.ParameterList([out]))
    return decoder


def tokens(length: int = T, rows: int = B, seed: int = 1) -> Tensor:
    """Random ids ``(rows, length)``."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (rows, length), generator=g)


def documents(*lengths: int, rows: int = B) -> Tensor:
    """Document numbers ``(rows, sum of lengths)`` of documents packed one after the other."""
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return numbers.expand(rows, -1)


def exact(decoder: Decoder, frame: Frame) -> Tensor:
    """Normed top states ``(B, T, d)`` of the exact recurrence, without gradients."""
    with torch.no_grad():
        return decoder.serial(frame, decoder.cache(len(frame.ids), frame.length))[0]


def run(schedule: Schedule, decoder: Decoder, frame: Frame) -> list[Pass]:
    """All passes of a schedule."""
    return list(schedule.passes(decoder, frame, Clock()))


def merged(passes: list[Pass]) -> Tensor:
    """Each position as the last pass that evaluated it left it, ``(B, T, d)``."""
    top = passes[0].hidden.clone()
    for later in passes[1:]:
        top[:, list(later.positions)] = later.hidden
    return top
