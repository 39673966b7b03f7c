"""Decoding with a cache against the exact recurrence over the whole row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Cache, Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import B, T, documents, exact, small_decoder, tokens
from tests.support.registry import ROUTES, Case, each_far_pair, each_near_pair

GRADIENTS = {"in place": False, "values": True}


def columns(frame: Frame, start: int, stop: int) -> Frame:
    cut = [None if f is None else f[:, start:stop] for f in vars(frame).values()]
    return Frame(*cut)


def decode(decoder: Decoder, frame: Frame, chunk: int, cache: Cache) -> tuple[Tensor, Cache]:
    """Decode what the cache lacks of a frame, so many columns at a time."""
    hidden = []
    for start in range(cache.length, frame.length, chunk):
        new, cache = decoder.step(columns(frame, start, start + chunk), cache)
        hidden.append(new)
    return torch.cat(hidden, dim=1), cache


@pytest.mark.parametrize(
    ("chunk", "gradients"),
    [(1, "in place"), (3, "in place"), (T, "in place"), (3, "values")],
    ids=lambda given: str(given),
)
@each_near_pair
def test_chunks_equal_the_whole(backbone: Case, route: Case, chunk: int, gradients: str) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    with torch.set_grad_enabled(GRADIENTS[gradients]):
        # Room for two positions: the buffers have to grow on the way.
        hidden, cache = decode(decoder, frame, chunk, decoder.cache(B, 2))
    assert cache.length == T
    assert error(hidden, exact(decoder, frame)) <= SAME


@each_far_pair
def test_chunks_equal_the_whole_everywhere(backbone: Case, route: Case) -> None:
    test_chunks_equal_the_whole(backbone, route, 3, "in place")


@pytest.mark.parametrize("gradients", GRADIENTS)
@each_near_pair
def test_rows_can_be_reordered_and_repeated(backbone: Case, route: Case, gradients: str) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens(), documents(3, 4, 5))
    rows = torch.tensor([1, 0, 1])
    with torch.set_grad_enabled(GRADIENTS[gradients]):
        _, before = decode(decoder, frame.head(5), 1, decoder.cache(B, T))
        chosen = decoder.select(before, rows)
        # The old cache goes on with other tokens: the chosen rows must not notice.
        decode(decoder, Frame(tokens(seed=9), frame.document), 1, before)
        hidden, _ = decode(decoder, frame.select(rows), 1, chosen)
    assert error(hidden, exact(decoder, frame.select(rows))[:, 5:]) <= SAME


@pytest.mark.parametrize(
    ("gradients", "capacity"),
    [(False, T), (False, 4), (True, T)],
    ids=["room", "growing", "values"],
)
@each_near_pair
def test_an_earlier_cache_can_be_gone_back_to(
    backbone: Case, route: Case, capacity: int, gradients: bool
) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens(9))
    other = Frame(torch.cat([frame.ids[:, :4], tokens(9, seed=9)[:, 4:]], dim=1))
    with torch.set_grad_enabled(gradients):
        _, early = decode(decoder, frame.head(4), 4, decoder.cache(B, capacity))
        wrong, _ = decode(decoder, other, 3, early)
        right, _ = decode(decoder, frame, 3, early)
    assert error(right, exact(decoder, frame)[:, 4:]) <= SAME
    assert error(wrong, exact(decoder, other)[:, 4:]) <= SAME
    assert error(right, wrong) > DIFFERENT


@pytest.mark.parametrize("route", ROUTES, ids=str)
@torch.no_grad()
def test_a_prefill_may_have_any_length(route: Case) -> None:
    decoder, frame = small_decoder(route=route()), Frame(tokens(7), documents(3, 4))
    truth = exact(decoder, frame)
    for prefill in range(1, 8):
        _, cache = decode(decoder, frame.head(prefill), prefill, decoder.cache(B, 2))
        if prefill < 7:
            hidden, _ = decode(decoder, frame, 1, cache)
            assert error(hidden, truth[:, prefill:]) <= SAME


@pytest.mark.parametrize("route", ROUTES, ids=str)
@torch.no_grad()
def test_a_batch_is_its_rows(route: Case) -> None:
    mixed = torch.cat([documents(5, 7, rows=1), documents(2, 1, 9, rows=1)])
    decoder, frame = small_decoder(route=route()), Frame(tokens(), mixed)
    hidden, _ = decode(decoder, frame, 1, decoder.cache(B, T))
    alone = [exact(decoder, frame.select(torch.tensor([row]))) for row in range(B)]
    assert error(hidden, torch.cat(alone)) <= SAME


@each_near_pair
@torch.no_grad()
def test_a_token_takes_one_traversal_and_leaves_a_state_of_one_size(
    backbone: Case, route: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, frame, evaluate = small_decoder(backbone(), route()), Frame(tokens()), Decoder.evaluate
    evaluated: list[tuple[int, range]] = []

    def noted(self: Decoder, unit: int, reads, at, *rest):
        evaluated.append((unit, at.positions))
        return evaluate(self, unit, reads, at, *rest)

    monkeypatch.setattr(Decoder, "evaluate", noted)
    cache = decoder.cache(B, T)
    for t in range(4):
        evaluated.clear()
        _, cache = decoder.step(columns(frame, t, t + 1), cache)
        units = [(unit, range(t, t + 1)) for unit in range(decoder.shape.units)]
        assert evaluated == units * route().traits.loops
        # What is kept beside the keys and values: some vectors of one position.
        if route().traits.fed:
            assert cache.carried.shape == (B, 1, *decoder.route.carries)
            assert decoder.route.carries[-1] == decoder.shape.width
        else:
            assert cache.carried is None


@each_near_pair
def test_windows_forget(backbone: Case, route: Case) -> None:
    mixer = Attention(heads=2, kv_heads=1, window=2)
    decoder, frame = small_decoder(backbone(), route(), mixer=mixer), Frame(tokens())
    with torch.no_grad():
        hidden, _ = decode(decoder, frame, 1, decoder.cache(B, T))
    assert error(hidden, exact(decoder, frame)) <= SAME


def test_columns_without_documents_continue_the_last_one() -> None:
    """A prompt of packed documents, then plain generation."""
    decoder, frame = small_decoder(), Frame(tokens(), documents(3, 9))
    with torch.no_grad():
        _, cache = decode(decoder, frame.head(6), 6, decoder.cache(B, T))
        hidden, _ = decoder.step(Frame(frame.ids[:, 6:]), cache)
    assert error(hidden, exact(decoder, frame)[:, 6:]) <= SAME
