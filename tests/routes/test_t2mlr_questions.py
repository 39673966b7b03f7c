"""T2MLR on rows of question and answer: the recurrence can pass the question by."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.data.batch import ANSWER, PADDING, QUESTION, framed
from lrt_lab.frame import Frame
from lrt_lab.routes import T2MLR
from lrt_lab.schedules import Interleaved, Jacobi, MiddleJacobi
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import B, T, documents, exact, merged, run, small_decoder, tokens


def marked(*columns: int) -> Tensor:
    """A question at these columns of the first row, and one column later in the others."""
    question = torch.zeros(B, T, dtype=torch.bool)
    for row in range(B):
        question[row, [c + row for c in columns]] = True
    return question


#: A question first, and one in the middle, so that memory reaches a question and leaves one.
MIXED = (0, 1, 2, 6, 7)


@torch.no_grad()
def test_a_question_is_not_merged_and_leaves_the_raw_state() -> None:
    decoder, question = small_decoder(route=T2MLR(1, 2, questions=False)), marked(*MIXED)
    frame = Frame(tokens(), question=question)
    first = decoder.sweep(frame, frame.positions)
    memory = decoder.memory(first.carried, frame, frame.positions)
    out = decoder.sweep(frame, frame.positions, memory, save=[2, 6])
    below, above = (decoder.backbone.hidden(out.saved[unit], unit) for unit in (2, 6))
    route, at = decoder.route, decoder.view(frame, frame.positions, T)
    entered = route.enter(2, below, memory, at)
    here = question.unsqueeze(-1).expand_as(below)
    assert torch.equal(entered[here], below[here])
    assert torch.equal(entered[~here], route.merge(below, memory.value)[~here])
    assert torch.equal(out.carried[here], above[here])
    assert torch.equal(out.carried[~here], route.update(above, memory.value)[~here])


@torch.no_grad()
def test_a_row_that_is_all_question_is_the_plain_model() -> None:
    decoder = small_decoder(route=T2MLR(questions=False))
    frame = Frame(tokens(), question=torch.ones(B, T, dtype=torch.bool))
    plain = decoder.sweep(frame, frame.positions).hidden
    assert error(exact(decoder, frame), plain) <= SAME


@torch.no_grad()
def test_by_default_a_question_is_a_text_like_any_other() -> None:
    asked, ids = Frame(tokens(), question=marked(*MIXED)), Frame(tokens())
    default, other = small_decoder(route=T2MLR()), small_decoder(route=T2MLR(questions=False))
    assert torch.equal(exact(default, asked), exact(default, ids))
    assert torch.equal(exact(other, ids), exact(default, ids))
    assert error(exact(other, asked), exact(default, asked)) > DIFFERENT


@pytest.mark.parametrize(
    "schedule", [Jacobi(T + 1), MiddleJacobi(T), Interleaved(T)], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@torch.no_grad()
def test_schedules_reach_the_exact_recurrence(schedule, packed: bool) -> None:
    decoder = small_decoder(route=T2MLR(questions=False))
    document = documents(5, 7) if packed else None
    frame = Frame(tokens(), document, question=marked(*MIXED))
    assert error(merged(run(schedule, decoder, frame)), exact(decoder, frame)) <= SAME


@pytest.mark.parametrize("chunk", [1, 3, T])
@torch.no_grad()
def test_decoding_keeps_to_it_in_chunks_and_after_reordering(chunk: int) -> None:
    """A prompt is prefilled, rows are reordered, and what is generated names no question."""
    decoder, rows = small_decoder(route=T2MLR(questions=False)), torch.tensor([1, 0, 1])
    question = torch.zeros(B, T, dtype=torch.bool)
    question[0, :5], question[1, :7] = True, True
    frame = Frame(tokens(), question=question)
    cache, prompt = decoder.cache(B, 2), frame.head(7)
    for start in range(0, 7, chunk):
        cut = slice(start, min(start + chunk, 7))
        _, cache = decoder.step(Frame(prompt.ids[:, cut], question=question[:, cut]), cache)
    hidden, _ = decoder.step(Frame(frame.ids[rows, 7:]), decoder.select(cache, rows))
    assert error(hidden, exact(decoder, frame.select(rows))[:, 7:]) <= SAME


def test_labels_say_where_the_question_is() -> None:
    labels = torch.tensor([[PADDING, QUESTION, QUESTION, 1, 2, ANSWER]])
    frame, targets = framed({"tokens": torch.arange(6).unsqueeze(0), "labels": labels})
    assert frame.question.tolist() == [[True, True, True, False, False]]
    # The last of the question predicts the first step.
    assert targets.tolist() == [[-100, -100, 3, 4, 5]]
