"""Options of Jacobi: drawn pass counts, damping, truncated gradients."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT
from lrt_lab.schedules import Clock, Jacobi
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import exact, run, small_decoder, tokens


def test_drawn_counts_leave_none_out() -> None:
    schedule = Jacobi(5, fewest=2)
    drawn = Counter(len(schedule.drawn(Clock(step))) for step in range(2000))
    assert set(drawn) == {2, 3, 4, 5}
    assert all(400 < count < 600 for count in drawn.values())
    assert schedule.cost(10, small_decoder()) == 35


def test_fewer_passes_keep_the_last_weights() -> None:
    schedule = Jacobi(4, [1, 1, 2, 6], fewest=1)
    for step in range(20):
        weights = schedule.drawn(Clock(step))
        relative = [1, 1, 2, 6][-len(weights) :]
        assert weights == pytest.approx([w / sum(relative) for w in relative])


def test_evaluation_runs_them_all() -> None:
    decoder, frame = small_decoder(route=LRT()), Frame(tokens())
    with torch.no_grad():
        assert len(run(Jacobi(4, fewest=1), decoder, frame)) == 4
        assert len(list(Jacobi(4, fewest=1).passes(decoder.train(), frame, Clock(1)))) < 4


@torch.no_grad()
def test_damping_by_hand() -> None:
    decoder, frame = small_decoder(route=LRT()), Frame(tokens())
    everything = frame.positions
    first = decoder.sweep(frame, everything)
    second = decoder.sweep(frame, everything, decoder.memory(first.carried, frame, everything))
    fed = 0.25 * first.carried + 0.75 * second.carried
    third = decoder.sweep(frame, everything, decoder.memory(fed, frame, everything))
    assert error(run(Jacobi(3, damping=0.25), decoder, frame)[2].hidden, third.hidden) <= SAME


@torch.no_grad()
def test_damping_keeps_the_fixed_point_and_takes_longer_to_reach_it() -> None:
    decoder, frame = small_decoder(route=LRT(), routing=0.2), Frame(tokens())
    truth = exact(decoder, frame)
    passes = run(Jacobi(60, damping=0.25), decoder, frame)
    assert error(passes[12].hidden, truth) > 0
    assert error(passes[-1].hidden, truth) <= SAME
    assert error(passes[12].hidden, run(Jacobi(13), decoder, frame)[-1].hidden) > 1e-14


def test_detaching_cuts_every_feedback_edge() -> None:
    """The last pass alone then teaches as if its memory were data."""
    gradients = []
    for schedule in (Jacobi(3, [0, 0, 1], backward=0), Jacobi(3, [0, 0, 1])):
        decoder, frame = small_decoder(route=LRT()), Frame(tokens())
        run(schedule, decoder, frame)[-1].hidden.square().sum().backward()
        gradients.append(decoder.embedding.grad)
    decoder = small_decoder(route=LRT())
    with torch.no_grad():
        second = decoder.memory(
            decoder.sweep(frame, frame.positions).carried, frame, frame.positions
        )
        carried = decoder.sweep(frame, frame.positions, second).carried
    memory = decoder.memory(carried, frame, frame.positions)
    decoder.sweep(frame, frame.positions, memory).hidden.square().sum().backward()
    assert error(gradients[0], decoder.embedding.grad) <= SAME
    assert error(gradients[0], gradients[1]) > DIFFERENT


@pytest.mark.parametrize("backward", [0, 1, 2, 3, None])
def test_gradients_cross_the_last_feedback_edges_only(backward: int | None) -> None:
    """With the last pass alone scored, what left pass p learns within ``backward`` edges of it."""
    decoder, frame = small_decoder(route=LRT()), Frame(tokens())
    left, sweep = [], decoder.sweep

    def noting(*args, **options):
        out = sweep(*args, **options)
        out.carried.retain_grad()
        left.append(out.carried)
        return out

    decoder.sweep = noting
    run(Jacobi(4, [0, 0, 0, 1], backward=backward), decoder, frame)[-1].hidden.sum().backward()
    learns = [carried.grad is not None and bool(carried.grad.any()) for carried in left[:3]]
    assert learns == [edges <= (3 if backward is None else backward) for edges in (3, 2, 1)]


def test_no_fewer_edges_than_none() -> None:
    line = r"^schedule.backward=-1: give 0 or more, or null for all edges$"
    with pytest.raises(UserError, match=line):
        Jacobi(2, backward=-1)


@pytest.mark.parametrize("fewest", [0, 3])
def test_fewest_is_one_of_the_counts(fewest: int) -> None:
    line = rf"^schedule.fewest={fewest}: give 1 to 2 passes, or null$"
    with pytest.raises(UserError, match=line):
        Jacobi(2, fewest=fewest)


def test_fewest_passes_need_a_weight() -> None:
    with pytest.raises(UserError, match=r"^schedule.weights=\[1, 0, 0\]: the last 2 cannot all be"):
        Jacobi(3, [1, 0, 0], fewest=2)


@pytest.mark.parametrize("damping", [-0.1, 1.0])
def test_damping_is_a_share(damping: float) -> None:
    with pytest.raises(UserError, match=rf"^schedule.damping={damping}: give 0 \(none\) or more"):
        Jacobi(2, damping=damping)
