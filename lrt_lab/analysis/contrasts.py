"""Contrasts by name, on any number of cells: weights that sum to zero over ln loss.

A positive contrast is always a gain: weights are written for a lower-is-better outcome,
`{reference: 1, variant: -1}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from lrt_lab.analysis.estimate import Estimate, independent, paired
from lrt_lab.analysis.linear_model import blocked
from lrt_lab.analysis.signflip import sign_flip
from lrt_lab.analysis.square import CONTRASTS, Scale, Square, log
from lrt_lab.analysis.table import Table
from lrt_lab.errors import UserError


@dataclass(frozen=True)
class Contrast:
    """A named weighted sum of cell means of ln loss; the weights sum to zero."""

    name: str
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if abs(sum(self.weights.values())) > 1e-9 or not any(self.weights.values()):
            raise UserError(
                f"contrast {self.name!r} has weights {dict(self.weights)}; they must sum to 0 and "
                "not all be 0"
            )


@dataclass(frozen=True)
class Tested:
    """A contrast's paired t (or Welch) estimate with its second opinions; arrays of the table's
    leading shape.
    """

    contrast: Contrast
    estimate: Estimate
    blocked: Estimate | None
    sign_flip: np.ndarray | None


def evaluate(table: Table, contrast: Contrast, scale: Scale = log) -> Tested:
    """Evaluate one contrast on the complete blocks of the cells that it weighs."""
    names = [cell for cell, weight in contrast.weights.items() if weight]
    part = table.select(names).blocks()
    weights = np.array([contrast.weights[cell] for cell in names], dtype=float)
    y = scale(part.loss)
    if not part.paired:
        return Tested(contrast, independent(y, weights), None, None)
    differences = np.einsum("c,...cs->...s", weights, y)
    whole = scale(table.blocks().loss)
    everywhere = np.array([contrast.weights.get(cell, 0.0) for cell in table.cells])
    return Tested(contrast, paired(differences), blocked(whole, everywhere), sign_flip(differences))


def of_square(square: Square) -> dict[str, Contrast]:
    """The six contrasts of a 2x2 by their names in `square.CONTRASTS`."""
    return {
        name: Contrast(name, dict(zip(square.cells, map(float, weights), strict=True)))
        for name, weights in CONTRASTS.items()
    }


def against(baseline: str, variants: Sequence[str]) -> list[Contrast]:
    """Every variant's gain over one shared baseline."""
    return [Contrast(variant, {baseline: 1.0, variant: -1.0}) for variant in variants]


@dataclass(frozen=True)
class Pair:
    """One (residual improvement, route) pair of a larger factorial, at fixed values of all further
    axes.
    """

    square: Square
    at: Mapping[str, str]

    @property
    def label(self) -> str:
        """`AttentionResiduals x LRT`, with the further axes' values behind it."""
        where = ", ".join(f"{axis}={value}" for axis, value in self.at.items())
        return f"{self.square.improved} x {self.square.route}" + (f" at {where}" if where else "")


def pairs(
    cells: Mapping[str, Mapping[str, str]], first: str, second: str, base: str, none: str
) -> list[Pair]:
    """Every pair of a value of axis `first` and one of axis `second` against the shared baseline
    (base, none).

    Args:
        cells: each cell's values by axis.
        first: the axis of residual improvements.
        second: the axis of routes.
        base: the baseline value of `first`.
        none: the baseline value of `second`.
    """
    axes = list(next(iter(cells.values())))
    values = {axis: list(dict.fromkeys(cell[axis] for cell in cells.values())) for axis in axes}
    by_values = {tuple(cell[axis] for axis in axes): name for name, cell in cells.items()}
    further = [axis for axis in axes if axis not in (first, second)]
    found = []
    for fixed in product(*(values[axis] for axis in further)):
        at = dict(zip(further, fixed, strict=True))
        for improved, route in product(values[first], values[second]):
            if improved == base or route == none:
                continue
            corners = [(base, none), (base, route), (improved, none), (improved, route)]
            names = [
                by_values.get(tuple({**at, first: b, second: r}[axis] for axis in axes))
                for b, r in corners
            ]
            # a pair whose corners were not all declared has no interaction to speak of
            if all(names):
                p0, p1, a0, a1 = (str(name) for name in names)
                found.append(Pair(Square(base, improved, none, route, (p0, p1, a0, a1)), at))
    return found
