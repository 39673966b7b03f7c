"""The blocked model's closed form against least squares with dummy-coded cells and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.linear_model import blocked, equal_variances, residuals

INTERACTION = np.array([-1.0, 1.0, 1.0, -1.0])


def least_squares(y: np.ndarray, weights: np.ndarray) -> tuple[float, float, int]:
    cells, n = y.shape
    rows = [(c, s) for c in range(cells) for s in range(n)]
    design = np.array(
        [
            [*(float(c == k) for k in range(cells)), *(float(s == k) for k in range(1, n))]
            for c, s in rows
        ]
    )
    values = np.array([y[c, s] for c, s in rows])
    beta, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    df = len(rows) - rank
    variance = ((values - design @ beta) ** 2).sum() / df
    full = np.concatenate([weights, np.zeros(n - 1)])
    return (
        full @ beta,
        float(np.sqrt(variance * full @ np.linalg.inv(design.T @ design) @ full)),
        df,
    )


@pytest.mark.parametrize(("cells", "n"), [(4, 3), (4, 8), (9, 5)], ids=str)
def test_it_is_least_squares(cells: int, n: int) -> None:
    draws = generator(1, "ols", cells, n)
    y = draws.normal(size=(cells, n)) + draws.normal(size=n)
    weights = np.concatenate([INTERACTION, np.zeros(cells - 4)])
    ours = blocked(y, weights)
    point, se, df = least_squares(y, weights)
    np.testing.assert_allclose([ours.point, ours.se, ours.df], [point, se, df], rtol=1e-9)


def test_unequal_variances_are_noticed_and_equal_ones_are_not() -> None:
    draws = generator(2, "levene")
    equal = draws.normal(size=(2000, 4, 8))
    rejected = (equal_variances(equal) < 0.05).mean()
    assert rejected < 0.07
    uneven = equal * np.array([1, 1, 1, 6.0])[:, None]
    assert (equal_variances(uneven) < 0.05).mean() > 0.5


def test_the_variance_check_is_scipys_levene_on_the_residuals() -> None:
    y = generator(3, "scipy").normal(size=(4, 6))
    theirs = stats.levene(*residuals(y), center="median").pvalue
    np.testing.assert_allclose(equal_variances(y), theirs)


def test_one_block_has_no_residual() -> None:
    assert np.isnan(blocked(np.ones((4, 1)), INTERACTION).se)
