"""One law fitted to runs: Huber's loss of residuals in ln L, from many starts at once.

The objective is sum_i w_i Huber_delta(ln L_pred - ln L) / delta^2, O(1) numbers: a mean of 1e-6
meets an optimiser's default tolerance long before the minimum. delta = 1e-3 loses nothing on clean
runs and is not moved by a late or diverged one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import nnls

from lrt_lab.analysis.scaling.laws import BASE, Centre, Law
from lrt_lab.analysis.scaling.run_table import Runs
from lrt_lab.analysis.scaling.solver import Function, minimise
from lrt_lab.errors import UserError

DELTA = 1e-3
EXPONENTS = (0.12, 0.25, 0.4, 0.7)
# two searches ended at the same optimum when their scaled objectives differ by this share of it
# (of one, where it is below one)
SAME = 1e-4
SEARCH = 80
# above this condition number no parameter is told apart from all others
MOST_CONDITION = 1e4
UNFINISHED = "the search did not converge"


@dataclass(frozen=True)
class Fit:
    """A fitted law.

    Attributes:
        law, runs, centre: what was fitted to what.
        theta: (P,), see `laws`.
        delta: Huber's threshold in ln L.
        objective: sum of Huber's loss, not divided by delta^2.
        agreeing: share of starts that ended at this optimum.
        starts: how many there were.
        gradient: largest entry of the scaled objective's gradient.
        condition: of the derivatives of ln L (`condition`).
        flags: what is wrong with it, in words; empty if nothing.
    """

    law: Law
    runs: Runs
    centre: Centre
    theta: np.ndarray
    delta: float
    objective: float
    agreeing: float
    starts: int
    gradient: float
    condition: float
    flags: tuple[str, ...]

    @property
    def natural(self) -> Mapping[str, float]:
        """Parameters by name in their own units."""
        values = self.law.natural(self.theta, self.centre)
        return dict(zip(self.law.names, values.tolist(), strict=True))

    @property
    def residuals(self) -> np.ndarray:
        """ln L observed - ln L fitted, (n,)."""
        return np.log(self.runs.loss) - self.log_loss(self.runs)

    def log_loss(self, runs: Runs) -> np.ndarray:
        """Predicted ln L of other runs, (n,)."""
        return self.law.log_loss(self.theta, runs, self.centre)[0]


def objective(
    law: Law,
    runs: Runs,
    centre: Centre,
    delta: float = DELTA,
    log_loss: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Function:
    """The scaled objective and its analytic gradient, for a batch of problems.

    Args:
        law, runs, centre: the law and its points.
        delta: Huber's threshold.
        log_loss: observed ln L, (n,) or (B, n) (default: the runs' own).
        weights: how often each run counts, (n,) or (B, n) (default: once).
    """
    observed = np.log(runs.loss) if log_loss is None else log_loss
    lowest, highest = law.limits()

    def pick(values: np.ndarray, which: np.ndarray) -> np.ndarray:
        return values[which] if values.ndim == 2 else values

    def function(theta: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            predicted, slopes = law.log_loss(theta, runs, centre)
            r = (predicted - pick(observed, which)) / delta
            size = np.abs(r)
            loss = np.where(size <= 1, 0.5 * r * r, size - 0.5)
            pull = np.clip(r, -1, 1)
            if weights is not None:
                w = pick(weights, which)
                loss, pull = w * loss, w * pull
            value = loss.sum(axis=-1)
            gradient = np.matmul(slopes, pull[..., None])[..., 0] / delta
            inside = ((theta >= lowest) & (theta <= highest)).all(axis=-1)
        return np.where(inside & np.isfinite(value), value, np.inf), gradient

    return function


def curvature(
    law: Law, runs: Runs, centre: Centre, theta: np.ndarray, delta: float = DELTA
) -> np.ndarray:
    """Gauss-Newton Hessian of the scaled objective with Huber's weights, (..., P, P)."""
    predicted, slopes = law.log_loss(theta, runs, centre)
    r = np.abs(predicted - np.log(runs.loss))
    weight = np.minimum(1.0, delta / np.maximum(r, 1e-300)) / delta**2
    return np.matmul(slopes * weight[..., None, :], np.swapaxes(slopes, -1, -2))


def inverse(matrix: np.ndarray) -> np.ndarray:
    """Inverse of a curvature (..., P, P), a little ridge added so that it always exists."""
    scale = np.sqrt(np.diagonal(matrix, axis1=-2, axis2=-1))
    scale = np.where(scale > 0, scale, 1.0)
    outer = scale[..., :, None] * scale[..., None, :]
    return np.linalg.inv(matrix / outer + 1e-9 * np.eye(matrix.shape[-1])) / outer


def fit(law: Law, runs: Runs, delta: float = DELTA) -> Fit:
    """Fit a law from many starts.

    Raises:
        UserError: fewer runs than two more than parameters, or no variation in size or in data.
    """
    require_enough(law, runs)
    centre = Centre.of(runs)
    starts = first_guesses(law, runs, centre)
    steps = inverse(curvature(law, runs, centre, starts, delta))
    function = objective(law, runs, centre, delta)
    found = minimise(function, starts, steps, iterations=SEARCH, tolerance=1e-8)
    best = int(np.argmin(found.values))
    # once more from the best, with the curvature of where it stands
    around = inverse(curvature(law, runs, centre, found.points[best], delta))
    last = minimise(function, found.points[best : best + 1], around, tolerance=1e-14)
    theta, value = last.points[0], float(last.values[0])
    agreeing = float(np.mean(found.values <= value + SAME * max(value, 1.0)))
    slopes = law.log_loss(theta, runs, centre)[1]
    return Fit(
        law=law,
        runs=runs,
        centre=centre,
        theta=theta,
        delta=delta,
        objective=value * delta**2,
        agreeing=agreeing,
        starts=len(starts),
        gradient=float(np.abs(last.gradients[0]).max()),
        condition=condition(slopes),
        flags=_flags(law, theta, bool(last.converged[0]), condition(slopes)),
    )


def condition(slopes: np.ndarray) -> float:
    """Condition number of the derivatives (P, n) of ln L in centred logarithms."""
    values = np.linalg.svd(slopes, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def require_enough(law: Law, runs: Runs) -> None:
    """Refuse what no fit can answer."""
    if len(runs) < len(law) + 2:
        raise UserError(
            f"{law.name} has {len(law)} parameters and needs {len(law) + 2} runs or more; there "
            f"are {len(runs)}"
        )
    for name, values in {"size": runs.size, "data": runs.tokens}.items():
        if len(np.unique(values)) < 3:
            raise UserError(
                f"{len(np.unique(values))} different values of {name}; a law in {name} needs three"
            )


def first_guesses(law: Law, runs: Runs, centre: Centre) -> np.ndarray:
    """Starts (S, P): a grid of exponents and effects; A, B and E by non-negative least squares,
    which are linear once those are given.
    """
    grids = [EXPONENTS, EXPONENTS, *(parameter.starts for parameter in law.parameters)]
    grid = np.array(list(product(*grids)))
    theta = np.zeros((len(grid), len(law)))
    theta[:, 3:] = grid
    sizes = np.exp(-theta[:, 3:4] * law.sizes(theta, runs, centre))
    data = np.exp(-theta[:, 4:5] * law.data(theta, runs, centre))
    # a term that starts near zero has no slope to grow by
    smallest = np.array([0.03, 0.03, 0.3]) * runs.loss.min()
    for i in range(len(grid)):
        columns = np.stack([sizes[i], data[i], np.ones(len(runs))], axis=1)
        found, _ = nnls(columns / runs.loss[:, None], np.ones(len(runs)))
        theta[i, :3] = np.log(np.maximum(found, smallest))
    return theta


def _flags(law: Law, theta: np.ndarray, converged: bool, found: float) -> tuple[str, ...]:
    said = [] if converged else [UNFINISHED]
    if not found <= MOST_CONDITION:
        said.append(f"its parameters are not told apart (condition number {found:.2g})")
    lowest, highest = law.limits()
    edge = 0.01 * (highest - lowest)
    for name, value, low, high in zip(
        law.names[3:], theta[3:], (lowest + edge)[3:], (highest - edge)[3:], strict=True
    ):
        if (value < low and name not in BASE) or value > high or (name in BASE and value < 0.01):
            said.append(f"{name} is at the edge of its range")
    said += [f"{name}'s term vanishes" for name in vanished(theta)]
    return tuple(said)


def vanished(theta: np.ndarray) -> list[str]:
    """Which of A, B and E have a term that is under a thousandth of all three, mid-design."""
    parts = np.exp(theta[:3])
    return [n for n, v in zip(BASE[:3], parts, strict=True) if v < 1e-3 * parts.sum()]
