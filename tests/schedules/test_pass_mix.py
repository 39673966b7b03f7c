"""PassMix: how often it draws how many passes, its weights, its jitter and its plain prefixes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import FullBandwidth
from lrt_lab.schedules import Clock, Jacobi, Pass, PassMix
from lrt_lab.schedules.pass_mix import beyond_prefix
from tests.support.models import documents, run, small_decoder, tokens
from tests.support.registry import RECURRENT, Case


def drawn(schedule: PassMix, decoder: Decoder, frame: Frame, step: int = 0) -> list[Pass]:
    with torch.no_grad():
        return list(schedule.passes(decoder.train(), frame, Clock(step)))


def fed(decoder: Decoder, frame: Frame, carried: Tensor, keep: Tensor) -> Tensor:
    memory = decoder.memory(carried, frame, frame.positions, keep)
    return decoder.sweep(frame, frame.positions, memory).hidden


def test_pass_counts_are_drawn_as_often_as_they_should() -> None:
    counts = Counter(PassMix().count(Clock(step)) for step in range(4000))
    for passes, share in ((1, 0.75), (2, 0.22), (3, 0.03)):
        # Four standard deviations.
        assert abs(counts[passes] / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5


def test_a_step_and_microbatch_always_draw_the_same() -> None:
    schedule, clocks = PassMix([1, 1, 1]), [Clock(s, m) for s in range(20) for m in range(2)]
    first = [schedule.count(clock) for clock in clocks]
    assert first == [PassMix([1, 1, 1]).count(clock) for clock in clocks]
    assert first[::2] != first[1::2]


def test_weights() -> None:
    assert PassMix().weights(1) == [1]
    # The published objective: a batch with feedback weighs twice as much.
    assert PassMix().weights(3) == [1, 0.5, 0.5]
    assert PassMix(feedback_weight=3).weights(2) == [1, 3]
    assert PassMix(normalize=True).weights(3) == [0.5, 0.25, 0.25]


def test_evaluation_draws_nothing() -> None:
    decoder, frame = small_decoder(route=FullBandwidth()), Frame(tokens())
    with torch.no_grad():
        for ours, theirs in zip(
            run(PassMix(), decoder, frame), run(Jacobi(3), decoder, frame), strict=True
        ):
            assert torch.equal(ours.hidden, theirs.hidden)


def test_jitter_is_new_in_every_pass_and_leaves_the_first_alone() -> None:
    decoder, frame = small_decoder(route=FullBandwidth()), Frame(tokens())
    noises: list[Tensor] = []
    memory = decoder.memory

    def noted(carried: Tensor, *rest):
        noises.append(carried - before[-1])
        return memory(carried, *rest)

    before: list[Tensor] = []
    sweep = decoder.sweep

    def kept(*args, **options):
        out = sweep(*args, **options)
        before.append(out.carried)
        return out

    decoder.memory, decoder.sweep = noted, kept  # type: ignore[method-assign]
    schedule = PassMix([0, 0, 1], jitter=0.5, prefixes=False)
    first, *_ = drawn(schedule, decoder, frame)
    one, two = noises
    assert one.abs().max() <= 0.5 and 0.2 < one.std() < 0.4 and not torch.allclose(one, two)
    again = drawn(schedule, decoder, frame, step=1)
    assert torch.equal(again[0].hidden, first.hidden)
    assert not torch.allclose(noises[2], one)
    # The passes of one step are the same however often they are run.
    drawn(schedule, decoder, frame, step=1)
    assert torch.equal(noises[4], noises[2])


def test_prefixes_cover_one_to_all_positions_of_each_document() -> None:
    frame, clock = Frame(tokens(), documents(5, 1, 6)), Clock()
    seen = set()
    for step in range(200):
        keep = beyond_prefix(frame, torch.Generator().manual_seed(step))
        assert not keep[:, [0, 5, 6]].any()
        for part in keep.split([5, 1, 6], dim=1):
            # Plain first, then all with memory.
            assert torch.equal(part.long(), part.long().cummax(dim=1).values)
        seen |= {tuple(row.long().sum().item() for row in r.split([5, 1, 6])) for r in keep}
    assert clock.microbatch == 0
    assert {a for a, *_ in seen} == set(range(5)) and {c for *_, c in seen} == set(range(6))


@torch.no_grad()
def test_prefixes_are_plain_and_what_follows_hears_the_last_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, frame = small_decoder(route=FullBandwidth()), Frame(tokens())
    keep = torch.zeros_like(frame.ids, dtype=torch.bool)
    keep[:, 4:] = True
    monkeypatch.setattr("lrt_lab.schedules.pass_mix.beyond_prefix", lambda *_: keep)
    plain, second, third = drawn(PassMix([0, 0, 1], jitter=0.0), decoder, frame)
    assert torch.equal(third.hidden[:, :4], plain.hidden[:, :4])
    assert not torch.allclose(second.hidden[:, 4], plain.hidden[:, 4])
    assert torch.equal(third.hidden, fed(decoder, frame, second.hidden, keep))


@pytest.mark.parametrize("route", RECURRENT, ids=str)
def test_noise_and_prefixes_tell_nothing_of_later_tokens(route: Case) -> None:
    decoder, document = small_decoder(route=route()), documents(3, 9)
    ids, changed = tokens(), tokens()
    changed[:, 7] = (changed[:, 7] + 1) % decoder.shape.vocab
    schedule = PassMix([0, 0, 1], jitter=0.5)
    for step in range(3):
        passes = [drawn(schedule, decoder, Frame(i, document), step) for i in (ids, changed)]
        for one, other in zip(*passes, strict=True):
            assert torch.equal(one.hidden[:, :7], other.hidden[:, :7]), one.name
            assert not torch.equal(one.hidden[:, 7], other.hidden[:, 7]), one.name


def test_cost() -> None:
    assert PassMix().cost(100, small_decoder()) == pytest.approx(128)


@pytest.mark.parametrize("shares", [[], [0, 0], [1, -1]], ids=str)
def test_shares_are_refused(shares: list[float]) -> None:
    with pytest.raises(UserError, match=r"^schedule.shares=\[.*\]: give one number per pass count"):
        PassMix(shares)


@pytest.mark.parametrize("option", ["feedback_weight", "jitter"])
def test_negative_options_are_refused(option: str) -> None:
    with pytest.raises(UserError, match=rf"^schedule.{option}=-1: it cannot be negative$"):
        PassMix(**{option: -1})
