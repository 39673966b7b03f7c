"""Published overheads, laws of growth, and memory as it is measured."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, HyperConnections, MUDDFormer, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.layers import SquaredReLU, SwiGLU
from lrt_lab.mixers import Attention, SimplicialAttention
from lrt_lab.routes import LRT
from lrt_lab.schedules import Interleaved, SinglePass
from lrt_lab.training.meter import prefilled, trained
from tests.support.models import tokens
from tests.support.registry import BACKBONES, Case, plain
from tests.support.saved import saved_bytes


def forward(backbone, width: int, blocks: int, vocab: int, heads: int, ffn) -> tuple[float, ...]:
    """Parameters, and matrix and pointwise FLOPs per token of one pass, the head included."""
    with torch.device("meta"):
        model = Decoder(width, blocks, vocab, backbone, None, Attention(heads), ffn)
    length = 2048
    pass_ = prefilled(model, length)
    total = sum(p.numel() for p in model.parameters())
    return total, pass_.matrix / length + 2 * vocab * width, pass_.pointwise / length


def test_muddformer_at_2_8b() -> None:
    # arXiv:2502.12170: 32 blocks of width 2560; +0.23 % parameters, +0.4 % FLOPs of all kinds.
    sizes = (2560, 32, 50257, 32, SquaredReLU())
    base, mudd = forward(PreNorm(), *sizes), forward(MUDDFormer(), *sizes)
    assert mudd[0] / base[0] - 1 == pytest.approx(0.0023, rel=0.1)
    assert sum(mudd[1:]) / sum(base[1:]) - 1 == pytest.approx(0.004, rel=0.1)


def test_hyper_connections_at_1b() -> None:
    # arXiv:2409.19606: OLMo-1B, 16 blocks of width 2048, four streams; +0.2 % FLOPs. Products alone
    # give 0.22 % of a pass over 2048 positions, pointwise work adds 0.05 %.
    sizes = (2048, 16, 50280, 16, SwiGLU(8192))
    base, streams = forward(PreNorm(), *sizes), forward(HyperConnections(4), *sizes)
    assert streams[1] / base[1] - 1 == pytest.approx(0.002, rel=0.1)


def reading(blocks: int, width: int, block_size: int = 1) -> float:
    """Pointwise FLOPs per token of the backbone's reads."""
    with torch.device("meta"):
        backbone = AttentionResiduals(block_size)
        model = Decoder(width, blocks, 64, backbone, None, Attention(4), SquaredReLU(width))
    return prefilled(model, 8).work["backbone AttentionResiduals"].pointwise


def test_full_reads_grow_with_the_square_of_depth_and_blocks_with_depth() -> None:
    assert reading(32, 256) / reading(16, 256) == pytest.approx(4, rel=0.1)
    assert reading(16, 512) / reading(16, 256) == pytest.approx(2, rel=0.05)
    # Four sources N, whatever the depth.
    block = reading(32, 256, 16) / reading(16, 256, 8)
    assert block == pytest.approx(2, rel=0.1)
    # Twice the sources at one depth.
    assert reading(32, 256, 4) / reading(32, 256, 8) == pytest.approx(2, rel=0.25)


def mixing(length: int, window: int, pair_window: int) -> float:
    """FLOPs of a row's pairs of positions, projections left out."""
    with torch.device("meta"):
        mixer = SimplicialAttention(heads=2, window=window, pair_window=pair_window)
        model = Decoder(16, 1, 64, None, None, mixer, SquaredReLU(16))
    done = prefilled(model, length).work["mixer SimplicialAttention"].matrix
    return done - length * 2 * sum(p.numel() for p in model.unit(0).body.parameters())


def test_pairs_of_positions_grow_with_both_windows_and_the_length() -> None:
    base = mixing(512, 16, 4)
    assert mixing(1024, 16, 4) / base == pytest.approx(2, rel=0.05)
    assert mixing(512, 16, 8) / base == pytest.approx(2, rel=0.05)
    assert mixing(512, 32, 4) / base == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("blocks", [4, 16])
@pytest.mark.parametrize("backbone", [b for b in BACKBONES if plain(b)], ids=str)
def test_activations_are_those_that_are_saved(backbone: Case, blocks: int) -> None:
    # A route's share is the same at every depth.
    route, schedule = (LRT(), Interleaved()) if blocks == 4 else (None, SinglePass())

    def build() -> Decoder:
        return Decoder(32, blocks, 64, backbone(), route, Attention(heads=4), SquaredReLU(64))

    with torch.device("meta"):
        priced = build()
    found = sum(trained(priced, schedule, 8).saved.values())
    assert found == pytest.approx(saved_bytes(build(), schedule, tokens(9, rows=1)), rel=0.15)
