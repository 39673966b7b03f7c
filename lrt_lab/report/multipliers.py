"""Token and compute multipliers of the route on each backbone, and losses at costs between
completed budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lrt_lab.analysis.multipliers import Multiplier, interaction, interpolate, multiplier
from lrt_lab.analysis.table import Table
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import mean

# below this many completed budgets the lines between them cannot be checked against curvature
ENOUGH_BUDGETS = 3
COSTS = ("tokens", "train_flops", "train_seconds")
UNITS = {"tokens": "tokens", "train_flops": "FLOPs", "train_seconds": "seconds"}


def ladder(design: Design, cell: str) -> list[str]:
    """The cells that are one model at several completed budgets, `cell` among them."""
    if cell in design.ladders:
        return list(dict.fromkeys((cell, *design.ladders[cell])))
    others = {twin.cell for twin in design.twins if not twin.same_model}
    own = dict(design.cells[cell])
    return [c for c, axes in design.cells.items() if dict(axes) == own and c not in others]


def cost_of(records: Sequence[Record], cell: str, cost: str) -> float:
    """A cell's mean cost over its finished runs; NaN without any."""
    found = mean(getattr(r, cost) for r in records if r.cell == cell and r.status == "finished")
    return float("nan") if found is None else found


def against(
    losses: Table, design: Design, records: Sequence[Record], base: str, variant: str, cost: str
) -> Multiplier | None:
    """The multiplier of one variant over the budgets of one baseline; None when the cost is not
    known.
    """
    rungs = [c for c in ladder(design, base) if np.isfinite(cost_of(records, c, cost))]
    spent = cost_of(records, variant, cost)
    if not rungs or not np.isfinite(spent):
        return None
    part = losses.select([*rungs, variant]).blocks()
    rows = [row[np.isfinite(row)] for row in part.loss]
    if min(len(row) for row in rows) < 2:
        return None
    return multiplier(
        [cost_of(records, c, cost) for c in rungs],
        rows[:-1],
        spent,
        rows[-1],
        paired_seeds=part.paired,
        straight=design.straight,
        level=1 - design.alpha,
    )


def described(found: Multiplier | None) -> dict[str, Any] | None:
    """A multiplier as JSON."""
    if found is None:
        return None
    value = asdict(found)
    value.pop("per_seed")
    return {**value, "enough_budgets": found.budgets >= ENOUGH_BUDGETS}


def of_square(
    losses: Table, design: Design, records: Sequence[Record], cost: str
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Multipliers per backbone for one cost, and the interaction on that scale with whether it may
    be relied on.
    """
    square = design.square
    if square is None:
        return {}, None
    p0, p1, a0, a1 = square.cells
    base = against(losses, design, records, p0, p1, cost)
    improved = against(losses, design, records, a0, a1, cost)
    found = {square.base: described(base), square.improved: described(improved)}
    if base is None or improved is None or not losses.paired:
        return found, None
    # the difference of two multipliers is paired by seed: both from the blocks that all cells share
    used = dict.fromkeys([*ladder(design, p0), p1, *ladder(design, a0), a1])
    shared = losses.select([c for c in used if np.isfinite(cost_of(records, c, cost))]).blocks()
    base = against(shared, design, records, p0, p1, cost)
    improved = against(shared, design, records, a0, a1, cost)
    if base is None or improved is None:
        return found, None
    estimate = interaction(base, improved)
    if estimate is None:
        return found, None
    enough = min(base.budgets, improved.budgets) >= ENOUGH_BUDGETS
    return found, {"estimate": estimate, "enough_budgets": enough}


def at_cost(
    losses: Table, design: Design, records: Sequence[Record], base: str, routed: str, cost: str
) -> tuple[np.ndarray | None, str]:
    """The baseline's losses at the routed cell's cost, one per seed of the table; or None and why
    not.
    """
    rungs = [c for c in ladder(design, base) if np.isfinite(cost_of(records, c, cost))]
    spent = cost_of(records, routed, cost)
    if not np.isfinite(spent):
        return None, f"{routed} has no finished run with a known cost"
    if len(rungs) < 2:
        return (
            None,
            f"{base} was trained at {len(rungs)} budget{'s' if len(rungs) != 1 else ''}; two or "
            "more are needed",
        )
    costs = [cost_of(records, c, cost) for c in rungs]
    found = interpolate(costs, [losses.row(c) for c in rungs], spent)
    if found is None:
        span = f"{min(costs):.4g} to {max(costs):.4g} {UNITS[cost]}"
        return None, f"{routed} took {spent:.4g}, outside what {base} was trained for ({span})"
    return found, ""
