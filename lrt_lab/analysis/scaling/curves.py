"""Two small curves: loss against passes, which saturates, and the compute-optimal size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from lrt_lab.analysis.estimate import Estimate
from lrt_lab.errors import UserError


@dataclass(frozen=True)
class Saturation:
    """L(K) = floor + height exp(-(K - 1) / tau), tau in passes."""

    floor: float
    height: float
    tau: float
    residual: float

    def __call__(self, passes: ArrayLike) -> np.ndarray:
        """The curve at pass counts."""
        k = np.asarray(passes, dtype=float)
        return self.floor + self.height * np.exp(-(k - 1) / self.tau)


def saturation(passes: ArrayLike, loss: ArrayLike) -> Saturation:
    """Least squares fit of a saturating exponential to loss against passes.

    Given tau the curve is linear in floor and height, so only tau is searched.

    Raises:
        UserError: fewer than four different pass counts.
    """
    k, y = np.asarray(passes, dtype=float), np.asarray(loss, dtype=float)
    if len(np.unique(k)) < 4:
        raise UserError(
            f"a saturating curve has three parameters; {len(np.unique(k))} pass counts are too few"
        )

    def solved(ln_tau: float) -> tuple[np.ndarray, float]:
        columns = np.stack([np.ones_like(k), np.exp(-(k - 1) / np.exp(ln_tau))], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        return found, float(((columns @ found - y) ** 2).sum())

    low, high = np.log(0.05), np.log(10 * np.ptp(k))
    grid = np.linspace(low, high, 200)
    best = int(np.argmin([solved(t)[1] for t in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    ln_tau = float(
        minimize_scalar(
            lambda t: solved(t)[1], bounds=around, method="bounded", options={"xatol": 1e-10}
        ).x
    )
    (floor, height), squares = solved(ln_tau)
    return Saturation(
        float(floor), float(height), float(np.exp(ln_tau)), float(np.sqrt(squares / len(y)))
    )


def exponent(x: ArrayLike, y: ArrayLike, deviation: ArrayLike | None = None) -> Estimate:
    """The exponent a of y = c x^a: regression of ln y on ln x, weighted by 1 / deviation^2 where
    the deviation of ln y is known.
    """
    u, v = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    w = np.ones_like(u) if deviation is None else 1 / np.asarray(deviation, dtype=float) ** 2
    w = w / w.sum()
    centred = u - (w * u).sum()
    spread = float((w * centred**2).sum())
    a = float((w * centred * v).sum()) / spread
    left = v - (w * v).sum() - a * centred
    df = len(u) - 2
    variance = float((w * left**2).sum()) / spread / df if df > 0 else np.nan
    return Estimate(np.asarray(a), np.sqrt(variance), np.asarray(df), len(u))


@dataclass(frozen=True)
class Optimum:
    """The best size at one compute: ln N* with its deviation, the loss there, and the points."""

    log_size: float
    deviation: float
    loss: float
    points: int


def isoflop(size: ArrayLike, loss: ArrayLike, reach: float = 4.0, least: int = 5) -> Optimum | None:
    """The minimum of a parabola through ln L against ln N at one compute.

    Points within a factor `reach` of the best size enter, and at least the `least` nearest ones;
    None with fewer than five points, or where the parabola has no minimum between them.
    """
    x, y = np.log(np.asarray(size, dtype=float)), np.log(np.asarray(loss, dtype=float))
    if len(x) < 5:
        return None
    away = np.abs(x - x[np.argmin(y)])
    near = (away <= np.log(reach)) | (away <= np.sort(away)[min(least, len(x)) - 1])
    x, y = x[near], y[near]
    middle = x.mean()
    columns = np.stack([np.ones_like(x), x - middle, (x - middle) ** 2], axis=1)
    (c0, c1, c2), *_ = np.linalg.lstsq(columns, y, rcond=None)
    at = -c1 / (2 * c2) if c2 > 0 else np.nan
    if not x.min() <= at + middle <= x.max():
        return None
    left = y - columns @ np.array([c0, c1, c2])
    variance = float((left**2).sum()) / max(len(x) - 3, 1) * np.linalg.inv(columns.T @ columns)
    slope = np.array([0.0, -1 / (2 * c2), c1 / (2 * c2**2)])
    deviation = float(np.sqrt(slope @ variance @ slope))
    return Optimum(
        float(at + middle), deviation, float(np.exp(c0 + c1 * at + c2 * at * at)), len(x)
    )
