"""Interleaved subsets: their two limits, and exactly how far they are exact in between."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.frame import Frame
from lrt_lab.schedules import Interleaved, Jacobi
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import T, exact, merged, run, small_decoder, tokens
from tests.support.registry import Case, each_near_pair, each_recurrent_pair


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@each_near_pair
def test_as_many_subsets_as_positions_are_the_exact_recurrence(backbone: Case, route: Case) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    assert error(merged(run(Interleaved(T), decoder, frame)), exact(decoder, frame)) <= SAME


@each_near_pair
def test_one_subset_is_one_jacobi_refinement(backbone: Case, route: Case) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    interleaved, jacobi = run(Interleaved(1), decoder, frame), run(Jacobi(2), decoder, frame)
    for ours, theirs in zip(interleaved, jacobi, strict=True):
        assert error(ours.hidden, theirs.hidden) <= SAME


@pytest.mark.parametrize("subsets", [1, 2, 5, T - 1])
@each_recurrent_pair
def test_the_first_subsets_minus_one_positions_are_exact_and_no_more(
    backbone: Case, route: Case, subsets: int
) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    last = max(1 - route().traits.offset, subsets - 1)
    state, truth = merged(run(Interleaved(subsets), decoder, frame)), exact(decoder, frame)
    assert error(state[:, : last + 1], truth[:, : last + 1]) <= SAME
    for position in range(last + 1, T):
        assert error(state[:, position], truth[:, position]) > DIFFERENT


@pytest.mark.parametrize("subsets", [2, 5])
@each_recurrent_pair
def test_a_subset_sees_the_subsets_before_it_in_the_same_round(
    backbone: Case, route: Case, subsets: int
) -> None:
    """Reversing who refines first changes everything that a later subset leaves behind."""
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    passes = run(Interleaved(subsets), decoder, frame)
    first = run(Jacobi(2), decoder, frame)[1].hidden
    # Position 0 has nothing before it: there the two agree.
    assert error(passes[1].hidden[:, :1], first[:, :1]) <= SAME
    for later in passes[2:]:
        stale = first[:, list(later.positions)]
        assert error(later.hidden[:, 1:], stale[:, 1:]) > DIFFERENT
