"""LRT's equations by hand, where it takes its memory from, its parameters, and its refusals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame, Memory
from lrt_lab.layers import rms_norm
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT, NoRoute
from tests.support.compare import SAME, error
from tests.support.models import BLOCKS, WIDTH, small_decoder, tokens

SHAPES = {"shared": LRT(), "layerwise": LRT(projections="layerwise")}


def memory(length: int = 5) -> Memory:
    g = torch.Generator().manual_seed(3)
    value = torch.randn(2, length, 1, WIDTH, generator=g, dtype=torch.float64)
    return Memory(value, torch.ones(2, length, dtype=torch.bool))


@pytest.mark.parametrize("form", SHAPES)
def test_one_block_by_hand(form: str) -> None:
    """PreNorm, one position: attention returns its own value, so the block can be written out."""
    decoder = small_decoder(route=SHAPES[form], mixer=Attention(heads=2))
    route, frame, m = decoder.route, Frame(tokens(1)), memory(1)
    with torch.no_grad():
        x = rms_norm(decoder.embedding[frame.ids])
        for block in range(BLOCKS):
            name = f"block{block}" if form == "layerwise" else "2x4"
            mixer, ffn = decoder.units[2 * block], decoder.units[2 * block + 1]
            x = route.alpha[block] * x + route.gamma[block] * m.value[:, :, 0]
            u = mixer.norm(x)
            gates = 2 * torch.sigmoid(u @ route.get_parameter(f"gate_{block}").T)
            local = (u @ mixer.body.value.T).view(2, 1, 2, 4)
            recurrent = (m.value[:, :, 0] @ route.get_parameter(f"value_{name}").T).view(2, 1, 2, 4)
            v = gates[..., :2, None] * local + gates[..., 2:, None] * recurrent
            x = x + v.flatten(2) @ mixer.body.out.T
            x = x + F.relu(ffn.norm(x) @ ffn.body.up.T).square() @ ffn.body.down.T
        got = decoder.sweep(frame, frame.positions, m).hidden
    assert error(got, decoder.norm(x)) <= SAME


@torch.no_grad()
def test_keys_are_mixed_as_values_are() -> None:
    decoder = small_decoder(route=LRT())
    route, m = decoder.route, memory()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, WIDTH, generator=g, dtype=torch.float64)
    k, v = (torch.randn(2, 5, 1, 4, generator=g, dtype=torch.float64) for _ in range(2))
    at = decoder.view(Frame(tokens(5)), range(5), 5)
    mixed_k, mixed_v = route.keys_values(2, x, k, v, m, at)
    gates = 2 * torch.sigmoid(x @ route.gate_1.T)
    for mixed, local, weight in ((mixed_k, k, route.key_1x4), (mixed_v, v, route.value_1x4)):
        recurrent = (m.value[:, :, 0] @ weight.T).unflatten(-1, (1, 4))
        expected = gates[..., :1, None] * local + gates[..., 1:, None] * recurrent
        assert error(mixed, expected) <= SAME


@pytest.mark.parametrize("backbone", [PreNorm(), AttentionResiduals()], ids=["PreNorm", "AttnRes"])
@pytest.mark.parametrize(
    ("source", "blocks"), [(None, 3), (1, 1), (2, 2), (BLOCKS, BLOCKS)], ids=lambda n: str(n)
)
@torch.no_grad()
def test_memory_is_the_state_after_so_many_blocks(
    backbone, source: int | None, blocks: int
) -> None:
    decoder, frame = small_decoder(backbone, LRT(source=source)), Frame(tokens())
    out = decoder.sweep(frame, frame.positions, save=[2 * blocks])
    expected = decoder.backbone.hidden(out.saved[2 * blocks], 2 * blocks)
    assert torch.equal(out.carried[:, :, 0], expected)


@torch.no_grad()
def test_memory_can_be_what_the_head_reads() -> None:
    decoder, frame = small_decoder(AttentionResiduals(), LRT(source="top")), Frame(tokens())
    out = decoder.sweep(frame, frame.positions)
    assert torch.equal(out.carried[:, :, 0], out.hidden)


@pytest.mark.parametrize(("blocks", "source"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (20, 15)])
def test_the_default_source_is_upper_middle(blocks: int, source: int) -> None:
    decoder = Decoder(8, blocks, 5, route=LRT(), mixer=Attention(heads=1))
    assert tuple(decoder.route.needs.units) == (2 * source,)


@pytest.mark.parametrize(("form", "pairs"), [("shared", 1), ("layerwise", BLOCKS)])
def test_parameter_count(form: str, pairs: int) -> None:
    width, heads, head_dim = 16, 2, 4
    mixer = Attention(heads=4, kv_heads=heads)
    routed = Decoder(width, BLOCKS, 5, route=LRT(projections=form), mixer=mixer)
    plain = Decoder(width, BLOCKS, 5, route=NoRoute(), mixer=mixer)
    extra = sum(p.numel() for p in routed.parameters()) - sum(p.numel() for p in plain.parameters())
    projections = pairs * 2 * heads * head_dim * width
    assert extra == projections + BLOCKS * (2 * heads * width + 2)


def test_a_fresh_route_has_open_gates_and_a_small_gamma() -> None:
    route = Decoder(8, 2, 5, route=LRT(gamma=0.25), mixer=Attention(heads=1)).route
    assert route.gamma.tolist() == [0.25, 0.25]
    assert route.alpha.tolist() == [1, 1]
    at = Frame(tokens(5)).at(range(5), 5)
    k = v = torch.ones(2, 5, 1, 8)
    assert route.keys_values(0, torch.randn(2, 5, 8), k, v, None, at)[0].eq(1).all()


def test_memory_does_not_enter_feed_forward_units() -> None:
    route = small_decoder(route=LRT()).route
    x = torch.randn(2, 5, WIDTH)
    assert route.enter(1, x, memory(), None) is x


def test_projections_are_computed_once_per_sweep() -> None:
    m = memory()
    route = small_decoder(route=LRT()).route
    first: tuple[Tensor, Tensor] = route.project(m, 0)
    assert all(a is b for a, b in zip(first, route.project(m, 3), strict=True))


@pytest.mark.parametrize("source", [0, -1, BLOCKS + 1, "bottom"])
def test_the_source_must_be_in_the_stack(source: object) -> None:
    line = f"^route.source={source}: give a number of blocks from 1 to {BLOCKS}, or top$"
    with pytest.raises(UserError, match=line):
        small_decoder(route=LRT(source=source))


def test_projections_are_shared_or_layerwise() -> None:
    line = r"^route.projections='both': give shared or layerwise$"
    with pytest.raises(UserError, match=line):
        LRT(projections="both")
