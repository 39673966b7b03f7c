"""Jacobi passes against the exact recurrence: where they arrive, and that no pass does earlier."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Jacobi
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import T, documents, exact, run, small_decoder, tokens
from tests.support.registry import Case, each_far_pair, each_near_pair, each_recurrent_pair

MIXERS = {
    "full": Attention(heads=2, kv_heads=1),
    "windowed": Attention(heads=2, kv_heads=2, window=3),
    "unplaced": Attention(heads=2, kv_heads=1, rotary_base=0.0, qk_norm=False),
}


def passes(decoder: Decoder, frame: Frame, count: int) -> list[Tensor]:
    with torch.no_grad():
        return [p.hidden for p in run(Jacobi(count), decoder, frame)]


@pytest.mark.parametrize("mixer", MIXERS)
@each_near_pair
def test_enough_passes_reach_the_exact_recurrence(backbone: Case, route: Case, mixer: str) -> None:
    decoder = small_decoder(backbone(), route(), mixer=MIXERS[mixer])
    feedback = route().traits.feedback(T)
    frame = Frame(tokens())
    assert error(passes(decoder, frame, feedback + 1)[-1], exact(decoder, frame)) <= SAME


@each_far_pair
def test_enough_passes_reach_the_exact_recurrence_everywhere(backbone: Case, route: Case) -> None:
    test_enough_passes_reach_the_exact_recurrence(backbone, route, "full")


@each_recurrent_pair
def test_each_pass_makes_one_more_position_exact(backbone: Case, route: Case) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    truth, offset = exact(decoder, frame), route().traits.offset
    for feedback, hidden in enumerate(passes(decoder, frame, T + offset)):
        reached = max(0, feedback + 1 - offset)
        assert error(hidden[:, :reached], truth[:, :reached]) <= SAME
        if reached < T:
            for row in range(len(truth)):
                assert error(hidden[row, reached], truth[row, reached]) > SAME


@each_recurrent_pair
def test_the_longest_document_decides_how_many_passes_are_enough(
    backbone: Case, route: Case
) -> None:
    decoder = small_decoder(backbone(), route())
    frame = Frame(tokens(), documents(3, 4, 1, 4))
    enough = 4 + route().traits.offset
    hidden, truth = passes(decoder, frame, enough), exact(decoder, frame)
    assert error(hidden[-1], truth) <= SAME
    assert error(hidden[-2], truth) > DIFFERENT
