"""How much final losses differ between seeds, over many groups of runs; and whether a t interval
may be trusted.

Take only final losses of completed schedules: in the middle of a schedule the deviation is several
times larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class SeedNoise:
    """Deviations of groups of runs that differ in their seed only."""

    groups: int
    runs: int
    sd: tuple[float, ...]
    pooled: float
    cv: float
    skew: float
    excess_kurtosis: float

    @property
    def median(self) -> float:
        """Median deviation over groups."""
        return self.sd[QUANTILES.index(0.5)]


def seed_noise(groups: Sequence[ArrayLike], least: int = 2) -> SeedNoise:
    """Summary over groups of at least `least` runs: quantiles of the deviation, its pooled value,
    the median coefficient of variation, and the shape of standardised residuals (0 and 0 for normal
    noise).
    """
    values = [np.asarray(g, dtype=float) for g in groups if len(np.asarray(g)) >= max(least, 2)]
    if not values:
        nan = float("nan")
        return SeedNoise(0, 0, (nan,) * len(QUANTILES), nan, nan, nan, nan)
    sds = np.array([v.std(ddof=1) for v in values])
    df = np.array([len(v) - 1 for v in values])
    cv = sds / np.array([v.mean() for v in values])
    z = np.concatenate(
        [(v - v.mean()) / s for v, s in zip(values, sds, strict=True) if s > 0] or [np.zeros(1)]
    )
    second = float((z**2).mean()) or float("nan")
    return SeedNoise(
        groups=len(values),
        runs=int(sum(len(v) for v in values)),
        sd=tuple(float(q) for q in np.quantile(sds, QUANTILES)),
        pooled=float(np.sqrt((df * sds**2).sum() / df.sum())),
        cv=float(np.median(cv)),
        skew=float((z**3).mean() / second**1.5),
        excess_kurtosis=float((z**4).mean() / second**2 - 3),
    )
