"""Depth scaling and tied embeddings: options of the model, for any backbone and route."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import FullBandwidth, NoRoute
from lrt_lab.schedules import Jacobi, Serial, SinglePass
from lrt_lab.training.meter import measure
from lrt_lab.training.optimizer import named_groups
from tests.support.compare import SAME, error
from tests.support.models import BLOCKS, WIDTH, run, small_decoder, started_decoder, tokens

BACKBONES = [PreNorm(), AttentionResiduals()]


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda b: type(b).__name__)
@torch.no_grad()
def test_depth_scaling_is_a_factor_on_every_output(backbone) -> None:
    scaled, plain = (small_decoder(backbone, depth_scale=scale) for scale in (True, False))
    for unit in plain.units:
        body = unit.body
        (body.out if hasattr(body, "out") else body.down).mul_((2 * BLOCKS) ** -0.5)
    frame = Frame(tokens())
    one, two = (d.sweep(frame, frame.positions).hidden for d in (scaled, plain))
    assert error(one, two) <= SAME


@torch.no_grad()
def test_depth_scaling_keeps_the_stream_of_order_one() -> None:
    def size(blocks: int, scale: bool) -> float:
        decoder = started_decoder(blocks=blocks, depth_scale=scale)
        frame, top = Frame(tokens()), 2 * blocks
        return float(decoder.sweep(frame, frame.positions, save=[top]).saved[top].x.square().mean())

    # The outputs of a plain stack add up: eight times as deep, about eight times the square.
    grown = [size(32, scale) / size(4, scale) for scale in (False, True)]
    assert grown[0] > 4 and grown[1] < 2, grown


def test_a_tied_table_is_one_parameter_that_starts_as_the_head_does() -> None:
    tied, free = (Decoder(WIDTH, 2, 20, tied=tied) for tied in (True, False))
    names = dict(tied.named_parameters())
    assert "embedding" not in names and torch.equal(names["head"], free.head)
    assert tied.embedding is tied.head
    assert "embedding" not in named_groups(tied)
    assert list(named_groups(tied)["head"]) == ["head"]
    with torch.device("meta"):
        decoders = [Decoder(WIDTH, 2, 20, tied=tied) for tied in (True, False)]
    one, two = (measure(decoder, SinglePass(), 8) for decoder in decoders)
    assert one.total - two.total == -20 * WIDTH
    assert one.matmul == two.matmul
    # Lookups start at the scale of a table of their own, for routes that read them raw.
    assert tied.lookup_scale * 0.02 == 1.0


def test_both_uses_of_a_tied_table_have_gradients() -> None:
    decoder = small_decoder(route=FullBandwidth(), tied=True)
    frame = Frame(tokens())
    top = run(SinglePass(), decoder, frame)[0].hidden
    decoder.logits(top.detach()).square().sum().backward()
    head = decoder.head.grad.clone()
    decoder.head.grad = None
    top.square().sum().backward()
    assert head.any() and decoder.head.grad.any()


@torch.no_grad()
def test_tying_survives_a_checkpoint_and_is_exact() -> None:
    decoder, other = (small_decoder(route=FullBandwidth(), tied=True) for _ in range(2))
    decoder.head.mul_(0.5)
    other.load_state_dict(decoder.state_dict())
    assert other.embedding is other.head
    frame = Frame(tokens(6))
    (truth,) = run(Serial(), decoder, frame)
    assert error(run(Jacobi(6), other, frame)[-1].hidden, truth.hidden) <= SAME
    assert small_decoder(route=NoRoute(), tied=True).double().embedding is not None
