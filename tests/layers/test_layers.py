"""Norm, rotary positions and feed-forward bodies against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.errors import UserError
from lrt_lab.layers import RMSNorm, Shape, SquaredReLU, SwiGLU, rms_norm, rotary_table, rotate
from lrt_lab.layers.ffn import rising
from tests.support.compare import error
from tests.support.models import randomise


def random(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def test_rms_norm() -> None:
    x, gain = random(2, 3, 8), random(8, seed=1)
    norm = RMSNorm(8, eps=0.1).double()
    with torch.no_grad():
        norm.gain.copy_(gain)
    plain = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 0.1)
    assert error(norm(x), plain * gain) <= 1e-14
    assert error(rms_norm(x, 0.1), plain) <= 1e-14
    assert not rms_norm(torch.zeros(2, 8)).any()


@pytest.mark.parametrize(
    "position", [torch.arange(5), torch.arange(10).view(2, 5)], ids=["P", "BP"]
)
def test_rotation_is_a_complex_product(position: Tensor) -> None:
    """Pair i of the halves turns by -position * base^(-2i/h)."""
    x, base = random(2, 5, 3, 8), 100.0
    y = rotate(x, rotary_table(position, 8, base, torch.float64))
    rate = base ** (-torch.arange(4, dtype=torch.float64) / 4)
    angle = (position.double()[..., None] * rate).unsqueeze(-2)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.exp(-1j * angle)
    assert error(y, torch.cat([turned.real, turned.imag], -1)) <= 1e-14
    assert error(y.norm(dim=-1), x.norm(dim=-1)) <= 1e-14


def test_scores_only_see_distances() -> None:
    q, k = random(1, 1, 1, 8), random(1, 1, 1, 8, seed=1)

    def score(t: int, s: int) -> Tensor:
        tables = (rotary_table(torch.tensor([p]), 8, 10000.0, torch.float64) for p in (t, s))
        return (rotate(q, next(tables)) * rotate(k, next(tables))).sum().view(1)

    assert error(score(1000, 993), score(7, 0)) <= 1e-10
    assert error(score(7, 0), score(8, 0)) > 1e-4


def test_angles_are_right_far_out() -> None:
    """A float32 angle at this position is off in the third digit."""
    cos, _ = rotary_table(torch.tensor([1_000_003]), 4, 10000.0, torch.float32)
    exact = torch.cos(torch.tensor([1_000_003.0, 1_000_003.0 / 100], dtype=torch.float64))
    assert error(cos.flatten().double(), exact) <= 1e-6


SHAPE = Shape(8, 1, 1)


def test_squared_relu() -> None:
    body = SquaredReLU()
    body.setup(SHAPE, 0)
    assert body.up.shape == (32, 8)
    for target in body.parameters():
        target.data = random(*target.shape)
    x = random(2, 3, 8, seed=2)
    expected = (x @ body.up.T).clamp_min(0).square() @ body.down.T
    assert error(body(x), expected) <= 1e-12


def test_swiglu() -> None:
    body = SwiGLU()
    body.setup(SHAPE, 0)
    # 8 d / 3 rounded up to a multiple of 8.
    assert body.up.shape == (24, 8)
    for seed, target in enumerate(body.parameters()):
        target.data = random(*target.shape, seed=seed)
    x = random(2, 3, 8, seed=5)
    gate = x @ body.gate.T
    expected = (gate * torch.sigmoid(gate) * (x @ body.up.T)) @ body.down.T
    assert error(body(x), expected) <= 1e-12


@pytest.mark.parametrize("width, hidden", [(8, 24), (12, 32), (48, 128), (64, 176)])
def test_swiglu_width(width: int, hidden: int) -> None:
    body = SwiGLU()
    body.setup(Shape(width, 1, 1), 0)
    assert body.down.shape == (width, hidden)


@pytest.mark.parametrize("body", [SquaredReLU, SwiGLU])
def test_hidden_features_can_be_chosen_and_must_be_positive(body: type) -> None:
    chosen = body(5)
    chosen.setup(SHAPE, 0)
    assert chosen.down.shape == (8, 5)
    for wrong in (0, [8, -1], []):
        with pytest.raises(UserError, match=r"^ffn.hidden=.*: give a positive number, a list with"):
            body(wrong)


def test_widths_by_block() -> None:
    body = SquaredReLU([5, 7])
    body.setup(Shape(8, 2, 1), 1)
    assert body.down.shape == (8, 7)
    with pytest.raises(UserError, match=r"^ffn.hidden has 2 widths for 3 blocks: give one per"):
        SquaredReLU([5, 7]).setup(Shape(8, 3, 1), 0)
    with pytest.raises(UserError, match=r"^ffn.hidden=\[5, 7\] with ffn.reallocate: the list"):
        SquaredReLU([5, 7], reallocate=True)


@pytest.mark.parametrize(("hidden", "blocks"), [(64, 1), (64, 5), (1024, 4), (4096, 12), (16, 4)])
def test_rising_widths_keep_their_sum(hidden: int, blocks: int) -> None:
    widths = [rising(hidden, block, blocks) for block in range(blocks)]
    assert widths == sorted(widths)
    assert sum(widths) == pytest.approx(hidden * blocks, rel=0.05)
    if blocks > 1:
        assert widths[0] == pytest.approx(hidden / 2, rel=0.15)
        assert widths[-1] == pytest.approx(1.5 * hidden, rel=0.15)


def test_the_inner_norm_comes_before_the_output_map() -> None:
    body = SquaredReLU(inner_norm=True)
    body.setup(SHAPE, 0)
    for seed, target in enumerate(body.parameters()):
        target.data = random(*target.shape, seed=seed)
    x = random(2, 3, 8, seed=5)
    hidden = (x @ body.up.T).clamp_min(0).square()
    assert error(body(x), (rms_norm(hidden) * body.inner.gain) @ body.down.T) <= 1e-12


def test_randomise_leaves_no_zero() -> None:
    """What the property battery stands on."""
    body = SquaredReLU()
    body.setup(SHAPE, 0)
    body.down.data.zero_()
    body.up.data.zero_()
    randomise(body)
    assert body.down.ne(0).all() and body.up.ne(0).all()
