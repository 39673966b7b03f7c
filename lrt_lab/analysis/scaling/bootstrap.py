"""A bootstrap over runs: refits of resampled runs, all of them at once.

Runs are the unit: points along one run's training are not runs. Resampling keeps the number of
cells of every stratum (by default every size), and all seeds of a cell go together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from lrt_lab.analysis.estimate import quantile
from lrt_lab.analysis.scaling.fitting import Fit, curvature, inverse, objective, vanished
from lrt_lab.analysis.scaling.laws import BASE, Law
from lrt_lab.analysis.scaling.run_table import Runs
from lrt_lab.analysis.scaling.solver import Function, minimise

# a stratum of fewer cells than this hardly varies when it is resampled by itself
FEWEST_IN_STRATUM = 4
STEPS = 120
# so many refits at once fit into a processor's cache
CHUNK = 250


@dataclass(frozen=True)
class Draws:
    """Refitted parameters theta (B, P) in the original fit's centred logarithms.

    Attributes:
        fit: what was resampled.
        theta: of the refits that converged.
        failed: share of the refits that did not.
        stratified: whether sizes were resampled separately.
    """

    fit: Fit
    theta: np.ndarray
    failed: float
    stratified: bool

    @property
    def natural(self) -> np.ndarray:
        """Parameters in their own units, (B, P)."""
        return self.fit.law.natural(self.theta, self.fit.centre)

    def interval(self, values: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Expanded percentiles over the draws (axis 0); infinities take part.

        Percentiles of a fit with P parameters to n runs are too short by about sqrt((n - P) / n)
        and by a normal quantile in place of Student's: the tail levels are widened for both.
        """
        cells = len(np.unique(self.fit.runs.cell))
        return percentiles(values, self.fit.law, cells, level)


def percentiles(
    values: np.ndarray, law: Law, n: int, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Expanded percentile interval of bootstrap values (B, ...), from n cells; NaN of none."""
    if not len(values):
        nan = np.full(values.shape[1:], np.nan)
        return nan, nan
    df = max(n - len(law), 1)
    tail = float(ndtr(-np.sqrt(n / df) * quantile(df, level)))
    ends = np.quantile(values, [tail, 1 - tail], axis=0, method="inverted_cdf")
    return ends[0], ends[1]


def resample(
    fit: Fit,
    generator: np.random.Generator,
    resamples: int = 1000,
    stratify: bool = True,
) -> Draws:
    """Refit resampled runs, each from the fit's own optimum; those that do not converge are tried
    again from two other places.
    """
    strata = fit.runs.names() if stratify else np.zeros(len(fit.runs), dtype=int)
    if stratify and not enough(fit.runs, strata):
        strata, stratify = np.zeros_like(strata), False
    weights = counts(fit.runs.cell, strata, resamples, generator)
    parts = [refit(fit, weights[i : i + CHUNK]) for i in range(0, resamples, CHUNK)]
    theta, converged = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Draws(fit, theta[converged], 1 - float(converged.mean()), stratify)


def enough(runs: Runs, strata: np.ndarray) -> bool:
    """Whether every stratum has cells enough to be resampled by itself."""
    return all(
        len(np.unique(runs.cell[strata == s])) >= FEWEST_IN_STRATUM for s in np.unique(strata)
    )


def counts(
    cell: np.ndarray, strata: np.ndarray, resamples: int, generator: np.random.Generator
) -> np.ndarray:
    """How often each run is drawn, (resamples, n): cells drawn with replacement within strata."""
    weights = np.zeros((resamples, len(cell)))
    for stratum in np.unique(strata):
        members = np.unique(cell[strata == stratum])
        drawn = generator.multinomial(
            len(members), np.full(len(members), 1 / len(members)), size=resamples
        )
        for i, member in enumerate(members):
            weights[:, (cell == member) & (strata == stratum)] = drawn[:, i : i + 1]
    return weights


def refit(fit: Fit, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """theta (B, P) of runs weighted by `weights` (B, n), and whether each converged.

    A term that vanishes from the fit stays away: its logarithm has no slope to be found by.
    """
    law, runs, centre = fit.law, fit.runs, fit.centre
    free = np.ones(len(law), dtype=bool)
    free[[BASE.index(name) for name in vanished(fit.theta)]] = False
    around = curvature(law, runs, centre, fit.theta, fit.delta)[np.ix_(free, free)]
    steps = inverse(around)

    def restricted(weights: np.ndarray) -> Function:
        whole = objective(law, runs, centre, fit.delta, weights=weights)

        def function(x: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, gradient = whole(filled(x), which)
            return value, gradient[:, free]

        return function

    def filled(x: np.ndarray) -> np.ndarray:
        theta = np.tile(fit.theta, (len(x), 1))
        theta[:, free] = x
        return theta

    start = np.tile(fit.theta[free], (len(weights), 1))
    found = minimise(restricted(weights), start, steps, iterations=STEPS)
    points, converged, values = found.points, found.converged, found.values
    axis = np.linalg.eigh(steps)
    for side in (2.0, -2.0):
        lost = np.flatnonzero(~converged)
        if not len(lost):
            break
        # a step along the direction that the runs determine least
        aside = fit.theta[free] + side * np.sqrt(axis[0][-1]) * axis[1][:, -1]
        again = minimise(restricted(weights[lost]), np.tile(aside, (len(lost), 1)), steps)
        better = again.values <= values[lost]
        kept = lost[better]
        points[kept], converged[kept] = again.points[better], again.converged[better]
        values[kept] = again.values[better]
    return filled(points), converged
