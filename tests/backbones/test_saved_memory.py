"""The memory of a training step grows linearly in depth: no read keeps copies of its sources."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.decoder import Decoder
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Interleaved, SinglePass
from tests.support.models import tokens
from tests.support.registry import BACKBONES, ROUTES, Case
from tests.support.saved import saved_bytes

# Attention Residuals keep two numbers per position and pair of units beside the states: at half
# this width and 32 blocks a sixth of the whole. Copies of the sources would show at any width.
WIDTH = 64


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_twice_the_depth_keeps_twice_the_bytes(backbone: Case, route: Case) -> None:
    schedule = Interleaved(2) if route.part.traits.recurrent else SinglePass()
    shallow, deep = (
        saved_bytes(
            Decoder(WIDTH, blocks, 64, backbone(), route(), Attention(heads=4)),
            schedule,
            tokens(17),
        )
        for blocks in (16, 32)
    )
    assert deep / shallow <= 2.1


def test_the_count_sees_what_is_kept() -> None:
    """One linear map of known size, counted by hand."""
    decoder = Decoder(8, 1, 64, mixer=Attention(heads=1))
    few, many = (saved_bytes(decoder, SinglePass(), tokens(length + 1)) for length in (8, 16))
    assert many > 1.5 * few
    with torch.no_grad(), pytest.raises(AssertionError):
        saved_bytes(decoder, SinglePass(), tokens(9))
