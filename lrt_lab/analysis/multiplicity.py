"""Several tests at once: Holm for claims, Benjamini-Hochberg as a column for exploration."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def holm(p: ArrayLike) -> np.ndarray:
    """Holm's step-down adjusted p-values over the last axis: family-wise error at most alpha under
    any dependence.

    NaN (not testable) stays NaN and counts in the family: it must not make the other claims
    cheaper.
    """
    p = np.asarray(p, dtype=float)
    k = p.shape[-1]
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, axis=-1)
    steps = ranked * np.arange(k, 0, -1)
    return _restore(np.minimum(np.fmax.accumulate(steps, axis=-1), 1.0), ranked, order)


def benjamini_hochberg(p: ArrayLike) -> np.ndarray:
    """Benjamini-Hochberg q-values over the last axis (false discovery rate, exploratory)."""
    p = np.asarray(p, dtype=float)
    k = p.shape[-1]
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, axis=-1)
    steps = ranked * k / np.arange(1, k + 1)
    running = np.fmin.accumulate(steps[..., ::-1], axis=-1)[..., ::-1]
    return _restore(np.minimum(running, 1.0), ranked, order)


def _restore(adjusted: np.ndarray, ranked: np.ndarray, order: np.ndarray) -> np.ndarray:
    adjusted = np.where(np.isnan(ranked), np.nan, adjusted)
    result = np.empty_like(adjusted)
    np.put_along_axis(result, order, adjusted, axis=-1)
    return result
