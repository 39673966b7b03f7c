"""Routing stays float32 under every precision that Lightning offers."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.plugins.precision import HalfPrecision, MixedPrecision
from torch import Tensor

from lrt_lab.backbones import HyperConnections, MUDDFormer
from lrt_lab.backbones.streams import Streams
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from tests.support.models import documents, randomise, tokens
from tests.support.registry import BACKBONES, Case

BLOCKS, WIDTH = 3, 16


def decoder(backbone, **options) -> Decoder:
    """A float32 decoder with weights that are not zero."""
    model = Decoder(WIDTH, BLOCKS, 40, backbone=backbone, mixer=Attention(heads=2), **options)
    randomise(model, routing=0.2)
    return model


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_bf16_true_leaves_routing_parameters_wide(backbone: Case) -> None:
    plugin, model = HalfPrecision("bf16-true"), decoder(backbone())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model = plugin.convert_module(model)
    for name, p in model.named_parameters():
        routes = p.role in ("connection", "router")
        assert p.dtype == (torch.float32 if routes else torch.bfloat16), name
        assert not routes or torch.equal(p, before[name]), name
    frame = Frame(tokens(8), documents(3, 5))
    with plugin.forward_context():
        hidden = model.sweep(frame, frame.positions).hidden
    assert hidden.dtype == torch.bfloat16
    hidden.float().square().mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is None or p.grad.dtype == p.dtype, name


MIXED = MixedPrecision("bf16-mixed", "cpu")


@pytest.mark.parametrize(
    "options", [{}, {"norm": "rms", "tanh": False}, {"dynamic": False}], ids=str
)
def test_coefficients_of_hyper_connections(options: dict) -> None:
    connection = decoder(HyperConnections(**options)).backbone.connections[1]
    x = torch.randn(2, 5, 4, WIDTH)
    check(connection, x)


@pytest.mark.parametrize(
    "options", [{}, {"prepost": True, "gelu": "tanh"}, {"dynamic": False}], ids=str
)
def test_coefficients_of_muddformer(options: dict) -> None:
    aggregate = decoder(MUDDFormer(**options)).backbone.aggregate(2)
    check(lambda state: (aggregate.coefficients(state),), torch.randn(2, 5, WIDTH))


def check(coefficients, state: Tensor) -> None:
    """Autocast changes no bit of them, and a narrow state is widened first."""
    wide = coefficients(state)
    with MIXED.forward_context():
        mixed = coefficients(state)
    narrow = coefficients(state.bfloat16())
    for one, two, three, four in zip(
        wide, mixed, narrow, coefficients(state.bfloat16().float()), strict=True
    ):
        assert one.dtype == two.dtype == three.dtype == torch.float32
        assert torch.equal(one, two)
        assert torch.equal(three, four)


def test_a_carry_is_not_rounded_where_it_is_used() -> None:
    """.999 would round to 1: the streams are mixed in float32 and rounded once."""
    backbone = decoder(HyperConnections(dynamic=False)).backbone.to(torch.bfloat16)
    with torch.no_grad():
        backbone.connections[0].carry.copy_(0.999 * torch.eye(4))
        x = torch.full((1, 1, 4, WIDTH), 1000.0)
        out = backbone.write(Streams(x.bfloat16()), 0, torch.zeros(1, 1, WIDTH).bfloat16()).x
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, (0.999 * x).bfloat16())
