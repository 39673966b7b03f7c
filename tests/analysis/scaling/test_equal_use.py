"""Two models at one price of an output token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import (
    Deployment,
    equal_use,
    fit,
    law,
    proportional,
    resample,
    sampled,
)
from lrt_lab.errors import UserError
from tests.analysis.scaling.grids import TRUTH, grid

BASE = Deployment("baseline", 0, 1, 1.0, proportional(6), proportional(2), proportional(2))
THREE = Deployment("3 passes", 0, 3, 1.0, proportional(18), proportional(6), proportional(2), 3)


@pytest.fixture(scope="module")
def draws():
    found = law("iso-recurrence")
    given = grid(found, {"phi": 0.46}, passes=(1, 2, 3, 4))
    return resample(fit(found, given), generator(1, "equal use"), 5)


def loss(size: float, tokens: float, passes: float = 1.0) -> float:
    n = size * passes**0.46
    return TRUTH["E"] + TRUTH["A"] / n ** TRUTH["alpha"] + TRUTH["B"] / tokens ** TRUTH["beta"]


def test_sizes_follow_from_the_price_and_data_from_the_budget(draws) -> None:
    found = equal_use(draws, BASE, [THREE], [4e7, 1.6e8], 1e18)
    for i, size in enumerate((2e7, 8e7)):
        base, other = loss(size, 1e18 / 6 / size), loss(size, 1e18 / 18 / size, 3)
        assert found.point[i] == pytest.approx(np.log(other / base), abs=1e-5)
        assert found.size[i] == pytest.approx(size / 8e7)
        assert found.data[i] == pytest.approx(1e18 / 6 / size / 3.2e9)
    assert (found.passes == 3).all()


def test_a_dearer_token_is_answered_by_a_larger_baseline(draws) -> None:
    dear = replace(THREE, decode=proportional(6))
    found = equal_use(draws, BASE, [dear], [6e7], 1e18)
    base, other = loss(3e7, 1e18 / 6 / 3e7), loss(1e7, 1e18 / 18 / 1e7, 3)
    assert found.point[0] == pytest.approx(np.log(other / base), abs=1e-5)


def test_best_of_several_costs_as_many_answers(draws) -> None:
    one = equal_use(draws, sampled(BASE, 4), [THREE], [8e7], 1e18)
    assert one.point[0] == pytest.approx(
        np.log(loss(4e7, 1e18 / 18 / 4e7, 3) / loss(1e7, 1e18 / 6 / 1e7)), abs=1e-5
    )


def test_the_best_number_of_passes_is_used(draws) -> None:
    two = replace(THREE, passes=2, train=proportional(12))
    both = equal_use(draws, BASE, [two, THREE], [4e7, 1.6e8], 1e17)
    alone = [equal_use(draws, BASE, [d], [4e7, 1.6e8], 1e17).point for d in (two, THREE)]
    np.testing.assert_allclose(both.point, np.minimum(*alone), atol=1e-12)


def test_prompts_make_a_token_dearer(draws) -> None:
    found = equal_use(draws, BASE, [THREE], [8e7], 1e18, ratio=1)
    base, other = loss(2e7, 1e18 / 6 / 2e7), loss(1e7, 1e18 / 18 / 1e7, 3)
    assert found.point[0] == pytest.approx(np.log(other / base), abs=1e-5)


def test_a_price_that_no_size_has_is_refused(draws) -> None:
    with pytest.raises(UserError, match="no size of baseline costs 0.1 per output token"):
        equal_use(draws, BASE, [THREE], [0.1], 1e18)
