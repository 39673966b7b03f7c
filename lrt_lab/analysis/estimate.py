"""An effect with its uncertainty: a point, a standard error, degrees of freedom; Student t for
everything else.

At 3 to 10 seeds Student t on per-seed contrasts is the only interval whose coverage stays at its
nominal value: bootstrap intervals are too short there (percentile .83, BCa .83 at n = 5, against
.95 for t).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit


@dataclass(frozen=True)
class Estimate:
    """A point with its standard error and degrees of freedom; all arrays of one shape, NaN where
    not estimable.
    """

    point: np.ndarray
    se: np.ndarray
    df: np.ndarray
    n: int

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Two-sided interval point -+ t_{(1+level)/2, df} se; NaN with fewer than two seeds."""
        half = quantile(self.df, level) * self.se
        return self.point - half, self.point + half

    def p(self, null: float = 0.0) -> np.ndarray:
        """Two-sided p-value of "the effect equals `null`"."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(self.point - null) / self.se
        return 2 * stdtr(_positive(self.df), -t)

    def __neg__(self) -> Estimate:
        return Estimate(-self.point, self.se, self.df, self.n)


def quantile(df: ArrayLike, level: float = 0.95) -> np.ndarray:
    """The two-sided t quantile t_{(1+level)/2, df}; NaN where df < 1."""
    return stdtrit(_positive(df), 0.5 + level / 2)


def paired(differences: ArrayLike) -> Estimate:
    """Student t of per-seed contrasts D_s (..., seeds): mean, sd / sqrt(n), df = n - 1."""
    d = np.asarray(differences, dtype=float)
    n = d.shape[-1]
    if n == 0:
        nan = np.full(d.shape[:-1], np.nan)
        return Estimate(nan, nan, nan, 0)
    point = d.mean(axis=-1)
    se = deviation(d) / np.sqrt(n)
    return Estimate(point, se, np.full_like(point, n - 1.0), n)


def independent(values: ArrayLike, weights: ArrayLike) -> Estimate:
    """A contrast sum_c w_c mean(y_c) of unpaired groups: `values` (..., cells, runs), NaN where a
    cell has fewer runs.

    Variances add, degrees of freedom by Welch and Satterthwaite. For runs that share no seed.
    """
    y, w = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    y, w = y[..., w != 0, :], w[w != 0]
    here = np.isfinite(y)
    n = here.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(here, y, 0.0).sum(axis=-1) / n
        spread = np.where(here, (y - mean[..., None]) ** 2, 0.0).sum(axis=-1) / np.where(
            n > 1, n - 1, np.nan
        )
        parts = w**2 * spread / n
        total = parts.sum(axis=-1)
        df = total**2 / (parts**2 / (n - 1)).sum(axis=-1)
    return Estimate(
        (w * mean).sum(axis=-1), np.sqrt(total), df, int(n.min(initial=n.max(initial=0)))
    )


def deviation(values: ArrayLike) -> np.ndarray:
    """Sample standard deviation over the last axis, NaN with fewer than two values."""
    v = np.asarray(values, dtype=float)
    if v.shape[-1] < 2:
        return np.full(v.shape[:-1], np.nan)
    return v.std(axis=-1, ddof=1)


def _positive(df: ArrayLike) -> np.ndarray:
    df = np.asarray(df, dtype=float)
    return np.where(df > 0, df, np.nan)
