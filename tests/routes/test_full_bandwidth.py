"""Full-bandwidth's fusion by hand, what it carries, and its parameters."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame, Memory
from lrt_lab.layers import rms_norm
from lrt_lab.routes import FullBandwidth, NoRoute
from tests.support.compare import SAME, error
from tests.support.models import WIDTH, documents, small_decoder, tokens

BACKBONES = pytest.mark.parametrize(
    "backbone", [PreNorm(), AttentionResiduals()], ids=["PreNorm", "AttentionResiduals"]
)


@pytest.mark.parametrize("gate_norm", [True, False])
@pytest.mark.parametrize("input_norm", [True, False])
@torch.no_grad()
def test_the_fusion_by_hand(gate_norm: bool, input_norm: bool) -> None:
    decoder = small_decoder(route=FullBandwidth(gate_norm=gate_norm, input_norm=input_norm))
    route, frame = decoder.route, Frame(tokens())
    g = torch.Generator().manual_seed(0)
    carried = torch.randn(*frame.ids.shape, WIDTH, generator=g, dtype=torch.float64)
    memory = decoder.memory(carried, frame, frame.positions)
    token = decoder.embedding[frame.ids[:, 1:]]
    token = rms_norm(token) if gate_norm else token
    expected = (carried[:, :-1] @ route.value.T) * torch.sigmoid(token @ route.gate.T)
    expected = rms_norm(expected) if input_norm else expected
    assert error(memory.value[:, 1:], expected) <= SAME


@torch.no_grad()
def test_concatenation_by_hand() -> None:
    decoder, frame = small_decoder(route=FullBandwidth(fuse="concat")), Frame(tokens())
    carried = decoder.sweep(frame, frame.positions).carried
    memory = decoder.memory(carried, frame, frame.positions)
    weight, token = decoder.route.value, rms_norm(decoder.embedding[frame.ids[:, 1:]])
    expected = carried[:, :-1] @ weight[:, :WIDTH].T + token @ weight[:, WIDTH:].T
    assert error(memory.value[:, 1:], rms_norm(expected)) <= SAME
    with pytest.raises(UserError, match=r"^route.fuse='add': give gate or concat$"):
        FullBandwidth(fuse="add")


@BACKBONES
@torch.no_grad()
def test_memory_is_the_whole_input_and_plain_positions_keep_theirs(backbone) -> None:
    decoder = small_decoder(backbone, FullBandwidth())
    frame = Frame(tokens(), documents(5, 7))
    memory = decoder.memory(decoder.sweep(frame, frame.positions).carried, frame, frame.positions)
    at = decoder.view(frame, frame.positions, frame.length)
    x = decoder.route.embed(decoder.embed(at), memory, at)
    plain = torch.zeros_like(frame.ids, dtype=torch.bool)
    plain[:, [0, 5]] = True
    assert torch.equal(x[plain], rms_norm(at.embedding)[plain])
    assert torch.equal(x[~plain], memory.value[~plain])


@torch.no_grad()
def test_a_zero_state_leaves_no_input() -> None:
    """Why document starts are plain: fused with nothing they would be the same whatever token."""
    decoder = small_decoder(route=FullBandwidth())
    one, two = Frame(tokens(1)), Frame((tokens(1) + 1) % decoder.shape.vocab)
    zero = torch.zeros(2, 1, WIDTH, dtype=torch.float64)
    present = torch.ones(2, 1, dtype=torch.bool)
    hidden = [decoder.sweep(f, range(1), Memory(zero, present)).hidden for f in (one, two)]
    assert torch.equal(*hidden)


@BACKBONES
@torch.no_grad()
def test_what_is_carried(backbone) -> None:
    for state in ("normed", "raw"):
        decoder, frame = small_decoder(backbone, FullBandwidth(state)), Frame(tokens())
        units = decoder.shape.units
        out = decoder.sweep(frame, frame.positions, save=[units])
        raw = decoder.backbone.hidden(out.saved[units], units)
        assert torch.equal(out.carried, out.hidden if state == "normed" else raw)


def test_parameter_count() -> None:
    routed, plain = (
        sum(p.numel() for p in Decoder(16, 4, 40, route=route).parameters())
        for route in (FullBandwidth(), NoRoute())
    )
    assert routed - plain == 2 * 16**2


def test_the_state_is_normed_or_raw() -> None:
    with pytest.raises(UserError, match=r"^route.state='top': give normed or raw$"):
        FullBandwidth("top")
