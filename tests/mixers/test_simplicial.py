"""SimplicialAttention: the layer's own choices, and its refusals."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from lrt_kernels import simplicial_attention
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape, rms_norm
from lrt_lab.mixers import DeltaNet, SimplicialAttention
from lrt_lab.mixers.base import notice
from tests.mixers.cases import alone
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import tokens

WIDTH, LENGTH = 12, 7


def through(x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k, v


def read(seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, LENGTH, WIDTH, generator=g, dtype=torch.float64)


def view(position: Tensor | None = None):
    return Frame(tokens(LENGTH), position=position).at(range(LENGTH), LENGTH)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("qk_norm", [False, True], ids=["no norm", "norm"])
@torch.no_grad()
def test_the_equation(bias: bool, qk_norm: bool) -> None:
    options = {"heads": 4, "kv_heads": 2, "window": 4, "pair_window": 2}
    layer = alone(SimplicialAttention(**options, bias=bias, qk_norm=qk_norm), WIDTH)
    x = read(), read(1), read(2)
    names = (("query", 0), ("key", 1), ("pair_key", 1), ("value", 2), ("pair_value", 2))
    q, k, pair_k, v, pair_v = (
        (x[which] @ layer.get_parameter(name).T).unflatten(-1, (-1, 3)) for name, which in names
    )
    if qk_norm:
        q, k, pair_k = rms_norm(q), rms_norm(k), rms_norm(pair_k)
    if bias:
        pair_k, pair_v = pair_k + 1 / 3, pair_v + 1
    y = simplicial_attention(q, (k, pair_k), (v, pair_v), (4, 2))
    actual, _ = layer(x, view(), None, through)
    assert error(actual, y.flatten(2) @ layer.out.T) <= SAME


@torch.no_grad()
def test_a_routes_keys_and_values_enter_the_wide_window() -> None:
    layer = alone(SimplicialAttention(heads=4, kv_heads=2), WIDTH)
    plain = layer(read(), view(), None, through)[1]
    moved = layer(read(), view(), None, lambda x, k, v: (-k, v + 1))[1]
    assert error(moved.k[:, :, :2], -plain.k[:, :, :2]) <= SAME
    assert error(moved.v[:, :, :2], plain.v[:, :, :2] + 1) <= SAME
    assert torch.equal(moved.k[:, :, 2:], plain.k[:, :, 2:])
    assert torch.equal(moved.v[:, :, 2:], plain.v[:, :, 2:])


@torch.no_grad()
def test_the_determinant_form_sees_differences_of_positions_alone() -> None:
    shifted = (torch.arange(LENGTH) + 11).expand(2, -1)
    stretched = (2 * torch.arange(LENGTH)).expand(2, -1)
    for position, heads, relative in (("determinant", 4, True), ("rotary", 2, False)):
        layer = alone(SimplicialAttention(heads=heads, position=position), WIDTH)
        plain = layer(read(), view(), None, through)[0]
        moved = layer(read(), view(shifted), None, through)[0]
        assert (error(moved, plain) <= SAME) == relative
        assert error(layer(read(), view(stretched), None, through)[0], plain) > DIFFERENT


def test_windows_longer_than_the_context_are_noticed_once(caplog) -> None:
    notice.cache_clear()
    layer = alone(SimplicialAttention(heads=4, window=9, pair_window=2), WIDTH)
    with caplog.at_level(logging.WARNING, logger="lrt_lab"):
        for _ in range(2):
            layer(read(), view(), None, through)
    assert caplog.messages == ["mixer window=9 is longer than the context: clamped to 7"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"heads": 4, "kv_heads": 3}, "mixer heads=4, kv_heads=3: both positive"),
        ({"window": 0}, "mixer window=0, pair_window=32: both at least 1"),
        ({"pair_window": 0}, "mixer window=512, pair_window=0: both at least 1"),
        ({"position": "rope"}, "mixer position='rope': give none, rotary or determinant"),
    ],
    ids=lambda given: str(given),
)
def test_bad_options(options: dict, line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}"):
        SimplicialAttention(**options)


@pytest.mark.parametrize(
    ("position", "width", "line"),
    [
        ("none", 10, "width 10 with 4 heads: heads must divide the width"),
        ("rotary", 12, "mixer position=rotary with 3 features per head"),
        ("determinant", 16, "mixer position=determinant with 4 features per head"),
    ],
)
def test_head_sizes(position: str, width: int, line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}"):
        SimplicialAttention(position=position).kv(Shape(width, 1, 1))


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model.mixer=\[\]: a pattern names at least one mixer$"):
        Decoder(mixer=[])
    assert len(Decoder(8, 3, mixer=[DeltaNet(2)]).mixers()) == 3
