"""Fieller's set for a ratio of means: honest where the denominator is weak, because it may be
unbounded.

For means a, b with (co)variances va, vb, cab and a t quantile q the set is {r : (a - r b)^2 <= q^2
(va - 2 r cab + r^2 vb)}. With A = b^2 - q^2 vb, B = a b - q^2 cab, C = a^2 - q^2 va it is an
interval when A > 0, the outside of an interval when A < 0 and B^2 > A C, else the whole line. A <=
0 says exactly that the interval of b covers zero: then the ratio is undefined, and a report must
say so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lrt_lab.analysis.estimate import quantile

BOUNDED, UNBOUNDED, WHOLE_LINE = "bounded", "unbounded", "whole line"


@dataclass(frozen=True)
class Ratio:
    """A ratio a / b with Fieller's set: [low, high] when bounded, outside (low, high) when
    unbounded.
    """

    point: np.ndarray
    low: np.ndarray
    high: np.ndarray
    kind: np.ndarray

    def covers(self, value: float) -> np.ndarray:
        """Whether the set holds `value`."""
        inside = (self.low <= value) & (value <= self.high)
        outside = (value <= self.low) | (value >= self.high)
        return np.where(
            self.kind == BOUNDED, inside, np.where(self.kind == UNBOUNDED, outside, True)
        )


def fieller(
    a: ArrayLike, b: ArrayLike, va: ArrayLike, vb: ArrayLike, cab: ArrayLike, q: ArrayLike
) -> Ratio:
    """Fieller's set from means, (co)variances of the means and the two-sided t quantile `q`."""
    a, b, va, vb, cab = (np.asarray(v, dtype=float) for v in (a, b, va, vb, cab))
    q2 = np.asarray(q, dtype=float) ** 2
    lead, middle, last = b**2 - q2 * vb, a * b - q2 * cab, a**2 - q2 * va
    disc = middle**2 - lead * last
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(np.maximum(disc, 0.0))
        one, two = (middle - root) / lead, (middle + root) / lead
        point = a / b
    low, high = np.minimum(one, two), np.maximum(one, two)
    kind = np.where(lead > 0, BOUNDED, np.where((lead < 0) & (disc > 0), UNBOUNDED, WHOLE_LINE))
    line = kind == WHOLE_LINE
    return Ratio(point, np.where(line, -np.inf, low), np.where(line, np.inf, high), kind)


def ratio_of_means(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Ratio:
    """mean(a) / mean(b) of values paired by seed, (..., seeds) each."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n = a.shape[-1]
    if n == 0:
        nan = np.full(a.shape[:-1], np.nan)
        return fieller(nan, nan, nan, nan, nan, 1.0)
    ma, mb = a.mean(axis=-1), b.mean(axis=-1)
    if n < 2:
        zero = np.full(ma.shape, np.inf)
        return fieller(ma, mb, zero, zero, np.zeros(ma.shape), 1.0)
    da, db = a - ma[..., None], b - mb[..., None]
    scale = n * (n - 1)
    va, vb, cab = ((x * y).sum(axis=-1) / scale for x, y in ((da, da), (db, db), (da, db)))
    return fieller(ma, mb, va, vb, cab, quantile(n - 1, level))
