"""Holm by hand, Benjamini-Hochberg by scipy."""

from __future__ import annotations

import numpy as np
from scipy import stats

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.multiplicity import benjamini_hochberg, holm


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03]), [0.06, 0.03, 0.06])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])


def test_benjamini_hochberg_is_scipys() -> None:
    p = generator(1, "p").uniform(size=(5, 9))
    theirs = np.array([stats.false_discovery_control(row) for row in p])
    np.testing.assert_allclose(benjamini_hochberg(p), theirs)


def test_what_cannot_be_tested_stays_so_and_counts_in_the_family() -> None:
    adjusted = holm([0.02, np.nan, 0.5])
    assert np.isnan(adjusted[1])
    np.testing.assert_allclose(adjusted[[0, 2]], [0.06, 1.0])


def test_order_does_not_matter() -> None:
    p = generator(2, "order").uniform(size=6)
    order = generator(3, "order").permutation(6)
    np.testing.assert_allclose(holm(p)[order], holm(p[order]))
