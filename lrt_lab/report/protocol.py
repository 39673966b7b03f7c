"""How cells were made comparable: the tuned rates with their sweeps, and how strongly the ports of
a route let its memory in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.analysis.contrasts import Contrast
from lrt_lab.report.records import Design, Record


def rates(design: Design, contrast: Contrast | None = None) -> dict[str, Any] | None:
    """What tuning tried and chose, and what the default would have given; None without tuning.

    Gains and the interaction here are point estimates over tuning seeds on validation rows, at the
    best and at the default factor: they show what tuning changes, and are no evidence themselves.
    A suite that compares right answers was tuned on them: its `losses` are shares of wrong ones.
    """
    record = design.source.get("tuning")
    if not record:
        return None
    rows = []
    for name, choice in record["cells"].items():
        losses = {float(factor): _mean(found) for factor, found in choice["losses"].items()}
        rows.append(
            {
                "cell": name,
                # As it names the losses: a factor beyond the grid may have more digits.
                "factor": float(f"{choice['factor']:g}"),
                "inside": choice["inside"],
                "losses": [{"factor": f, "loss": losses[f]} for f in sorted(losses)],
                "per_seed": [choice["losses"][f"{f:g}"] for f in sorted(losses)],
                "best": losses[float(f"{choice['factor']:g}")],
                "default": losses.get(1.0),
            }
        )
    return {
        "key": record["key"],
        "seeds": record["seeds"],
        "outcome": record["outcome"].partition(" ")[0],
        "metric": record["outcome"].partition(" ")[2] or "loss",
        "inputs": record["inputs"],
        "rows": rows,
        "unchanged": list(design.unchanged),
        "square": _square(design, {row["cell"]: row for row in rows}),
        "gain": _gain(contrast, {row["cell"]: row for row in rows}),
    }


def _gain(
    contrast: Contrast | None, rows: Mapping[str, Mapping[str, Any]]
) -> dict[str, float] | None:
    """The contrast at the best and at the default factor; None where a cell lacks one."""
    if contrast is None or any(cell not in rows for cell in contrast.weights):
        return None
    found = {}
    for which in ("best", "default"):
        losses = {cell: rows[cell][which] for cell in contrast.weights}
        if None in losses.values():
            return None
        found[which] = sum(w * float(np.log(losses[cell])) for cell, w in contrast.weights.items())
    return found


def _mean(found: Sequence[float | None]) -> float | None:
    known = [loss for loss in found if loss is not None]
    return sum(known) / len(known) if len(known) == len(found) else None


def _square(design: Design, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Gains and interaction at the best and at the default factor; None where a cell lacks one."""
    square = design.square
    if square is None or any(cell not in rows for cell in square.cells):
        return None
    found = {}
    for which in ("best", "default"):
        losses = [rows[cell][which] for cell in square.cells]
        if any(loss is None for loss in losses):
            return None
        p0, p1, a0, a1 = np.log(losses) if design.metric == "loss" else losses
        found[which] = {
            "gain_base": p0 - p1,
            "gain_improved": a0 - a1,
            "interaction": (a0 - a1) - (p0 - p1),
        }
    return found


def ports(design: Design, records: Sequence[Record]) -> list[dict[str, Any]]:
    """By cell with an injection: what is emitted, and by block ln(|gamma m| / |x|), over seeds."""
    found = []
    for name in design.cells:
        seen = [
            r.final["injection"]
            for r in records
            if r.cell == name and r.status == "finished" and r.final.get("injection")
        ]
        if seen:
            values = np.array([one["log_ratio"] for one in seen], dtype=float)
            found.append(
                {
                    "cell": name,
                    "backbone": seen[0]["backbone"],
                    "vector": seen[0]["vector"],
                    "log_ratio": values.mean(axis=0),
                    "per_seed": values,
                }
            )
    return found
