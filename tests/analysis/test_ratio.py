"""Fieller's set: its three kinds, and that it holds exactly the ratios that a t test does not
reject.
"""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.estimate import paired
from lrt_lab.analysis.ratio import BOUNDED, UNBOUNDED, WHOLE_LINE, ratio_of_means


@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0, 3.0], ids=lambda m: f"denominator-{m:g}")
def test_a_ratio_is_covered_when_its_residual_is_not_rejected(n: int, mean: float) -> None:
    draws = generator(1, "inversion", n, mean)
    for _ in range(40):
        a, b = draws.normal(1, 1, n), draws.normal(mean, 1, n)
        found = ratio_of_means(a, b)
        for value in (-5.0, -0.7, 0.0, 0.4, 1.3, 9.0):
            assert bool(found.covers(value)) == bool(paired(a - value * b).p() >= 0.05)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_undefined_exactly_when_the_denominator_covers_zero(n: int) -> None:
    draws = generator(2, "undefined", n)
    a, b = draws.normal(1, 1, (3000, n)), draws.normal(0.8, 1, (3000, n))
    low, high = paired(b).interval()
    kind = ratio_of_means(a, b).kind
    np.testing.assert_array_equal(kind != BOUNDED, (low <= 0) & (high >= 0))
    assert set(np.unique(kind)) == {BOUNDED, UNBOUNDED, WHOLE_LINE}


def test_a_bounded_set_holds_its_point() -> None:
    found = ratio_of_means([1.1, 1.0, 0.9], [2.0, 2.1, 1.9])
    assert found.kind == BOUNDED
    assert found.low < found.point < found.high


def test_one_seed_bounds_nothing() -> None:
    assert ratio_of_means([1.0], [2.0]).kind == WHOLE_LINE
