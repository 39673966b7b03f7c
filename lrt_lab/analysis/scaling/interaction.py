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
    x, z = np.log(n), np.log(d)
    middle_size, middle_data = float(x.mean()), float(z.mean())
    columns = {"middle": np.ones_like(y)}
    if np.ptp(x) > 1e-9:
        columns["by_size"] = x - middle_size
    if np.ptp(z) > 1e-9:
        columns["by_data"] = z - middle_data
    if len(columns) == 1:
        raise UserError("neither size nor data varies: the interaction has one value, not a law")
    matrix = np.stack(list(columns.values()), axis=1)
    df = len(y) - matrix.shape[1]
    if df < 1:
        raise UserError(f"{len(y)} interactions are too few for {matrix.shape[1]} coefficients")
    if np.linalg.cond(matrix) > 1e6:
        raise UserError("size and data grow together here: their effects cannot be told apart")
    coefficients = np.linalg.lstsq(matrix, y, rcond=None)[0]
    left = y - matrix @ coefficients
    errors = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)) * (left**2).sum() / df)
    found = {
        name: Estimate(np.asarray(c), np.asarray(se), np.asarray(df), len(y))
        for name, c, se in zip(columns, coefficients, errors, strict=True)
    }
    vanishes, slope = float("nan"), found.get("by_size")
    if slope is not None and np.prod(np.sign(slope.interval())) > 0:
        vanishes = float(np.exp(middle_size - found["middle"].point / slope.point))
    return InteractionLaw(
        found["middle"],
        slope,
        found.get("by_data"),
        float(np.exp(middle_size)),
        float(np.exp(middle_data)),
        vanishes,
    )
