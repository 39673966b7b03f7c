"""The meter counts what is executed; here it is compared with sums done by hand."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.schedules import Interleaved, Jacobi, SinglePass
from lrt_lab.training.meter import Cost, measure

WIDTH, BLOCKS, VOCAB, LENGTH, HEADS, KV = 16, 3, 11, 12, 4, 2


def price(backbone: type, route: type, schedule: object) -> Cost:
    with torch.device("meta"):
        model = Decoder(WIDTH, BLOCKS, VOCAB, backbone(), route(), Attention(HEADS, KV))
    return measure(model, schedule, LENGTH)


def test_a_plain_model_costs_the_textbook_sum() -> None:
    cost = price(PreNorm, NoRoute, SinglePass())
    kv_width = KV * WIDTH // HEADS
    block = 2 * WIDTH * WIDTH + 2 * kv_width * WIDTH + 8 * WIDTH * WIDTH
    matmul = BLOCKS * block + VOCAB * WIDTH
    assert cost.matmul == matmul
    assert cost.total == matmul + VOCAB * WIDTH + (2 * BLOCKS + 1) * WIDTH
    # Six FLOPs per weight and token; scores and mixtures over the full square of positions.
    attention = 3 * BLOCKS * 2 * 2 * LENGTH * WIDTH
    assert cost.train_flops_per_token == pytest.approx(6 * matmul + attention, rel=0.01)
    assert cost.passes == 1
    # Decoding reads four bytes of every weight, of the token table one row, and keys and values of
    # the row.
    state = 4 * BLOCKS * LENGTH * 2 * kv_width
    assert cost.state_bytes == state
    assert cost.decode_bytes_per_token == 4 * (cost.total - (VOCAB - 1) * WIDTH) + state


def test_lrt_adds_its_projections_gates_and_scales() -> None:
    plain, lrt = price(PreNorm, NoRoute, SinglePass()), price(PreNorm, LRT, Interleaved())
    kv_width = KV * WIDTH // HEADS
    extra = 2 * kv_width * WIDTH + BLOCKS * 2 * KV * WIDTH
    assert lrt.matmul - plain.matmul == extra
    assert lrt.total - plain.total == extra + 2 * BLOCKS


@pytest.mark.parametrize("backbone", [PreNorm, AttentionResiduals])
@pytest.mark.parametrize(
    ("schedule", "passes"),
    [(Interleaved(2), 2), (Interleaved(3), 2), (Jacobi(2), 2), (Jacobi(4), 4)],
    ids=["interleaved-2", "interleaved-3", "jacobi-2", "jacobi-4"],
)
def test_every_pass_is_counted(backbone: type, schedule: object, passes: int) -> None:
    plain, routed = price(backbone, NoRoute, SinglePass()), price(backbone, LRT, schedule)
    assert routed.passes == passes
    ratio = routed.train_flops_per_token / plain.train_flops_per_token
    assert passes < ratio < passes * 1.25
