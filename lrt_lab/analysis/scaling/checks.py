"""Which law, and how far it may be trusted: held-out largest compute, nested tests, profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import f as f_distribution

from lrt_lab.analysis.scaling.fitting import UNFINISHED, Fit, curvature, fit, inverse, objective
from lrt_lab.analysis.scaling.laws import Law
from lrt_lab.analysis.scaling.run_table import Runs
from lrt_lab.analysis.scaling.solver import minimise
from lrt_lab.errors import UserError

HELD_OUT = 0.2


@dataclass(frozen=True)
class Candidate:
    """One law's showing.

    Attributes:
        name, parameters: of the law (or of a set of separate laws).
        fit: to all runs; None for separate laws, or where it could not be fitted.
        held_out: root mean square of ln L observed - predicted on the runs of largest compute,
            predicted by a fit to the others.
        bias: its mean.
        aicc: Akaike's criterion for small samples, Gaussian in ln L.
        squares: residual sum of squares of the fit to all runs.
        refused: why it could not be fitted; empty if it could.
    """

    name: str
    parameters: int
    fit: Fit | None
    held_out: float
    bias: float
    aicc: float
    squares: float
    refused: str = ""


def largest(runs: Runs, share: float = HELD_OUT) -> np.ndarray:
    """Mask of the runs with the largest compute: about `share` of them, equal compute together."""
    wanted = max(1, round(share * len(runs)))
    threshold = np.sort(runs.compute)[-wanted]
    return runs.compute >= threshold * (1 - 1e-9)


def candidate(law: Law, runs: Runs, share: float = HELD_OUT) -> Candidate:
    """A law fitted to all runs, and its error on the largest ones when they are held out."""
    out = largest(runs, share)
    try:
        rest = fit(law, runs.take(~out))
        whole = fit(law, runs)
    except UserError as error:
        nan = float("nan")
        return Candidate(law.name, len(law), None, nan, nan, nan, nan, str(error))
    missed = np.log(runs.loss[out]) - rest.log_loss(runs.take(out))
    return _candidate(law.name, len(law), whole, missed, whole.residuals)


def separate(laws: Sequence[Law], runs: Runs, share: float = HELD_OUT) -> Candidate:
    """A law for every model by itself, sharing nothing: what shared exponents are tested against.

    Args:
        laws: one per model, in the order of their numbers.
        runs: all runs.
        share: of the runs that is held out.
    """
    out = largest(runs, share)
    missed, residuals = np.zeros(len(runs)), np.zeros(len(runs))
    name, count = "separate laws", sum(map(len, laws))
    try:
        for model, own in enumerate(laws):
            mine = runs.model == model
            rest = fit(own, runs.take(mine & ~out))
            missed[mine] = np.log(runs.loss[mine]) - rest.log_loss(runs.take(mine))
            residuals[mine] = fit(own, runs.take(mine)).residuals
    except UserError as error:
        nan = float("nan")
        return Candidate(name, count, None, nan, nan, nan, nan, str(error))
    return _candidate(name, count, None, missed[out], residuals)


def _candidate(
    name: str, parameters: int, whole: Fit | None, missed: np.ndarray, residuals: np.ndarray
) -> Candidate:
    n, k = len(residuals), parameters + 1
    squares = float((residuals**2).sum())
    small = 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else float("inf")
    return Candidate(
        name=name,
        parameters=parameters,
        fit=whole,
        held_out=float(np.sqrt((missed**2).mean())),
        bias=float(missed.mean()),
        aicc=n * np.log(squares / n) + 2 * k + small if squares > 0 else -np.inf,
        squares=squares,
    )


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The fitted law with the smallest error on the held-out largest runs, among those whose fit
    has no flag if there are any, else among those whose search converged.

    Raises:
        UserError: none could be fitted.
    """
    fitted = [c for c in candidates if c.fit is not None and np.isfinite(c.held_out)]
    if not fitted:
        reasons = "; ".join(dict.fromkeys(c.refused for c in candidates))
        raise UserError(f"no law can be fitted: {reasons}")
    sound = [c for c in fitted if c.fit is not None and not c.fit.flags]
    ended = [c for c in fitted if c.fit is not None and UNFINISHED not in c.fit.flags]
    return min(sound or ended or fitted, key=lambda c: c.held_out)


def nested_p(small: Candidate, large: Candidate, n: int) -> float:
    """p of "the smaller law is enough", by F on the sums of squares of ln L; NaN if not nested."""
    more, rest = large.parameters - small.parameters, n - large.parameters
    if more <= 0 or rest <= 0 or not large.squares > 0:
        return float("nan")
    ratio = (small.squares - large.squares) / more / (large.squares / rest)
    return float(f_distribution.sf(max(ratio, 0.0), more, rest))


def profile(found: Fit, name: str, values: np.ndarray) -> np.ndarray:
    """The objective, minimised over all other parameters, with one of them held at each of
    `values` (in theta's units: logarithms where those are fitted). A flat profile: not identified.
    """
    law, at = found.law, found.law.names.index(name)
    free = np.arange(len(law)) != at
    whole = objective(law, found.runs, found.centre, found.delta)

    def held(x: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        theta = np.insert(x, at, values[which], axis=-1)
        value, gradient = whole(theta, which)
        return value, gradient[:, free]

    around = curvature(law, found.runs, found.centre, found.theta, found.delta)
    starts = np.tile(found.theta[free], (len(values), 1))
    # where the other parameters go to first order when this one is moved
    slope = -np.linalg.lstsq(around[np.ix_(free, free)], around[free, at], rcond=None)[0]
    starts = starts + (values - found.theta[at])[:, None] * slope
    minima = minimise(held, starts, inverse(around[np.ix_(free, free)]))
    return minima.values * found.delta**2


def outliers(found: Fit, times: float = 5.0) -> np.ndarray:
    """Positions of runs whose |residual| in ln L is above `times` deltas and above `times` robust
    deviations of all residuals.
    """
    size = np.abs(found.residuals)
    deviation = 1.4826 * float(np.median(size))
    return np.flatnonzero((size > times * found.delta) & (size > times * deviation))


def correlations(found: Fit) -> np.ndarray:
    """Correlations (P, P) of the parameters A, B, E, alpha, beta, ... as logarithms, from the
    curvature: what cannot be told apart.
    """
    covariance = inverse(curvature(found.law, found.runs, found.centre, found.theta, found.delta))
    to = np.eye(len(found.law))
    to[0, 3], to[1, 4] = found.centre.size, found.centre.data
    covariance = to @ covariance @ to.T
    sd = np.sqrt(np.diag(covariance))
    return covariance / np.outer(sd, sd)
