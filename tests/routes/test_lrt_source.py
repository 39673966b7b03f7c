"""LRT's vector as a depth source: no weights of its own, and the backbone chooses."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, PairwiseAttentionResiduals, PreNorm
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import documents, small_decoder, tokens


def test_it_has_no_parameters() -> None:
    decoder = small_decoder(AttentionResiduals(), LRT(enters="source"))
    assert list(decoder.route.parameters()) == []
    assert decoder.route.slots == 1 and LRT().slots == 0


@torch.no_grad()
def test_the_carried_vector_is_the_source() -> None:
    decoder, frame = small_decoder(route=LRT(enters="source")), Frame(tokens(), documents(5, 7))
    out = decoder.sweep(frame, frame.positions)
    memory = decoder.memory(out.carried, frame, frame.positions)
    injected = small_decoder(route=LRT())
    assert injected.route.needs == decoder.route.needs
    plain, routed = (
        decoder.sweep(frame, frame.positions, m, save=[0]).saved[0].x for m in (None, memory)
    )
    assert error(routed - plain, memory.value[:, :, 0]) <= SAME
    assert error(memory.value[:, 1:5], out.carried[:, :4]) <= SAME
    assert not memory.value[:, [0, 5]].any()


@pytest.mark.parametrize("weight", [-1e6, 1e6])
@torch.no_grad()
def test_readers_may_ignore_it_or_read_nothing_else(weight: float) -> None:
    decoder = small_decoder(PairwiseAttentionResiduals(), LRT(enters="source"))
    frame = Frame(tokens())
    decoder.backbone.slot_bias.fill_(weight)
    memory = decoder.memory(decoder.sweep(frame, frame.positions).carried, frame, frame.positions)
    plain, routed = (
        decoder.sweep(frame, frame.positions, m, save=[3]).saved[3] for m in (None, memory)
    )
    read = decoder.backbone.hidden(routed, 3)
    if weight < 0:
        assert error(read, decoder.backbone.hidden(plain, 3)) <= SAME
    else:
        assert error(read[:, 1:], memory.value[:, 1:, 0]) <= SAME
        assert error(read[:, 1:], decoder.backbone.hidden(plain, 3)[:, 1:]) > DIFFERENT


def test_it_enters_in_one_of_three_ways() -> None:
    with pytest.raises(UserError, match=r"^route.enters='both': give injection, read or source$"):
        LRT(enters="both")
    assert small_decoder(PreNorm(), LRT(enters="injection")).route.gamma.shape == (4,)
