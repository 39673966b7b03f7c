"""Best of a sweep: the same values of one axis, mostly learning rates, are tried for every variant;
the best is chosen on validation loss, and judged by its test loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.analysis.contrasts import Contrast
from lrt_lab.analysis.table import Table
from lrt_lab.report.comparisons import adjusted
from lrt_lab.report.curves import Curve
from lrt_lab.report.records import Design

SERIES = "val/loss"


def best(losses: Table, design: Design, curves: Sequence[Curve]) -> dict[str, Any] | None:
    """One row per variant: its default cell and its best one, each with its gain over the
    baseline's default and best. None without a sweep.

    A value is chosen by the mean over seeds of the validation loss at the end of training. A cell
    with a missing or diverged run cannot be chosen. Both kinds of gains have Holm's p over their
    own rows.
    """
    if design.sweep is None or design.baseline is None:
        return None
    axis, default = design.sweep
    final = {
        curve.cell: float(curve.loss[:, -1].mean())
        for curve in curves
        if curve.series == SERIES and len(curve.loss) == len(design.seeds)
    }
    aside = design.again | {twin.cell for twin in design.twins}
    variants: dict[str, dict[str, str]] = {}
    for cell, axes in design.cells.items():
        if cell not in aside:
            variants.setdefault(_variant(axes, axis), {})[str(axes[axis])] = cell
    chosen = {
        variant: min((c for c in tried.values() if c in final), key=final.__getitem__, default=None)
        for variant, tried in variants.items()
    }
    first = _variant(design.cells[design.baseline], axis)
    gains = {
        "default": _gains(losses, design, {v: tried.get(default) for v, tried in variants.items()}),
        "best": _gains(losses, design, chosen, first),
    }
    values = [str(value) for value in design.axes[axis]]
    rows = []
    for variant, tried in variants.items():
        row: dict[str, Any] = {"variant": variant, "validation": {}}
        row["validation"] = {value: final.get(tried.get(value, "")) for value in values}
        for kind, place in (("default", tried.get(default)), ("best", chosen[variant])):
            row[kind] = None if place is None else _of(place, axis, losses, design, gains[kind])
        row["at_the_edge"] = bool(row["best"]) and row["best"]["value"] in (values[0], values[-1])
        rows.append(row)
    return {"axis": axis, "default": default, "values": values, "baseline": first, "rows": rows}


def _variant(axes: Mapping[str, str], axis: str) -> str:
    """What a cell is called without its value on the sweep's axis."""
    return "+".join(str(value) for name, value in axes.items() if name != axis)


def _gains(
    losses: Table, design: Design, cells: Mapping[str, str | None], first: str | None = None
) -> dict[str, dict[str, Any]]:
    """By cell, what it gains over the baseline's."""
    base = design.baseline if first is None else cells[first]
    others = [cell for cell in cells.values() if cell not in (None, base)]
    if base is None:
        return {}
    rows = adjusted(losses, [Contrast(str(c), {base: 1.0, str(c): -1.0}) for c in others], design)
    return {row["name"]: row for row in rows}


def _of(
    cell: str, axis: str, losses: Table, design: Design, gains: Mapping[str, Any]
) -> dict[str, Any]:
    loss = losses.select([cell]).loss[0]
    known = loss[np.isfinite(loss)]
    return {
        "cell": cell,
        "value": str(design.cells[cell][axis]),
        "loss": float(known.mean()) if len(known) else None,
        "gain": gains.get(cell),
    }
