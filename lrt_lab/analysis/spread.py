"""Intervals for what is not a mean: a standard deviation, a correlation, a rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, gammaincinv, ndtri

from lrt_lab.analysis.estimate import deviation


def sd(values: ArrayLike, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard deviation with its chi-square interval (at n = 5 its factors are .60 and 2.87)."""
    point = deviation(values)
    df = np.asarray(values).shape[-1] - 1
    if df < 1:
        return point, point, point
    tail = (1 - level) / 2
    # a chi-square quantile with df degrees of freedom is twice a gamma quantile of shape df / 2
    upper, lower = 2 * gammaincinv(df / 2, 1 - tail), 2 * gammaincinv(df / 2, tail)
    return point, point * np.sqrt(df / upper), point * np.sqrt(df / lower)


def correlation(values: ArrayLike, level: float = 0.95) -> tuple[float, float, float]:
    """Mean pairwise correlation of cells (cells, seeds) across seeds, with Fisher's z interval.

    This is what pairing by seed buys: at correlation rho the variance of a difference shrinks by 1
    - rho. The interval is that of a single pair; with a handful of seeds it is very wide, and says
    so.
    """
    y = np.asarray(values, dtype=float)
    cells, n = y.shape
    nan = float("nan")
    if cells < 2 or n < 3 or np.any(deviation(y) == 0):
        return nan, nan, nan
    r = np.corrcoef(y)[np.triu_indices(cells, 1)]
    mean = float(np.clip(r.mean(), -1 + 1e-12, 1 - 1e-12))
    if n < 4:
        return mean, -1.0, 1.0
    half = ndtri(0.5 + level / 2) / np.sqrt(n - 3)
    z = np.arctanh(mean)
    return mean, float(np.tanh(z - half)), float(np.tanh(z + half))


def rate(events: int, trials: int, level: float = 0.95) -> tuple[float, float, float]:
    """A share with its exact Clopper-Pearson interval (divergence rate of a cell)."""
    if trials == 0:
        nan = float("nan")
        return nan, nan, nan
    tail = (1 - level) / 2
    low = 0.0 if events == 0 else float(betaincinv(events, trials - events + 1, tail))
    high = 1.0 if events == trials else float(betaincinv(events + 1, trials - events, 1 - tail))
    return events / trials, low, high
