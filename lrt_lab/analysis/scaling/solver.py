"""Many small smooth problems minimised at once: BFGS with a batch axis.

A bootstrap solves a thousand copies of one problem with other weights. One numpy call per step for
all of them costs a small part of a thousand calls of a scalar optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# values (b,) and gradients (b, P) of the problems `which` (b,) at points (b, P)
Function = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

SUFFICIENT, ROUNDING = 1e-4, 1e-14


@dataclass(frozen=True)
class Minima:
    """Where each search ended: points (B, P), values (B,), gradients (B, P), and whether it
    converged.
    """

    points: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    converged: np.ndarray


def minimise(
    function: Function,
    starts: np.ndarray,
    inverse: np.ndarray,
    *,
    iterations: int = 300,
    tolerance: float = 1e-11,
) -> Minima:
    """Minimise from each start.

    Args:
        function: see `Function`; where it is not finite a step is cut.
        starts: (B, P).
        inverse: first guess of the inverse Hessian, (P, P) or (B, P, P).
        iterations: at most so many steps each.
        tolerance: a search has converged when a full quasi-Newton step promises to lower the value
            by less than this share of it (of one, where it is below one).
    """
    x = np.array(starts, dtype=float)
    b, size = x.shape
    h = np.broadcast_to(inverse, (b, size, size)).copy()
    first = h.copy()
    f, g = function(x, np.arange(b))
    converged, fresh = np.zeros(b, dtype=bool), np.ones(b, dtype=bool)
    active = np.flatnonzero(np.isfinite(f))
    for _ in range(iterations):
        if not len(active):
            break
        step = -np.einsum("bij,bj->bi", h[active], g[active])
        slope = np.einsum("bi,bi->b", step, g[active])
        small = -slope <= tolerance * np.maximum(np.abs(f[active]), 1.0)
        # a step may look small only because the curvature was learnt wrongly: try afresh once
        again = small & ~fresh[active]
        done = small & fresh[active]
        h[active[again]], fresh[active[again]] = first[active[again]], True
        converged[active[done]] = True
        go = ~small
        active, step, slope, retry = active[go], step[go], slope[go], active[again]
        new_x, new_f, new_g, moved = _search(function, x, f, active, step, slope)
        stuck = active[~moved]
        # no lower point along this direction: afresh, or the end of what doubles can tell
        ended = fresh[stuck]
        converged[stuck[ended]] = _flat(h, g, f, stuck[ended], tolerance)
        h[stuck[~ended]], fresh[stuck[~ended]] = first[stuck[~ended]], True
        kept = active[moved]
        s, y = new_x[moved] - x[kept], new_g[moved] - g[kept]
        x[kept], f[kept], g[kept] = new_x[moved], new_f[moved], new_g[moved]
        h[kept] = _updated(h[kept], s, y)
        fresh[kept] = False
        active = np.sort(np.concatenate([kept, stuck[~ended], retry]))
    return Minima(x, f, g, converged)


def _flat(
    h: np.ndarray, g: np.ndarray, f: np.ndarray, which: np.ndarray, tolerance: float
) -> np.ndarray:
    promise = np.einsum("bi,bij,bj->b", g[which], h[which], g[which])
    return promise <= 1e4 * tolerance * np.maximum(np.abs(f[which]), 1.0)


def _search(
    function: Function,
    x: np.ndarray,
    f: np.ndarray,
    active: np.ndarray,
    step: np.ndarray,
    slope: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Backtracking by a parabola through value and slope, each problem on its own."""
    new_x = x[active] + step
    new_f, new_g = function(new_x, active)
    length = np.ones(len(active))
    with np.errstate(invalid="ignore"):
        wrong = ~(new_f <= f[active] + SUFFICIENT * length * slope)
    # below this promise a difference of two values is rounding
    floor = ROUNDING * np.abs(f[active])
    while len(todo := np.flatnonzero(wrong & (-slope * length > floor))):
        rise = new_f[todo] - f[active[todo]] - length[todo] * slope[todo]
        with np.errstate(invalid="ignore", divide="ignore"):
            best = -slope[todo] * length[todo] ** 2 / (2 * rise)
        best = np.where(np.isfinite(best), best, 0.0)
        length[todo] = np.clip(best, 0.1 * length[todo], 0.5 * length[todo])
        trial = x[active[todo]] + length[todo, None] * step[todo]
        new_x[todo] = trial
        new_f[todo], new_g[todo] = function(trial, active[todo])
        with np.errstate(invalid="ignore"):
            wrong[todo] = ~(
                new_f[todo] <= f[active[todo]] + SUFFICIENT * length[todo] * slope[todo]
            )
    return new_x, new_f, new_g, ~wrong


def _updated(h: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The BFGS update; left alone where the curvature along the step is not positive."""
    sy = np.einsum("bi,bi->b", s, y)
    hy = np.einsum("bij,bj->bi", h, y)
    yhy = np.einsum("bi,bi->b", y, hy)
    good = (sy > 0) & (sy > 1e-12 * yhy)
    rho = np.where(good, 1 / np.where(good, sy, 1.0), 0.0)
    outer = s[:, :, None] * hy[:, None, :]
    change = rho[:, None, None] * (
        (1 + rho * yhy)[:, None, None] * s[:, :, None] * s[:, None, :]
        - outer
        - outer.transpose(0, 2, 1)
    )
    return np.where(good[:, None, None], h + change, h)
