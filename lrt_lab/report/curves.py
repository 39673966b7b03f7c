"""Learning curves: per-run series from `metrics.jsonl`, and their mean with a t band over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrt_lab.analysis.estimate import paired
from lrt_lab.report.records import Record

AXES = ("tokens", "flops", "seconds")
SERIES = ("val/loss", "train/loss")


@dataclass(frozen=True)
class Curve:
    """One cell's curves at common optimizer steps: x (axis -> (points,)) and loss (seeds,
    points).
    """

    cell: str
    series: str
    x: Mapping[str, np.ndarray]
    loss: np.ndarray

    def band(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean over seeds with its t interval at each point (pointwise, not simultaneous);
        (points,) each.
        """
        estimate = paired(self.loss.T)
        low, high = estimate.interval(level)
        return estimate.point, low, high


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; a last line cut short by a kill is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def curves(records: Sequence[Record], folder: Path, cells: Iterable[str]) -> list[Curve]:
    """The cells' curves from their finished runs; cells without any are left out."""
    found = []
    for cell in cells:
        runs = [
            read_metrics(folder / r.folder / "metrics.jsonl")
            for r in records
            if r.cell == cell and r.status == "finished"
        ]
        curve = _common(cell, [rows for rows in runs if rows])
        if curve is not None:
            found.append(curve)
    return found


def _common(cell: str, runs: Sequence[Sequence[Mapping[str, Any]]]) -> Curve | None:
    for series in SERIES:
        by_step = [
            {row["step"]: row for row in rows if series in row and row[series] is not None}
            for rows in runs
        ]
        by_step = [rows for rows in by_step if rows]
        if not by_step:
            continue
        steps = sorted(set.intersection(*(set(rows) for rows in by_step)))
        if len(steps) < 2:
            continue
        x = {
            axis: np.array(
                [[rows[s].get(axis, np.nan) for s in steps] for rows in by_step], float
            ).mean(axis=0)
            for axis in AXES
        }
        return Curve(
            cell, series, x, np.array([[rows[s][series] for s in steps] for rows in by_step], float)
        )
    return None
