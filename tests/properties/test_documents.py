"""Packed documents equal separate ones, and each kind of reset is a choice of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Interleaved, Jacobi, SinglePass
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import (
    B,
    T,
    documents,
    exact,
    merged,
    run,
    small_decoder,
    tokens,
)
from tests.support.registry import (
    BACKBONES,
    RECURRENT,
    Case,
    each_near_pair,
    each_pair,
    each_recurrent_pair,
    each_trial,
)

# A multiple of every schedule's number of subsets, which are counted from the row's start.
CUT = 6
PACKED = documents(CUT, T - CUT)
RESTARTED = torch.cat([torch.arange(CUT), torch.arange(T - CUT)]).expand(B, -1)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def apart(ids: Tensor) -> tuple[Frame, Frame]:
    return Frame(ids[:, :CUT]), Frame(ids[:, CUT:])


def last(decoder: Decoder, frame: Frame) -> Tensor:
    return run(Jacobi(4), decoder, frame)[-1].hidden


@pytest.mark.parametrize("position", [None, RESTARTED], ids=["column", "restarted"])
@each_trial
def test_packed_equals_separate_in_every_pass(
    backbone: Case, route: Case, schedule: Case, position: Tensor | None
) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    packed = run(schedule(), decoder, Frame(ids, PACKED, position=position))
    first, second = (run(schedule(), decoder, frame) for frame in apart(ids))
    for both, one, two in zip(packed, first, second, strict=True):
        assert error(both.hidden, torch.cat([one.hidden, two.hidden], dim=1)) <= SAME


@pytest.mark.parametrize(
    ("lengths", "window"), [((1, 1, 3, 1, 6), None), ((5, 6, 1), 2)], ids=["full", "windowed"]
)
@each_pair
def test_documents_may_start_anywhere_under_jacobi(
    backbone: Case, route: Case, lengths: tuple[int, ...], window: int | None
) -> None:
    mixer = Attention(heads=2, kv_heads=1, window=window)
    decoder, ids = small_decoder(backbone(), route(), mixer=mixer), tokens()
    parts = [last(decoder, Frame(part)) for part in ids.split(lengths, dim=1)]
    frame = Frame(ids, documents(*lengths))
    assert error(last(decoder, frame), torch.cat(parts, dim=1)) <= SAME


@each_near_pair
def test_rows_may_be_packed_differently(backbone: Case, route: Case) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    mixed = Frame(ids, torch.cat([documents(5, 7, rows=1), documents(2, 1, 9, rows=1)]))
    alone = [last(decoder, mixed.select(torch.tensor([row]))) for row in range(B)]
    assert error(last(decoder, mixed), torch.cat(alone)) <= SAME


@pytest.mark.parametrize("subsets", [4, 5])
@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_interleaving_counts_from_the_start_of_the_row(backbone: Case, subsets: int) -> None:
    """A document that starts elsewhere is refined in another order; its initializer pass is not."""
    decoder, ids = small_decoder(backbone(), RECURRENT[0]()), tokens()
    packed = run(Interleaved(subsets), decoder, Frame(ids, PACKED))
    alone = run(Interleaved(subsets), decoder, Frame(ids[:, CUT:]))
    assert error(packed[0].hidden[:, CUT:], alone[0].hidden) <= SAME
    assert error(merged(packed)[:, CUT:], merged(alone)) > DIFFERENT


@pytest.mark.parametrize(
    ("position", "chunk"), [(None, 5), (RESTARTED, 1)], ids=["column", "restarted"]
)
@each_near_pair
def test_packed_equals_separate_in_decoding(
    backbone: Case, route: Case, position: Tensor | None, chunk: int
) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    cache, hidden = decoder.cache(B, T), []
    for start in range(0, T, chunk):
        cut = slice(start, start + chunk)
        where = None if position is None else position[:, cut]
        new, cache = decoder.step(Frame(ids[:, cut], PACKED[:, cut], position=where), cache)
        hidden.append(new)
    separate = torch.cat([exact(decoder, frame) for frame in apart(ids)], dim=1)
    assert error(torch.cat(hidden, dim=1), separate) <= SAME


@each_recurrent_pair
def test_the_memory_reset_is_a_choice_of_its_own(backbone: Case, route: Case) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    together = torch.zeros_like(ids)
    reset = last(decoder, Frame(ids, PACKED))
    kept = last(decoder, Frame(ids, PACKED, memory_document=together))
    assert error(kept[:, :CUT], reset[:, :CUT]) <= SAME
    for t in range(CUT, CUT + 4):
        assert error(kept[:, t], reset[:, t]) > DIFFERENT
    # Without tokens to attend to, only the memory can tell packed documents apart.
    decoder.attend = "own"
    separate = torch.cat([last(decoder, frame) for frame in apart(ids)], dim=1)
    assert error(last(decoder, Frame(ids, memory_document=PACKED)), separate) <= SAME
    assert error(last(decoder, Frame(ids)), separate) > DIFFERENT


@each_recurrent_pair
def test_the_memory_reset_is_a_choice_in_decoding_too(backbone: Case, route: Case) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    together = torch.zeros_like(ids)
    reset = exact(decoder, Frame(ids, PACKED))
    kept = exact(decoder, Frame(ids, PACKED, memory_document=together))
    assert error(kept[:, :CUT], reset[:, :CUT]) <= SAME
    assert error(kept[:, CUT], reset[:, CUT]) > DIFFERENT


@each_near_pair
def test_attention_and_position_resets_are_choices_too(backbone: Case, route: Case) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    reset = last(decoder, Frame(ids, PACKED))
    crossing = last(decoder, Frame(ids, memory_document=PACKED))
    assert error(crossing[:, :CUT], reset[:, :CUT]) <= SAME
    assert error(crossing[:, CUT], reset[:, CUT]) > DIFFERENT
    # Rotary positions only matter where a query can see across the restart.
    restarted = last(decoder, Frame(ids, memory_document=PACKED, position=RESTARTED))
    assert error(restarted[:, :CUT], crossing[:, :CUT]) <= SAME
    assert error(restarted[:, CUT:], crossing[:, CUT:]) > DIFFERENT


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_whole_rows_need_no_mask(backbone: Case) -> None:
    decoder, ids = small_decoder(backbone()), tokens()
    whole = Frame.packed(ids, torch.full_like(ids, 3))
    assert whole.document is None
    masked = run(SinglePass(), decoder, Frame(ids, torch.full_like(ids, 3)))[0].hidden
    assert error(run(SinglePass(), decoder, whole)[0].hidden, masked) <= SAME
