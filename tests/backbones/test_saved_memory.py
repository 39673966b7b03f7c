"""The memory of a training step grows linearly in depth: no read keeps copies of its sources."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.decoder import Decoder
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Interleaved, SinglePass
from tests.support.models import tokens
from tests.support.registry import BACKBONES, ROUTES, Case, anchored, plain
from tests.support.saved import saved_bytes

# Beside the states, backbones that read all earlier outputs keep a few numbers per position and
# pair of units: MUDDFormer more of them than Attention Residuals. Where the width is large enough
# for the states to matter most, only copies of the states can break the bound.
WIDTHS = {case: 64 if anchored(case) else 128 for case in BACKBONES if plain(case)}


@pytest.mark.parametrize(
    ("backbone", "route"), [(b, r) for b in WIDTHS for r in ROUTES if anchored(b, r)], ids=str
)
def test_twice_the_depth_keeps_twice_the_bytes(backbone: Case, route: Case) -> None:
    # A slot for every output: only the logits, a number for each slot and reader, grow faster, and
    # at 64 features they show.
    width = 128 if ("retain", "bank") in route.options else WIDTHS[backbone]
    schedule = Interleaved(2) if route.part.traits.recurrent else SinglePass()
    shallow, deep = (
        saved_bytes(
            Decoder(width, blocks, 64, backbone(), route(), Attention(heads=4)),
            schedule,
            tokens(9),
        )
        for blocks in (16, 32)
    )
    assert deep / shallow <= 2.1


def test_the_count_sees_what_is_kept() -> None:
    decoder = Decoder(8, 1, 64, mixer=Attention(heads=1))
    few, many = (saved_bytes(decoder, SinglePass(), tokens(length + 1)) for length in (8, 16))
    assert many > 1.5 * few
    with torch.no_grad(), pytest.raises(AssertionError):
        saved_bytes(decoder, SinglePass(), tokens(9))
