"""Attention against its equation written with loops, its buffers, and its refusals."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor

from lrt_kernels import Placement, place_heads
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape, rms_norm, rotary_table, rotate
from lrt_lab.mixers import Attention
from lrt_lab.mixers.attention import KeyValue
from lrt_lab.mixers.base import alone, notice
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import documents, randomise, tokens

WIDTH, LENGTH = 8, 7


def through(x: Tensor, k: Tensor, v: Tensor, place: Placement) -> tuple[Tensor, Tensor]:
    return place_heads(k, place), v


def mixer(**options) -> Attention:
    made = Attention(**{"heads": 2, **options})
    made.setup(Shape(WIDTH, 1, 1), 0)
    for target in made.parameters():
        target.data = torch.zeros(target.shape, dtype=torch.float64)
    randomise(made)
    return made


def random(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def by_hand(a: Attention, reads: tuple[Tensor, Tensor, Tensor], document: Tensor) -> Tensor:
    """One softmax at a time."""
    read_q, read_k, read_v = reads
    h = a.head_dim
    q = (read_q @ a.query.T).view(2, LENGTH, a.heads, h)
    k = (read_k @ a.key.T).view(2, LENGTH, a.kv_heads, h)
    v = (read_v @ a.value.T).view(2, LENGTH, a.kv_heads, h)
    if a.rotary_base:
        table = rotary_table(torch.arange(LENGTH), h, a.rotary_base, torch.float64)
        q, k = rotate(q, table), rotate(k, table)
    if a.qk_norm:
        q, k = rms_norm(q), rms_norm(k)
    y = torch.zeros_like(q)
    for row in range(2):
        for t in range(LENGTH):
            seen = [
                s
                for s in range(t + 1)
                if document[row, s] == document[row, t] and (a.window is None or t - s <= a.window)
            ]
            for head in range(a.heads):
                group = head // (a.heads // a.kv_heads)
                scores = torch.stack([q[row, t, head] @ k[row, s, group] for s in seen])
                weights = torch.softmax(scores / math.sqrt(h), dim=0)
                y[row, t, head] = sum(
                    w * v[row, s, group] for w, s in zip(weights, seen, strict=True)
                )
    return y.flatten(2) @ a.out.T


OPTIONS = {
    "plain": {},
    "grouped": {"kv_heads": 1},
    "four on two": {"heads": 4, "kv_heads": 2},
    "window": {"window": 2},
    "window 0": {"window": 0},
    "no norm": {"qk_norm": False},
    "no positions": {"rotary_base": 0.0},
    "other base": {"rotary_base": 50.0},
}


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_the_equation(name: str, packed: bool) -> None:
    attention = mixer(**OPTIONS[name])
    document = documents(3, 4) if packed else torch.zeros(2, LENGTH)
    at = Frame(tokens(LENGTH), document if packed else None).at(range(LENGTH), LENGTH)
    x = random(2, LENGTH, WIDTH)
    y, _ = attention(x, at, None, through)
    assert error(y, by_hand(attention, (x, x, x), document)) <= SAME


@torch.no_grad()
def test_three_reads() -> None:
    attention = mixer(kv_heads=1)
    at = Frame(tokens(LENGTH)).at(range(LENGTH), LENGTH)
    reads = tuple(random(2, LENGTH, WIDTH, seed=seed) for seed in range(3))
    y, _ = attention(reads, at, None, through)
    assert error(y, by_hand(attention, reads, torch.zeros(2, LENGTH))) <= SAME


@torch.no_grad()
def test_injection_comes_before_norm_and_rotation() -> None:
    """A key scaled by the route is the same key after QK-norm; a value is not."""
    attention, x = mixer(), random(2, LENGTH, WIDTH)
    at = Frame(tokens(LENGTH)).at(range(LENGTH), LENGTH)
    plain, _ = attention(x, at, None, through)
    keys, _ = attention(x, at, None, lambda x, k, v, place: through(x, 3 * k, v, place))
    values, _ = attention(x, at, None, lambda x, k, v, place: through(x, k, 3 * v, place))
    # Up to the eps in the norm.
    assert error(keys, plain) <= 1e-5
    assert error(values, 3 * plain) <= SAME


@torch.no_grad()
def test_the_port_sees_the_read_of_the_keys() -> None:
    attention = mixer(kv_heads=1)
    at = Frame(tokens(LENGTH)).at(range(LENGTH), LENGTH)
    reads = tuple(random(2, LENGTH, WIDTH, seed=seed) for seed in range(3))

    def port(x: Tensor, k: Tensor, v: Tensor, place: Placement) -> tuple[Tensor, Tensor]:
        assert torch.equal(x, reads[1])
        assert k.shape == v.shape == (2, LENGTH, 1, WIDTH // 2)
        return through(x, k, v, place)

    attention(reads, at, None, port)


@torch.no_grad()
def test_alone_is_a_window_of_nothing() -> None:
    plain, windowed = mixer(), mixer(window=0)
    at = Frame(tokens(LENGTH)).at(range(LENGTH), LENGTH)
    x = random(2, LENGTH, WIDTH)
    found = alone(plain, x, at, through)
    assert error(found, windowed(x, at, None, through)[0]) <= SAME
    assert error(found, plain(x, at, None, through)[0]) > DIFFERENT


@pytest.mark.parametrize("in_place", [False, True], ids=["values", "in place"])
@torch.no_grad()
def test_buffers_replace_and_append(in_place: bool) -> None:
    k, v = random(2, 4, 1, 2), random(2, 4, 1, 2, seed=1)
    buffer = KeyValue(k.clone(), v.clone(), in_place)
    fresh = random(2, 2, 1, 2, seed=2)
    replaced = buffer.write(range(1, 4, 2), fresh, -fresh)
    assert torch.equal(replaced.k[:, 1::2], fresh) and torch.equal(replaced.v[:, 1::2], -fresh)
    assert torch.equal(replaced.k[:, ::2], k[:, ::2]) and torch.equal(replaced.v[:, ::2], v[:, ::2])
    assert torch.equal(buffer.k, k) is not in_place
    longer = replaced.write(range(4, 6), fresh, -fresh)
    assert longer.k.shape[1] == (8 if in_place else 6)
    assert torch.equal(longer.k[:, :4], replaced.k) and torch.equal(longer.k[:, 4:6], fresh)
    assert torch.equal(longer.v[:, 4:6], -fresh)


def test_chosen_rows_are_independent() -> None:
    attention = mixer(kv_heads=1)
    buffer = attention.allocate(2, 3, torch.zeros(1, dtype=torch.float64))
    assert buffer.k.shape == (2, 3, 1, 4) and buffer.in_place
    assert buffer.k.dtype == torch.float64
    chosen = attention.select(buffer, torch.tensor([1, 1, 0]))
    chosen.k.add_(1)
    assert not buffer.k.any() and chosen.in_place and len(chosen.v) == 3


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(4, 3), (0, 1), (2, 0), (2, 4)], ids=lambda n: str(n)
)
def test_heads_must_divide(heads: int, kv_heads: int) -> None:
    line = f"^mixer heads={heads}, kv_heads={kv_heads}: both positive, kv_heads dividing heads$"
    with pytest.raises(UserError, match=line):
        Attention(heads=heads, kv_heads=kv_heads)


def test_a_window_cannot_be_negative() -> None:
    with pytest.raises(UserError, match=r"^mixer window=-1: it must be 0 or more, or null"):
        Attention(window=-1)


def test_a_window_longer_than_the_context_is_noticed_once(caplog) -> None:
    notice.cache_clear()
    at = Frame(tokens(LENGTH)).at(range(LENGTH), LENGTH)
    x, clamped = random(2, LENGTH, WIDTH), mixer(window=9)
    with caplog.at_level(logging.WARNING, logger="lrt_lab"):
        for _ in range(2):
            y, _ = clamped(x, at, None, through)
        mixer(window=LENGTH)(x, at, None, through)
    assert caplog.messages == ["mixer window=9 is longer than the context: clamped to 7"]
    assert error(y, mixer()(x, at, None, through)[0]) <= SAME


@pytest.mark.parametrize(("width", "heads"), [(8, 3), (6, 2), (8, 8)])
def test_heads_must_split_the_width_evenly(width: int, heads: int) -> None:
    with pytest.raises(UserError, match=f"^width {width} with {heads} heads: heads must divide"):
        Attention(heads=heads).kv(Shape(width, 1, 1))
