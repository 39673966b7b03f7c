"""A suite's report: read the finished runs, analyse, draw, write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lrt_lab.report import arm_words, figures
from lrt_lab.report.contraction import contraction
from lrt_lab.report.curves import Curve, curves
from lrt_lab.report.layout import declared_square
from lrt_lab.report.markdown import render
from lrt_lab.report.results import summarise
from lrt_lab.report.scaling import suite as scaling
from lrt_lab.report.suite_runs import (
    design_of,
    read_runs,
    require_one_evaluation,
    scale_folder,
    strays,
)
from lrt_lab.store import write_text
from lrt_lab.suite.sessions import overhead


def write(plan: dict[str, Any], runs_dir: Path, out_dir: Path) -> Path:
    """Write `report.md`, `results.json` and `figures/` for a suite at one scale, finished or not.

    Args:
        plan: the suite's plan (`plan.json`).
        runs_dir: the folder that holds the plan's cells, or the root above `<suite>/<scale>`.
        out_dir: where the report goes.

    Returns:
        The path of `report.md`.
    """
    results, lines = gather(plan, Path(runs_dir))
    place = Path(out_dir) / "figures"
    if plan.get("scaling"):
        # Its many cells are points of one law, whose figures show them.
        scaling.add(results, plan, read_runs(plan, scale_folder(plan, Path(runs_dir))), place)
    else:
        figures.draw(results, _shown(results, lines), place)
    return publish(results, Path(out_dir))


def _shown(results: dict[str, Any], lines: list[Curve]) -> list[Curve]:
    """The curves of the square and its twins, of a sweep's default and best cells, or of arms that
    are no ablations: all of them at once would be a thicket.
    """
    arms = arm_words.shown(results)
    if arms is not None:
        return [line for line in lines if line.cell in arms]
    square = declared_square(results)
    if square:
        own = set(square["cells"])
        twins = [cell for cell in results["cells"] if cell["twin"]]
        own |= {c["cell"] for c in twins if {c["twin"]["of"], c["twin"]["as"]} <= own}
        return [line for line in lines if line.cell in own]
    if results["sweep"] is None:
        return lines
    rows = results["sweep"]["rows"]
    cells = {row[which]["cell"] for row in rows for which in ("default", "best") if row[which]}
    return [line for line in lines if line.cell in cells]


def gather(plan: dict[str, Any], runs_dir: Path) -> tuple[dict[str, Any], list[Curve]]:
    """Every number of the report, and the curves that its figures show."""
    folder = scale_folder(plan, runs_dir)
    design = replace(design_of(plan), strays=strays(plan, folder))
    records = read_runs(plan, folder)
    require_one_evaluation(records)
    lines = curves(records, folder, design.cells)
    results = summarise(design, records, lines)
    recurrences = contraction(design, records, folder)
    if recurrences:
        results["contraction"] = recurrences
    cost = overhead(plan, folder)
    results["wall_clock"]["overhead"] = cost.record() if cost else None
    return results, lines


def publish(results: Mapping[str, Any], out_dir: Path) -> Path:
    """`results.json` and the Markdown made from it."""
    write_text(
        out_dir / "results.json",
        json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    )
    path = out_dir / "report.md"
    write_text(path, render(results))
    return path
