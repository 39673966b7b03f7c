"""The exact sign-flip test against enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.signflip import floor, max_t, sign_flip


def enumerated(values: np.ndarray) -> float:
    means = [abs(np.mean(np.array(s) * values)) for s in product((1, -1), repeat=len(values))]
    return float(np.mean(np.array(means) >= abs(values.mean()) * (1 - 1e-9)))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_it_is_the_share_of_sign_vectors(n: int) -> None:
    values = generator(1, "signs", n).normal(0.5, 1, (20, n))
    np.testing.assert_allclose(sign_flip(values), [enumerated(row) for row in values])


def test_ties_count_as_reached() -> None:
    assert sign_flip(np.array([0.1, 0.2, -0.3])) == 1.0


@pytest.mark.parametrize(("n", "least"), [(3, 0.25), (5, 0.0625), (8, 0.0078125)])
def test_its_floor_is_what_equal_signs_give(n: int, least: float) -> None:
    assert floor(n) == least
    assert sign_flip(np.arange(1, n + 1)) == least


@pytest.mark.parametrize("n", [0, 1, 17])
def test_out_of_reach_is_not_a_number(n: int) -> None:
    assert np.isnan(sign_flip(np.ones(n)))


def test_max_t_controls_the_family_and_is_never_below_a_single_test() -> None:
    draws = generator(2, "family")
    false = 0
    for _ in range(300):
        rows = draws.normal(size=(4, 8))
        adjusted = max_t(rows)
        assert (adjusted >= sign_flip(rows) - 1e-12).all()
        false += (adjusted <= 0.05).any()
    assert false / 300 <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
