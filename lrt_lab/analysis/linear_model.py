"""The blocked linear model ln L ~ cell + seed: every contrast with the pooled residual. Secondary
to the paired t.

For complete blocks ordinary least squares has a closed form: residuals are doubly centred, the
residual variance has (c - 1)(n - 1) degrees of freedom, and a contrast w has variance sigma^2 sum
w^2 / n. It is 16 to 35% narrower than the paired t at 5 and 3 seeds, but only right when all cells
have one variance, hence `equal_variances`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtrc

from lrt_lab.analysis.estimate import Estimate


def blocked(values: ArrayLike, weights: ArrayLike) -> Estimate:
    """A zero-sum contrast of complete blocks (..., cells, seeds)."""
    y, w = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    cells, n = y.shape[-2:]
    point = np.einsum("c,...cs->...s", w, y).mean(axis=-1) if n else np.full(y.shape[:-2], np.nan)
    df = (cells - 1) * (n - 1)
    if df < 1:
        nan = np.full_like(point, np.nan)
        return Estimate(point, nan, nan, n)
    variance = (residuals(y) ** 2).sum(axis=(-2, -1)) / df
    return Estimate(point, np.sqrt(variance * (w**2).sum() / n), np.full_like(point, float(df)), n)


def residuals(values: ArrayLike) -> np.ndarray:
    """y minus cell means minus seed means plus the grand mean."""
    y = np.asarray(values, dtype=float)
    return (
        y
        - y.mean(axis=-1, keepdims=True)
        - y.mean(axis=-2, keepdims=True)
        + y.mean(axis=(-2, -1), keepdims=True)
    )


def equal_variances(values: ArrayLike) -> np.ndarray:
    """p of the Brown-Forsythe test (Levene's, about medians) that the cells' residuals have one
    variance.

    Small p: do not read the blocked model's intervals. At 3 to 8 seeds a large p proves little.
    """
    *batch, cells, n = np.shape(values)
    if cells < 2 or n < 3:
        return np.full(batch, np.nan)
    r = residuals(values)
    z = np.abs(r - np.median(r, axis=-1, keepdims=True))
    mean = z.mean(axis=-1)
    between = n * ((mean - mean.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) / (cells - 1)
    within = ((z - mean[..., None]) ** 2).sum(axis=(-2, -1)) / (cells * (n - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return fdtrc(cells - 1, cells * (n - 1), between / within)
