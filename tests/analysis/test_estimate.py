"""Student t and Welch against scipy's own tests, over batches, and where nothing can be
estimated.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.estimate import independent, paired


@pytest.mark.parametrize("n", [2, 3, 5, 8, 30])
def test_paired_t_is_scipys_one_sample_t(n: int) -> None:
    values = generator(1, "paired", n).normal(0.3, 1.0, n)
    ours, theirs = paired(values), stats.ttest_1samp(values, 0.0)
    np.testing.assert_allclose(ours.p(), theirs.pvalue, rtol=1e-9)
    np.testing.assert_allclose(
        ours.interval(0.9), tuple(theirs.confidence_interval(0.9)), rtol=1e-9
    )


@pytest.mark.parametrize("sizes", [(5, 5), (10, 3), (2, 7)], ids=str)
def test_unpaired_difference_is_scipys_welch(sizes: tuple[int, int]) -> None:
    draws = generator(2, "welch", sizes)
    a, b = draws.normal(1, 1, sizes[0]), draws.normal(0, 3, sizes[1])
    table = np.full((2, max(sizes)), np.nan)
    table[0, : sizes[0]], table[1, : sizes[1]] = a, b
    ours, theirs = independent(table, (1, -1)), stats.ttest_ind(a, b, equal_var=False)
    np.testing.assert_allclose(ours.p(), theirs.pvalue, rtol=1e-9)
    np.testing.assert_allclose(ours.interval(), tuple(theirs.confidence_interval()), rtol=1e-9)
    assert ours.n == min(sizes)


def test_a_batch_is_a_loop() -> None:
    values = generator(3, "batch").normal(size=(4, 6, 5))
    whole = paired(values)
    for index in np.ndindex(4, 6):
        one = paired(values[index])
        assert one.point == whole.point[index]
        assert one.interval()[0] == whole.interval()[0][index]


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_seeds_have_no_interval(n: int) -> None:
    estimate = paired(np.full(n, 0.5))
    assert np.isnan(estimate.interval()).all()
    assert np.isnan(estimate.p())


def test_equal_values_have_a_point_interval_and_no_doubt() -> None:
    estimate = paired(np.full(4, 0.5))
    assert estimate.interval() == (0.5, 0.5)
    assert estimate.p() == 0


def test_negation_mirrors_the_interval() -> None:
    estimate = paired(generator(4, "mirror").normal(size=5))
    low, high = estimate.interval()
    assert (-estimate).interval() == (-high, -low)
