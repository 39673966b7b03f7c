"""How strongly memory enters, by block: checked against the vectors as they meet."""

from __future__ import annotations

import math

import pytest
import torch

from lrt_lab.backbones import MHC, AttentionResiduals, MUDDFormer, PreNorm
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.training.ports import strength
from tests.support.models import BLOCKS, T, documents, small_decoder, tokens


def frame() -> Frame:
    return Frame(tokens(), documents(5, 7))


@pytest.mark.parametrize(
    "backbone",
    [PreNorm(), AttentionResiduals(), MUDDFormer(), MHC()],
    ids=lambda b: type(b).__name__,
)
def test_every_block_of_every_backbone_has_a_strength(backbone) -> None:
    decoder = small_decoder(backbone, LRT())
    found = strength(decoder, frame())
    assert found["backbone"] == type(backbone).__name__
    assert found["vector"] == backbone.stands_for != "the state before the unit"
    assert len(found["log_ratio"]) == BLOCKS and all(map(math.isfinite, found["log_ratio"]))
    # The model is as it was.
    assert "inject" not in vars(decoder.route)
    assert strength(decoder, frame()) == found


@torch.no_grad()
def test_the_first_block_by_hand() -> None:
    decoder = small_decoder(route=LRT())
    x = decoder.embed(decoder.view(frame(), range(T), T))
    carried = decoder.sweep(frame(), range(T)).carried.squeeze(-2)
    present = [t for t in range(T) if t not in (0, 5)]
    ratios = [
        decoder.route.gamma[0].abs() * carried[:, t - 1].norm(dim=-1) / x[:, t].norm(dim=-1)
        for t in present
    ]
    expected = torch.stack(ratios).log().mean()
    assert strength(decoder, frame())["log_ratio"][0] == pytest.approx(float(expected), abs=1e-12)


@torch.no_grad()
def test_twice_gamma_is_ln_2_more_in_the_first_block() -> None:
    decoder = small_decoder(route=LRT(enters="read"))
    before = strength(decoder, frame())["log_ratio"][0]
    decoder.route.gamma[0] *= -2
    assert strength(decoder, frame())["log_ratio"][0] - before == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "route", [NoRoute(), LRT(enters="source"), LRT(memory="zero")], ids=["none", "source", "zero"]
)
def test_nothing_is_said_where_nothing_is_injected(route) -> None:
    assert strength(small_decoder(AttentionResiduals(), route), frame()) is None


@pytest.mark.parametrize("memory", ["shift", "self"])
def test_controls_have_a_strength_too(memory: str) -> None:
    assert len(strength(small_decoder(route=LRT(memory=memory)), frame())["log_ratio"]) == BLOCKS
