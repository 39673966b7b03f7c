"""The engine: sweeps in pieces, what a sweep keeps, pair blocks, and refusals."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import ROLES
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT, NoRoute
from tests.support.compare import SAME, error
from tests.support.models import BLOCKS, T, documents, small_decoder, tokens
from tests.support.registry import BACKBONES, ROUTES, Case, each_near_pair


@pytest.mark.parametrize("split", [1, 4, 5])
@each_near_pair
def test_a_stack_can_be_swept_in_two_halves(backbone: Case, route: Case, split: int) -> None:
    """From a saved state, with memory entering both halves."""
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens(), documents(5, 7))
    everywhere, units = frame.positions, decoder.shape.units
    with torch.no_grad():
        carried = decoder.sweep(frame, everywhere).carried
        memory = None if carried is None else decoder.memory(carried, frame, everywhere)
        whole = decoder.sweep(frame, everywhere, memory)
        low = decoder.sweep(frame, everywhere, memory, units=range(split), save=[split])
        high = decoder.sweep(
            frame,
            everywhere,
            memory,
            low.buffers,
            units=range(split, units),
            entry=low.saved[split],
        )
    assert low.hidden is None
    assert torch.equal(high.hidden, whole.hidden)
    assert set(high.buffers) == set(whole.buffers)


@each_near_pair
def test_positions_can_be_swept_in_chunks(backbone: Case, route: Case) -> None:
    """Without feedback: keys and values of earlier chunks come from the buffers."""
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    with torch.no_grad():
        whole = decoder.sweep(frame, frame.positions)
        low = decoder.sweep(frame, range(5))
        high = decoder.sweep(frame, range(5, T), None, low.buffers)
    assert error(torch.cat([low.hidden, high.hidden], dim=1), whole.hidden) <= SAME
    for unit, buffer in whole.buffers.items():
        assert error(high.buffers[unit].k, buffer.k) <= SAME
        assert error(high.buffers[unit].v, buffer.v) <= SAME


@each_near_pair
def test_a_sweep_changes_nothing_that_it_was_given(backbone: Case, route: Case) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    first = decoder.sweep(frame, frame.positions)
    kept = {u: (b.k.clone(), b.v.clone()) for u, b in first.buffers.items()}
    carried = None if first.carried is None else first.carried.clone()
    positions = range(1, T, 2)
    memory = None if carried is None else decoder.memory(first.carried, frame, positions)
    decoder.sweep(frame, positions, memory, first.buffers)
    for unit, (k, v) in kept.items():
        assert torch.equal(first.buffers[unit].k, k)
        assert torch.equal(first.buffers[unit].v, v)
    if carried is not None:
        assert torch.equal(first.carried, carried)


def cell(backbone: type, route: type, seed: int) -> dict[str, torch.Tensor]:
    return Decoder(32, BLOCKS, 50, backbone(), route(), seed=seed).state_dict()


CELLS = [(b, r) for b in (PreNorm, AttentionResiduals) for r in (NoRoute, LRT)]


def test_the_four_cells_of_a_pair_block_start_alike() -> None:
    reference = cell(PreNorm, NoRoute, 7)
    for backbone, route in CELLS:
        values = cell(backbone, route, 7)
        # A route or backbone adds parameters: it moves and drops none.
        assert set(reference) <= set(values)
        for name, value in reference.items():
            assert torch.equal(values[name], value), name
    routed = [cell(backbone, LRT, 7) for backbone in (PreNorm, AttentionResiduals)]
    for name in (n for n in routed[0] if n.startswith("route.")):
        assert torch.equal(routed[0][name], routed[1][name]), name


@each_near_pair
def test_every_part_leaves_shared_values_alone(backbone: Case, route: Case) -> None:
    base = Decoder(32, BLOCKS, 50, seed=3).state_dict()
    own = Decoder(32, BLOCKS, 50, backbone(), route(), seed=3).state_dict()
    # A unit with three reads has three norms of other names, all of them ones; nothing else goes.
    gone = {n for n in base if n not in own}
    assert all(n.endswith(".norm.gain") for n in gone)
    for name, value in base.items():
        assert name in gone or torch.equal(own[name], value), name


def test_another_seed_starts_elsewhere() -> None:
    one, two = cell(PreNorm, LRT, 1), cell(PreNorm, LRT, 2)
    drawn = {n for n, v in one.items() if v.std() > 0}
    assert drawn and all(not torch.equal(one[n], two[n]) for n in drawn)
    assert all(torch.equal(one[n], two[n]) for n in set(one) - drawn)


def test_the_start_does_not_touch_or_hear_global_randomness() -> None:
    torch.manual_seed(0)
    before, one = torch.get_rng_state(), cell(PreNorm, LRT, 1)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    two = cell(PreNorm, LRT, 1)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_statistics_of_the_start() -> None:
    width = 64
    decoder = Decoder(width, 4, 300, AttentionResiduals(), LRT(projections="layerwise"))
    at_zero = {"out", "down", "query of depth", "gate"}
    seen = set()
    for name, value in decoder.named_parameters():
        kind = name.split(".")[-1].split("_")[0]
        if name in ("backbone.query",) or name.startswith("route.gate"):
            kind = "query of depth" if name == "backbone.query" else "gate"
        seen.add(kind)
        if kind in at_zero:
            assert not value.any(), name
        elif value.role == "gain" or name in ("backbone.key_gain", "route.alpha"):
            assert value.eq(1).all(), name
        elif name == "route.gamma":
            assert value.eq(0.1).all()
        else:
            std = {"embedding": 1.0, "head": 0.02}.get(name, value.shape[-1] ** -0.5)
            assert value.std().item() == pytest.approx(std, rel=0.05), name
            assert abs(value.mean().item()) < 0.05 * std, name
            if value.role == "matrix":
                assert value.abs().max() <= std * 3**0.5, name
    assert at_zero | {"key", "value", "up", "embedding", "head"} <= seen


def test_stream_scales_start_at_one_and_a_tenth() -> None:
    backbone = Decoder(8, 3, 5, PreNorm(stream_scales=True)).backbone
    assert backbone.stream.tolist() == [1, 1, 1]
    assert backbone.skip.tolist() == pytest.approx([0.1] * 3)


def test_a_fresh_prenorm_model_is_its_embedding() -> None:
    """All output maps at zero: the head reads the normed embedding."""
    decoder, frame = Decoder(32, 2, 40), Frame(tokens())
    out = decoder.sweep(frame, frame.positions).hidden
    embedding = decoder.embedding[frame.ids]
    normed = embedding * embedding.square().mean(-1, keepdim=True).rsqrt()
    assert error(out, normed) <= 1e-4


def test_every_parameter_has_a_role_and_a_start() -> None:
    for backbone in BACKBONES:
        for route in ROUTES:
            decoder = Decoder(16, 2, 10, backbone(), route(), Attention(heads=2))
            for name, value in decoder.named_parameters():
                assert value.role in ROLES, name
                assert torch.isfinite(value).all(), name


def test_templates_stay_usable() -> None:
    """A part that was given to one decoder can be given to the next, of another size."""
    parts = {"backbone": AttentionResiduals(), "route": LRT(), "mixer": Attention(heads=2)}
    one, two = Decoder(8, 2, 10, **parts), Decoder(16, 3, 10, **parts)
    assert not list(parts["route"].parameters())
    assert one.shape.width == 8 and two.shape.width == 16
    assert one.units[0].body is not one.units[2].body


@pytest.mark.parametrize("name", ["width", "blocks", "vocab"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(UserError, match=rf"^model\.{name}=0: it must be at least 1$"):
        Decoder(**{"width": 8, "blocks": 1, "vocab": 4, name: 0})
