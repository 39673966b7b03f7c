"""The 2x2 of a residual improvement and a route: its cells, its contrasts, its effects on several
scales.

Cells in order P0, P1, A0, A1: the baseline backbone without and with the route, the improved
backbone without and with it. On y = ln L a gain is g_b = y_b0 - y_b1, so that 1 - exp(-g_b) is the
relative improvement, and the interaction is I = g_A - g_P, so that exp(I) = (L_P1 / L_P0) / (L_A1 /
L_A0): I > 0 says that the relative improvement is larger on A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from lrt_lab.analysis.estimate import Estimate, independent, paired, quantile
from lrt_lab.analysis.ratio import Ratio, fieller, ratio_of_means
from lrt_lab.analysis.table import Table

# weights over P0, P1, A0, A1 of a lower-is-better outcome
CONTRASTS: dict[str, tuple[int, int, int, int]] = {
    "gain_base": (1, -1, 0, 0),
    "gain_improved": (0, 0, 1, -1),
    "interaction": (-1, 1, 1, -1),
    "improvement": (1, 0, -1, 0),
    "improvement_routed": (0, 1, 0, -1),
    "together": (1, 0, 0, -1),
}


@dataclass(frozen=True)
class Square:
    """Names of a 2x2: two backbones, two routes, and the four cells P0, P1, A0, A1."""

    base: str
    improved: str
    none: str
    route: str
    cells: tuple[str, str, str, str]

    @property
    def swapped(self) -> Square:
        """The same square with the backbones' roles exchanged; its interaction has the opposite
        sign.
        """
        p0, p1, a0, a1 = self.cells
        return replace(self, base=self.improved, improved=self.base, cells=(a0, a1, p0, p1))

    def with_cells(self, substitutes: dict[str, str]) -> Square:
        """The square with some cells replaced, as by twins trained for a matched budget."""
        p0, p1, a0, a1 = (substitutes.get(cell, cell) for cell in self.cells)
        return replace(self, cells=(p0, p1, a0, a1))


Scale = Callable[[np.ndarray], np.ndarray]


def log(loss: np.ndarray) -> np.ndarray:
    """The primary scale, ln L: equal relative improvements are no interaction."""
    return np.log(loss)


def absolute(loss: np.ndarray) -> np.ndarray:
    """Nats per token: equal differences are no interaction."""
    return loss


def excess(floor: float) -> Scale:
    """ln(L - E) over a stated entropy floor E: equal shares of the reducible loss are no
    interaction.
    """

    def scale(loss: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.log(np.where(loss > floor, loss - floor, np.nan))

    return scale


def effects(table: Table, square: Square, scale: Scale = log) -> dict[str, Estimate]:
    """Every contrast of the square on one scale, from complete pair blocks (or unpaired runs)."""
    part = table.select(square.cells).blocks()
    y = scale(part.loss)
    if part.paired:
        return {
            name: paired(np.einsum("c,...cs->...s", np.array(w, float), y))
            for name, w in CONTRASTS.items()
        }
    return {name: independent(y, w) for name, w in CONTRASTS.items()}


def per_seed(table: Table, square: Square, scale: Scale = log) -> dict[str, np.ndarray]:
    """The per-seed contrasts behind `effects` (paired tables), each (..., seeds)."""
    y = scale(table.select(square.cells).blocks().loss)
    return {
        name: np.einsum("c,...cs->...s", np.array(w, float), y) for name, w in CONTRASTS.items()
    }


def relative_gains(table: Table, square: Square) -> dict[str, Estimate]:
    """1 - L_b1 / L_b0 per backbone; for unpaired runs by the delta method on the means."""
    part = table.select(square.cells).blocks()
    found = {}
    for name, first in (("gain_base", 0), ("gain_improved", 2)):
        plain, routed = part.loss[..., first, :], part.loss[..., first + 1, :]
        if part.paired:
            found[name] = paired(1 - routed / plain)
            continue
        gain = independent(np.log(part.loss[..., first : first + 2, :]), (1, -1))
        kept = np.exp(-gain.point)
        found[name] = Estimate(1 - kept, gain.se * kept, gain.df, gain.n)
    return found


def relative_ratio(table: Table, square: Square, level: float = 0.95) -> Ratio:
    """rho = relative gain on A / relative gain on P, with Fieller's set."""
    part = table.select(square.cells).blocks()
    if part.paired:
        gains = [1 - part.loss[..., i + 1, :] / part.loss[..., i, :] for i in (2, 0)]
        return ratio_of_means(gains[0], gains[1], level)
    found = relative_gains(table, square)
    a, b = found["gain_improved"], found["gain_base"]
    with np.errstate(invalid="ignore"):
        q = quantile(np.minimum(a.df, b.df), level)
    return fieller(a.point, b.point, a.se**2, b.se**2, np.zeros_like(a.point), q)


def signs_disagree(interactions: Iterable[Estimate], level: float = 0.95) -> bool:
    """Whether the interaction is scale-dependent.

    With seeds: some scale's interval lies above 0 and another's below. Without (fewer than two):
    the point estimates differ in sign.
    """
    seen: set[int] = set()
    for estimate in interactions:
        low, high = (float(end) for end in estimate.interval(level))
        if np.isnan(low):
            seen.add(int(np.sign(estimate.point)))
        else:
            seen.add(1 if low > 0 else -1 if high < 0 else 0)
    return {1, -1} <= seen
