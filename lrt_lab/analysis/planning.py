"""How many seeds: power of the paired t, detectable effects, and the chance of each verdict, by one
short integral.

Given the sample standard deviation s the mean of n contrasts is normal, so every probability is an
average of normal probabilities over s^2 / sigma^2 ~ chi-square / (n - 1). (`scipy.stats.nct`
returns NaN at moderate noncentrality.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import gammaincinv, ndtr

from lrt_lab.analysis.estimate import quantile

# midpoints of equal-probability slices of the chi-square: error below 1e-4 in every probability
SLICES = 4000
MOST = 4096


@cache
def _sd_ratios(n: int) -> np.ndarray:
    """s / sigma at equal-probability midpoints, df = n - 1."""
    df = n - 1
    u = (np.arange(SLICES) + 0.5) / SLICES
    return np.sqrt(2 * gammaincinv(df / 2, u) / df)


def power(effect: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Chance that the two-sided paired t rejects 0 when the per-seed contrast has mean `effect` and
    deviation `sd`.
    """
    if n < 2:
        return 0.0
    c = quantile(n - 1, 1 - alpha) * _sd_ratios(n)
    shift = effect * np.sqrt(n) / sd
    return float((ndtr(shift - c) + ndtr(-shift - c)).mean())


def detectable(sd: float, n: int, chance: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest effect that n seeds detect with that chance; infinite for fewer than two."""
    return _detectable(n, chance, alpha) * sd if n >= 2 else float("inf")


@cache
def _detectable(n: int, chance: float, alpha: float) -> float:
    """The detectable effect in units of the deviation, by bisection."""
    low, high = 0.0, 1.0
    while power(high, 1.0, n, alpha) < chance:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, 1.0, n, alpha) < chance else (low, middle)
    return high


def seeds_needed(effect: float, sd: float, chance: float = 0.8, alpha: float = 0.05) -> int | None:
    """The fewest seeds that detect `effect` with that chance; None beyond 4096."""
    if sd == 0:
        return 2
    if effect == 0 or power(effect, sd, MOST, alpha) < chance:
        return None
    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(effect, sd, middle, alpha) < chance else (low, middle)
    return high


@dataclass(frozen=True)
class Chances:
    """Chance of each reading of the interaction, given that both gains are shown."""

    supported: float
    negligible: float
    reversed: float
    equivalent: float
    inconclusive: float


def chances(effect: float, sd: float, n: int, margin: float, alpha: float = 0.05) -> Chances:
    """Chance of each verdict when the true interaction is `effect` and its per-seed deviation
    `sd`.
    """
    se = _sd_ratios(n) * sd / np.sqrt(n)
    outer, inner = quantile(n - 1, 1 - alpha) * se, quantile(n - 1, 1 - 2 * alpha) * se
    true_se = sd / np.sqrt(n)

    def below(x: np.ndarray) -> np.ndarray:
        return ndtr((x - effect) / true_se)

    reach = margin - inner
    small = np.maximum(below(reach) - below(outer), 0.0)
    positive = 1 - below(outer)
    equal = np.where(
        reach > 0, below(np.minimum(reach, outer)) - below(-np.minimum(reach, outer)), 0.0
    )
    negative = below(-outer)
    parts = [positive - small, small, negative, equal]
    first, second, third, fourth = (float(part.mean()) for part in parts)
    return Chances(first, second, third, fourth, 1 - first - second - third - fourth)


def interaction_sd(run_sd: float, correlation: float) -> float:
    """Per-seed deviation of I from one run's deviation and the correlation of cells within a pair
    block: 2 sd sqrt(1 - rho).
    """
    return 2 * run_sd * float(np.sqrt(1 - correlation))
