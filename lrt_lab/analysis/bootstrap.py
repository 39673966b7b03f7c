"""A bootstrap as a second opinion. Never the headline: below ten seeds its intervals are too short,
so under five it refuses.

The *expanded* percentile interval widens the tail levels so that it would equal Student t for a
normal mean; plain percentile intervals cover .83 at n = 5 where the expanded ones cover .91.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from lrt_lab.analysis.estimate import quantile
from lrt_lab.errors import UserError

FEWEST = 5


def percentile(
    statistic: Callable[..., np.ndarray],
    groups: Sequence[ArrayLike],
    generator: np.random.Generator,
    *,
    paired: bool = False,
    expanded: bool = True,
    resamples: int = 2000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Interval of a statistic of several groups of runs.

    Args:
        statistic: takes one array (resamples, runs) per group, gives (resamples,).
        groups: each group's values, (runs,).
        generator: draws the resamples.
        paired: draw the same positions in every group.
        expanded: widen the percentiles for the number of runs.
        resamples: how many.
        level: of the interval.
    """
    values = [np.asarray(group, dtype=float) for group in groups]
    n = min(len(value) for value in values)
    if n < FEWEST:
        raise UserError(f"a bootstrap of {n} runs is meaningless; it needs at least {FEWEST}")
    if paired:
        index = generator.integers(0, n, (resamples, n))
        drawn = [value[index] for value in values]
    else:
        drawn = [v[generator.integers(0, len(v), (resamples, len(v)))] for v in values]
    tail = (1 - level) / 2
    if expanded:
        tail = float(ndtr(-np.sqrt(n / (n - 1)) * quantile(n - 1, level)))
    low, high = np.quantile(statistic(*drawn), [tail, 1 - tail])
    return float(low), float(high)
