"""Intervals of deviations, correlations and rates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.spread import correlation, rate, sd


def test_five_seeds_leave_the_deviation_uncertain_by_a_factor_of_three() -> None:
    point, low, high = sd(generator(1, "sd").normal(size=5))
    np.testing.assert_allclose([low / point, high / point], [0.599, 2.874], atol=1e-3)


def test_the_deviations_interval_covers() -> None:
    _, low, high = sd(generator(2, "cover").normal(0, 2.0, (4000, 5)))
    assert ((low <= 2) & (high >= 2)).mean() == pytest.approx(0.95, abs=0.011)


@pytest.mark.parametrize(("events", "trials"), [(0, 5), (1, 5), (3, 8), (5, 5)], ids=str)
def test_rates_are_clopper_pearson(events: int, trials: int) -> None:
    theirs = stats.binomtest(events, trials).proportion_ci(method="exact")
    np.testing.assert_allclose(rate(events, trials)[1:], (theirs.low, theirs.high), atol=1e-12)


def test_no_trials_no_rate() -> None:
    assert np.isnan(rate(0, 0)).all()


def test_correlation_of_cells_that_share_their_seed() -> None:
    draws = generator(3, "correlation")
    shared = draws.normal(size=400)
    cells = 0.8**0.5 * shared + 0.2**0.5 * draws.normal(size=(4, 400))
    mean, low, high = correlation(cells)
    assert low < mean < high
    assert mean == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("n", [1, 2], ids=lambda n: f"{n}-seeds")
def test_correlation_needs_three_seeds(n: int) -> None:
    assert np.isnan(correlation(np.ones((4, n)))).all()
