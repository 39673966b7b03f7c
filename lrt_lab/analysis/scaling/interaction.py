"""The law of the interaction itself: how I of the 2x2 changes with size and with data.

I(N, D) = i + i_N ln(N / N0) + i_D ln(D / D0), N0 and D0 the geometric means: i is the interaction
in the middle of the design, i_N what an e-fold of parameters adds. I is on ln loss, per seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lrt_lab.analysis.estimate import Estimate
from lrt_lab.errors import UserError


@dataclass(frozen=True)
class InteractionLaw:
    """The three coefficients with Student t intervals, and where the middle is.

    Attributes:
        middle: I at (size, tokens).
        by_size, by_data: change of I per e-fold of N and of D; None where that did not vary.
        size, tokens: geometric means N0 and D0.
        vanishes: the size at which I would be zero at D0; NaN if its slope is not shown.
    """

    middle: Estimate
    by_size: Estimate | None
    by_data: Estimate | None
    size: float
    tokens: float
    vanishes: float


def interaction_law(size: ArrayLike, tokens: ArrayLike, interaction: ArrayLike) -> InteractionLaw:
    """Least squares over per-seed interactions, one entry per (N, D, seed).

    Raises:
        UserError: neither size nor data varies, they vary together, or there are too few entries.
    """
    n, d, y = (np.asarray(v, dtype=float).ravel() for v in (size, tokens, interaction))
    columns = _columns(n, d)
    matrix = np.stack(list(columns.values()), axis=1)
    df = len(y) - matrix.shape[1]
    coefficients = np.linalg.lstsq(matrix, y, rcond=None)[0]
    left = y - matrix @ coefficients
    errors = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)) * (left**2).sum() / df)
    found = {
        name: Estimate(np.asarray(c), np.asarray(se), np.asarray(df), len(y))
        for name, c, se in zip(columns, coefficients, errors, strict=True)
    }
    middle = np.exp([np.log(n).mean(), np.log(d).mean()])
    vanishes, slope = float("nan"), found.get("by_size")
    if slope is not None and np.prod(np.sign(slope.interval())) > 0:
        vanishes = float(middle[0] * np.exp(-found["middle"].point / slope.point))
    return InteractionLaw(
        found["middle"], slope, found.get("by_data"), float(middle[0]), float(middle[1]), vanishes
    )


def expected_interaction(size: ArrayLike, tokens: ArrayLike, sd: float) -> dict[str, float]:
    """Standard errors of the law's coefficients from a design, before any run.

    Args:
        size, tokens: of every value of I that there will be.
        sd: deviation of one value.

    Raises:
        UserError: as for the law.
    """
    columns = _columns(*(np.asarray(v, dtype=float).ravel() for v in (size, tokens)))
    matrix = np.stack(list(columns.values()), axis=1)
    errors = sd * np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)))
    return dict(zip(columns, errors.tolist(), strict=True))


def _columns(size: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """What each coefficient is multiplied by, (n,) each, centred."""
    x, z = np.log(size), np.log(tokens)
    columns = {"middle": np.ones_like(x)}
    if np.ptp(x) > 1e-9:
        columns["by_size"] = x - x.mean()
    if np.ptp(z) > 1e-9:
        columns["by_data"] = z - z.mean()
    if len(columns) == 1:
        raise UserError("neither size nor data varies: the interaction has one value, not a law")
    if len(x) <= len(columns):
        raise UserError(f"{len(x)} interactions are too few for {len(columns)} coefficients")
    if np.linalg.cond(np.stack(list(columns.values()), axis=1)) > 1e6:
        raise UserError("size and data grow together here: their effects cannot be told apart")
    return columns
