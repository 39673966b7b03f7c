"""Coconut on every backbone: silent positions in a row, between tokens, ragged, packed, decoded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import Coconut
from lrt_lab.schedules import Curriculum, Interleaved, Jacobi, SinglePass
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import B, T, documents, exact, run, small_decoder, tokens
from tests.support.registry import BACKBONES, Case, plain

each_backbone = pytest.mark.parametrize("backbone", [b for b in BACKBONES if plain(b)], ids=str)
ROW = {"in a row": [4, 5, 6], "apart": [2, 5, 6, 10], "at the end": [T - 1], "none": []}


def silent(*columns: int, rows: int = B) -> Tensor:
    mask = torch.zeros(rows, T, dtype=torch.bool)
    mask[:, list(columns)] = True
    return mask


@pytest.mark.parametrize("columns", ROW)
@each_backbone
@torch.no_grad()
def test_the_curriculum_is_the_exact_recurrence(backbone: Case, columns: str) -> None:
    decoder = small_decoder(backbone(), Coconut())
    frame = Frame(tokens(), documents(1, 8, 3), silent=silent(*ROW[columns]))
    truth = exact(decoder, frame)
    assert error(run(Curriculum(), decoder, frame)[0].hidden, truth) <= SAME
    # As many feedback passes as silent positions follow one another.
    assert error(run(Jacobi(len(ROW[columns]) + 1), decoder, frame)[-1].hidden, truth) <= SAME
    if columns == "none":
        assert error(run(SinglePass(), decoder, frame)[0].hidden, truth) <= SAME


@pytest.mark.parametrize("columns", ROW)
def test_one_sweep_more_than_silent_positions(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[int] = []
    sweep = Decoder.sweep

    def counted(self: Decoder, frame: Frame, positions: range, *args, **options):
        evaluated.extend(positions)
        calls.append(positions)
        return sweep(self, frame, positions, *args, **options)

    calls: list[range] = []
    monkeypatch.setattr(Decoder, "sweep", counted)
    run(Curriculum(), small_decoder(route=Coconut()), Frame(tokens(), silent=silent(*ROW[columns])))
    assert len(calls) == len(ROW[columns]) + 1
    assert evaluated == list(range(T))


@each_backbone
@torch.no_grad()
def test_a_ragged_batch_is_its_rows(backbone: Case) -> None:
    decoder = small_decoder(backbone(), Coconut())
    frame = Frame(tokens(), silent=torch.cat([silent(3, 4, 5, rows=1), silent(4, 9, rows=1)]))
    (both,) = run(Curriculum(), decoder, frame)
    alone = [
        run(Curriculum(), decoder, frame.select(torch.tensor([row])))[0].hidden for row in range(B)
    ]
    assert error(both.hidden, torch.cat(alone)) <= SAME


@each_backbone
@torch.no_grad()
def test_silent_positions_are_decoded_and_gone_back_to(backbone: Case) -> None:
    decoder, mask = small_decoder(backbone(), Coconut()), silent(4, 5, 9)
    frame = Frame(tokens(), silent=mask)
    truth, hidden, cache = exact(decoder, frame), [], decoder.cache(B, 3)
    caches = []
    for t in range(T):
        column = Frame(frame.ids[:, t : t + 1], silent=mask[:, t : t + 1])
        new, cache = decoder.step(column, cache)
        hidden.append(new)
        caches.append(cache)
    assert error(torch.cat(hidden, dim=1), truth) <= SAME
    again, _ = decoder.step(Frame(frame.ids[:, 5:], silent=mask[:, 5:]), caches[4])
    assert error(again, truth[:, 5:]) <= SAME


@each_backbone
@torch.no_grad()
def test_rows_are_reordered_between_silent_positions(backbone: Case) -> None:
    decoder, rows = small_decoder(backbone(), Coconut()), torch.tensor([1, 0, 1])
    frame = Frame(tokens(), silent=torch.cat([silent(3, 4, 5, 6, rows=1), silent(5, 9, rows=1)]))
    _, cache = decoder.step(frame.head(5), decoder.cache(B, T))
    chosen = frame.select(rows)
    rest = Frame(chosen.ids[:, 5:], silent=chosen.silent[:, 5:])
    hidden, _ = decoder.step(rest, decoder.select(cache, rows))
    assert error(hidden, exact(decoder, chosen)[:, 5:]) <= SAME


@torch.no_grad()
def test_the_token_of_a_silent_position_is_not_heard() -> None:
    decoder, ids = small_decoder(route=Coconut()), tokens()
    frame = Frame(ids, silent=silent(4, 5))
    other = ids.clone()
    other[:, 4:6] = (other[:, 4:6] + 1) % decoder.shape.vocab
    (one,), (two,) = (
        run(Curriculum(), decoder, Frame(i, silent=frame.silent)) for i in (ids, other)
    )
    assert torch.equal(one.hidden, two.hidden)


def test_gradients_reach_the_question_through_silent_positions() -> None:
    """Attention confined to its own position leaves the silent positions as the only way."""
    decoder, ids = small_decoder(route=Coconut()), torch.arange(B * T).view(B, T)
    decoder.attend = "own"
    (only,) = run(Curriculum(), decoder, Frame(ids, silent=silent(4, 5, 6)))
    only.hidden[:, 6].square().sum().backward()
    heard = decoder.embedding.grad[: B * T].ne(0).any(-1).view(B, T)
    assert heard.tolist() == [[t == 3 for t in range(T)]] * B


@torch.no_grad()
def test_a_silent_document_start_keeps_its_token() -> None:
    decoder = small_decoder(route=Coconut())
    frame = Frame(tokens(), documents(5, 7), silent=silent(5, 6))
    loud = Frame(frame.ids, frame.document, silent=silent(6))
    assert torch.equal(exact(decoder, frame), exact(decoder, loud))
    assert error(exact(decoder, frame), exact(decoder, Frame(tokens(), documents(5, 7)))) > 1e-3


@torch.no_grad()
def test_interleaving_resolves_silent_positions_too() -> None:
    decoder, frame = small_decoder(route=Coconut()), Frame(tokens(), silent=silent(4, 5, 6))
    state = run(Interleaved(T), decoder, frame)[-1].hidden
    assert error(state, exact(decoder, frame)[:, -1:]) <= SAME
    one = run(Jacobi(2), decoder, frame)[-1].hidden
    assert error(one, exact(decoder, frame)) > DIFFERENT
