"""Feed-forward widths by block, and the norm of hidden features."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.layers import FeedForward, Shape, SquaredReLU, SwiGLU
from lrt_lab.layers.ffn import rising

BODIES = pytest.mark.parametrize("body", [SquaredReLU, SwiGLU])


def widths(ffn: FeedForward, width: int, blocks: int) -> list[int]:
    decoder = Decoder(width, blocks, 8, ffn=ffn)
    return [len(unit.body.up) for unit in list(decoder.units)[1::2]]


@BODIES
def test_one_width_or_one_per_block(body: type[FeedForward]) -> None:
    assert widths(body(24), 8, 3) == [24, 24, 24]
    assert widths(body([12, 24, 36]), 8, 3) == [12, 24, 36]


def test_widths_rise_evenly_in_multiples_of_128() -> None:
    """By hand from D (l / (L - 1) + 1/2): 1706.7 and 2389.3 are nearest to 13 and 19 times 128."""
    assert [rising(2048, block, 5) for block in range(5)] == [1024, 1536, 2048, 2560, 3072]
    assert [rising(2048, block, 4) for block in range(4)] == [1024, 1664, 2432, 3072]


@pytest.mark.parametrize("hidden", [1, 5, 16, 64, 100, 256, 683, 1024, 4096])
@pytest.mark.parametrize("blocks", [2, 3, 4, 8, 12])
def test_rising_keeps_the_sum_and_suits_small_widths(hidden: int, blocks: int) -> None:
    found = [rising(hidden, block, blocks) for block in range(blocks)]
    assert found == sorted(found)
    assert found[0] >= 1
    # Rounding goes to an eighth of the width at most.
    assert abs(sum(found) / blocks - hidden) <= max(1, hidden / 16)
    if hidden >= 16:
        assert found[0] / hidden == pytest.approx(0.5, abs=1 / 16)
        assert found[-1] / hidden == pytest.approx(1.5, abs=1 / 16)


def test_one_block_keeps_its_width() -> None:
    assert rising(100, 0, 1) == 100
    assert widths(SquaredReLU(reallocate=True), 8, 1) == [32]


@BODIES
def test_reallocation_is_an_option_of_every_body(body: type[FeedForward]) -> None:
    assert widths(body(64, reallocate=True), 8, 3) == [32, 64, 96]


@BODIES
def test_the_inner_norm_sees_the_hidden_features(body: type[FeedForward]) -> None:
    ffn = body(6, inner_norm=True)
    ffn.setup(Shape(4, 1, 1), 0)
    with torch.no_grad():
        for target in ffn.parameters():
            target.normal_()
    x, kept = torch.randn(2, 3, 4), []
    ffn.inner.register_forward_hook(lambda module, args, out: kept.extend((args[0], out)))
    y = ffn(x)
    hidden, normed = kept
    assert hidden.shape == (2, 3, 6)
    scale = (hidden.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert_close(normed, hidden * scale * ffn.inner.gain)
    assert_close(y, normed @ ffn.down.T)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"hidden": 0}, "ffn.hidden=0: give a positive number"),
        ({"hidden": []}, "ffn.hidden=.*: give a positive number"),
        ({"hidden": [8, 0]}, "ffn.hidden=.*: give a positive number"),
        ({"hidden": [8, 8], "reallocate": True}, "drop one of the two"),
    ],
    ids=str,
)
def test_widths_that_make_no_sense(options: dict, line: str) -> None:
    with pytest.raises(UserError, match=line):
        SquaredReLU(**options)


def test_a_list_has_one_width_per_block() -> None:
    with pytest.raises(UserError, match="ffn.hidden has 2 widths for 3 blocks: give one per block"):
        widths(SquaredReLU([8, 8]), 8, 3)
