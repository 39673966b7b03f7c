"""T2MLR's equations by hand, its options, its parameters, and its refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import rms_norm
from lrt_lab.mixers import Attention
from lrt_lab.routes import T2MLR, NoRoute
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import BLOCKS, WIDTH, small_decoder, tokens


def states(count: int = 2) -> list[Tensor]:
    g = torch.Generator().manual_seed(3)
    return [torch.randn(2, 5, WIDTH, generator=g, dtype=torch.float64) for _ in range(count)]


@torch.no_grad()
@pytest.mark.parametrize("features", ["cache", "projected"])
def test_the_merge_by_hand(features: str) -> None:
    route = small_decoder(route=T2MLR(features=features)).route
    h, cache = states()
    projected = cache @ route.projection.T
    read = torch.cat([h, projected if features == "projected" else cache], dim=-1)
    gates = {
        name: torch.tanh(route.get_parameter(f"{name}_strength"))
        * torch.sigmoid(
            read @ route.get_parameter(f"{name}_gate").T + route.get_parameter(f"{name}_bias")
        )
        for name in ("current", "recurrent")
    }
    expected = h + gates["current"] * h + gates["recurrent"] * projected
    assert error(route.merge(h, cache), expected) <= SAME


def test_the_cache_is_the_normed_sum() -> None:
    h, cache = states()
    assert error(T2MLR().update(h, cache), rms_norm(h + cache)) <= SAME
    assert error(T2MLR(accumulate="none").update(h, cache), rms_norm(h)) <= SAME
    assert error(T2MLR(norm="clamped").update(h, cache), rms_norm(h + cache)) <= SAME


def test_a_detached_cache_is_added_without_its_gradient() -> None:
    h, cache = (s.requires_grad_() for s in states())
    new = T2MLR(accumulate="detached").update(h, cache)
    assert torch.equal(new, T2MLR().update(h, cache))
    assert torch.autograd.grad(new.sum(), cache, allow_unused=True) == (None,)


@pytest.mark.parametrize("backbone", [PreNorm(), AttentionResiduals()], ids=["PreNorm", "AttnRes"])
@torch.no_grad()
def test_the_first_sweep_leaves_the_raw_state_after_block_b(backbone) -> None:
    decoder, frame = small_decoder(backbone, T2MLR(1, 2)), Frame(tokens())
    out = decoder.sweep(frame, frame.positions, save=[6])
    assert torch.equal(out.carried, decoder.backbone.hidden(out.saved[6], 6))


@torch.no_grad()
def test_absent_is_merged_and_none_is_not() -> None:
    decoder, frame = small_decoder(route=T2MLR()), Frame(tokens())
    plain = decoder.sweep(frame, frame.positions)
    absent = decoder.memory(plain.carried, frame, frame.positions)
    absent.value.zero_()
    merged = decoder.sweep(frame, frame.positions, absent)
    assert error(merged.hidden, plain.hidden) > DIFFERENT


@pytest.mark.parametrize(
    ("blocks", "first", "last"),
    [(1, 0, 0), (2, 0, 1), (4, 1, 2), (5, 2, 2), (8, 3, 4), (30, 12, 17)],
)
def test_the_default_interval_is_in_the_middle(blocks: int, first: int, last: int) -> None:
    route = Decoder(8, blocks, 5, route=T2MLR(), mixer=Attention(heads=1)).route
    assert route.interval == range(2 * first, 2 * last + 2)


def test_parameter_count() -> None:
    sizes = [
        sum(p.numel() for p in Decoder(16, 4, 5, route=route).parameters())
        for route in (T2MLR(), NoRoute())
    ]
    assert sizes[0] - sizes[1] == 5 * 16**2 + 2 * 16 + 2


@pytest.mark.parametrize(
    ("first", "last"), [(2, 1), (-1, 2), (0, BLOCKS), (BLOCKS, BLOCKS), (3, None)], ids=str
)
def test_the_interval_must_be_in_the_stack(first: int, last: int | None) -> None:
    line = rf"^route.first={first}, route.last=-?\d: give blocks with 0 <= first <= last <= 3$"
    with pytest.raises(UserError, match=line):
        small_decoder(route=T2MLR(first, last))


@pytest.mark.parametrize("option", ["features", "norm", "accumulate"])
def test_options_are_named(option: str) -> None:
    with pytest.raises(UserError, match=rf"^route.{option}='other': give "):
        T2MLR(**{option: "other"})
