"""Tasks: how many answers are right, by cell, and what each cell gains in plain differences.

Accuracies are compared as they are, not as logarithms: a difference of .1 is one answer in ten,
wherever it is. Near 0 or 1 such differences shrink for every cell, so a task should be sized to
stay away from both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lrt_lab.analysis.contrasts import Contrast, against, evaluate, of_square
from lrt_lab.analysis.estimate import paired
from lrt_lab.analysis.multiplicity import holm
from lrt_lab.analysis.study import GAINS
from lrt_lab.analysis.table import Table
from lrt_lab.report import accuracy_squares, comparisons
from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import NONE, count, interval, listing, p, percent, plain
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import interval as values
from lrt_lab.report.values import test

Results = Mapping[str, Any]
STATES = ("gain shown", "loss shown", "neither shown")
METRICS = {
    "last_accuracy": "accuracy at the last position",
    "accuracy": "accuracy over all positions",
    "exact_match": "rows right at every position",
}
#: Where an accuracy stands in a run's test record.
READINGS = {
    "exact": ("exact",),
    "last pass": ("last_pass",),
    "exact, twice as long": ("longer", "exact"),
    "last pass, twice as long": ("longer", "last_pass"),
}


def measured(design: Design, records: Sequence[Record]) -> dict[str, Any] | None:
    """Accuracies of every cell and, if the suite's metric is one, what each cell gains; None of
    text.
    """
    done = [r for r in records if r.status == "finished" and "rows" in (r.final.get("test") or {})]
    if not done and design.metric == "loss":
        return None
    level = 1 - design.alpha
    shares = {
        metric: [
            {
                "cell": cell,
                "place": place,
                "readings": {
                    name: _share([r for r in done if r.cell == cell], where, metric, level)
                    for name, where in READINGS.items()
                },
            }
            for place, cells in _places(design).items()
            for cell in cells.values()
        ]
        for metric in METRICS
    }
    found: dict[str, Any] = {"metric": None, "outcome": design.outcome, "cells": shares}
    if design.metric == "loss":
        return {**found, "family": [], "gains": [], "square": None, "reading": None}
    table = _table(design, done, (design.outcome,))
    gains = _gains(design, table)
    last = partial(_row, _table(design, done, ("last_pass",)))
    own = [row for row in gains if row["name"] == design.primary]
    return {
        **found,
        "metric": design.metric,
        "family": list(design.family),
        "baseline": _baseline(design),
        "alone": bool(design.family) and bool(own) and design.primary not in design.family,
        "gains": gains,
        "square": accuracy_squares.measured(table, design, last),
        "reading": _state(own[0], design.alpha) if own else None,
    }


def _baseline(design: Design) -> str | None:
    """What every variant is compared with; None where a 2x2 is."""
    if design.square is not None or design.baseline is None:
        return None
    return str(design.cells[design.baseline][design.square_axes[0]])


def _places(design: Design) -> dict[str, dict[str, str]]:
    """The cells at each combination of the axes outside the contrast, by their place inside it."""
    inside = set(design.square_axes)
    found: dict[str, dict[str, str]] = {}
    for cell, axes in design.cells.items():
        place = "+".join(str(value) for axis, value in axes.items() if axis not in inside)
        found.setdefault(place, {})[cell] = cell
    return found


def _share(
    runs: Sequence[Record], where: tuple[str, ...], metric: str, level: float
) -> dict[str, Any]:
    """Mean over seeds with Student's interval, and each seed's value."""
    found = np.array([_read(run, where, metric) for run in runs], float)
    return {**values(paired(found), level), "values": found} if len(found) else {"values": []}


def _read(run: Record, where: tuple[str, ...], metric: str) -> float:
    test = run.final["test"]
    for name in where:
        test = test[name]
    return test[metric]


def _gains(design: Design, table: Table) -> list[dict[str, Any]]:
    """Paired differences in the metric, more being better.

    Holm's p is over the declared family, and over the others; over all of them without a family. A
    primary contrast that a declared family leaves out stands alone.
    """
    wanted = [
        (place, contrast)
        for place, cells in _places(design).items()
        for contrast in _contrasts(design, list(cells))
    ]
    names = {contrast.name: contrast for _, contrast in wanted}
    family = {comparisons.named(name, names).name for name in design.family}
    alone = {design.primary} - family if family else set()
    parts = [
        [one for one in wanted if one[1].name in alone],
        [one for one in wanted if one[1].name in family],
        [one for one in wanted if one[1].name not in family | alone],
    ]
    return [row for part in parts if part for row in _tested(design, table, part)]


def _tested(
    design: Design, table: Table, wanted: Sequence[tuple[str, Contrast]]
) -> list[dict[str, Any]]:
    """A family of contrasts, with Holm's p over just these."""
    tested = [evaluate(table, contrast, accuracy_squares.more).estimate for _, contrast in wanted]
    adjusted = holm(np.array([float(estimate.p()) for estimate in tested]))
    return [
        test(
            estimate,
            1 - design.alpha,
            name=contrast.name,
            label=comparisons.label(contrast.name, design),
            place=place,
            weights={cell: -weight for cell, weight in contrast.weights.items()},
            p_holm=float(together),
        )
        for (place, contrast), estimate, together in zip(wanted, tested, adjusted, strict=True)
    ]


def _table(design: Design, runs: Sequence[Record], where: tuple[str, ...]) -> Table:
    # Put together by hand: of losses a table wants positive ones, and an accuracy may be 0.
    cells = tuple(design.cells)
    shares = np.full((len(cells), len(design.seeds)), np.nan)
    for run in runs:
        at = cells.index(run.cell), design.seeds.index(run.seed)
        shares[at] = _read(run, where, design.metric)
    return Table(cells, design.seeds, shares)


def _row(table: Table, cell: str) -> np.ndarray | None:
    found = table.row(cell)
    return found if np.isfinite(found).any() else None


def _contrasts(design: Design, cells: list[str]) -> list[Contrast]:
    """What a plan compares at one place: its 2x2, or every cell with the baseline; and its own."""
    own = [
        Contrast(name, {cell: float(weight) for cell, weight in weights.items()})
        for name, weights in design.contrasts.items()
        if set(weights) <= set(cells)
    ]
    square = design.square
    if square is not None and set(square.cells) <= set(cells):
        named = of_square(square)
        return [*(named[name] for name in (*GAINS, "interaction")), *own]
    start = design.cells[design.baseline] if design.baseline else {}
    axis = design.square_axes[0] if design.square_axes else ""
    base = [cell for cell in cells if axis in start and design.cells[cell][axis] == start[axis]]
    # The baseline at another budget, which stands behind it, is one of the variants.
    return [*(against(base[0], [c for c in cells if c != base[0]]) if base else []), *own]


def verdict(results: Results) -> list[str]:
    """What is shown to gain and what is not, one paragraph for each task."""
    found = results["accuracy"]
    said = []
    for place in dict.fromkeys(row["place"] for row in found["gains"]):
        rows = [row for row in found["gains"] if row["place"] == place]
        if any(row["low"] is None for row in rows):
            said.append(f"{_at(place)}no interval: fewer than two complete pair blocks.")
            continue
        alpha = results["suite"]["alpha"]
        states = {state: [row for row in rows if _state(row, alpha) == state] for state in STATES}
        parts = [
            f"{state}: {listing([_named(row) for row in group])}"
            for state, group in states.items()
            if group
        ]
        said.append(f"{_at(place)}{'; '.join(parts)}.")
    what = METRICS[found["metric"]]
    reading = "exact recurrence" if found["outcome"] == "exact" else "last training pass"
    level = percent(1 - results["suite"]["alpha"])
    over = "the declared family, or over the others," if found["family"] else "all of them"
    alone = "; the primary contrast stands alone" if found.get("alone") else ""
    base = found.get("baseline")
    against = f", over {base} where no other is named" if base else ""
    rule = (
        f"Differences in {what}, {reading}{against}, {level} intervals over seeds; shown means "
        f"that Holm's p over {over} is below {results['suite']['alpha']:g}{alone}."
    )
    first = _primary(results) if found.get("alone") else []
    square = found["square"]
    return [*first, rule, *said, *([accuracy_squares.verdict(square)] if square else [])]


def _primary(results: Results) -> list[str]:
    """The primary contrast, where it stands alone: what is asked first is said first."""
    found = results["accuracy"]
    rows = [row for row in found["gains"] if row["name"] == results["suite"]["primary"]]
    if not rows or rows[0]["low"] is None:
        return []
    # What is named like a cell is that cell's gain over the baseline.
    variant = rows[0]["name"] in {cell["cell"] for cell in results["cells"]}
    over = f" over {found['baseline']}" if variant else ""
    return [
        f"{rows[0]['label']}{over}: {_state(rows[0], results['suite']['alpha'])} "
        f"({interval(rows[0])} in {METRICS[found['metric']]})."
    ]


def _state(row: Mapping[str, Any], alpha: float) -> str:
    """Whether a difference is shown; one that is 0 in every seed has no p."""
    if row["p_holm"] is None or not row["p_holm"] < alpha or not row["point"]:
        return STATES[2]
    return STATES[0] if row["point"] > 0 else STATES[1]


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['label']} ({interval(row)})"


def _at(place: str) -> str:
    return f"**{place}**: " if place else ""


def section(results: Results) -> list[str]:
    """Accuracy by cell, trained and twice the length, then the gains."""
    found = results["accuracy"]
    if not found:
        return []
    level = percent(1 - results["suite"]["alpha"])
    parts = [
        "## Accuracy",
        f"Mean over seeds with its {level} interval, then the exact recurrence's value for every "
        "seed. Rows twice as long as those trained on ask for positions never seen. Intervals are "
        "Student's and know no bounds: they can leave [0, 1].",
    ]
    for metric, rows in found["cells"].items():
        parts += [f"### {METRICS[metric].capitalize()}", grid(_head(), map(_cell, rows))]
    if found["gains"]:
        columns = ["contrast", f"difference [{level}]", "p (t)", "p (Holm)", "n"]
        parts += [
            "### Gains",
            f"Differences in {METRICS[found['metric']]}, paired by seed.",
            grid(columns, map(_gain, found["gains"])),
            *accuracy_squares.section(results),
        ]
    return parts


def _head() -> list[str]:
    return ["cell", *READINGS, "seeds"]


def _cell(row: Mapping[str, Any]) -> list[str]:
    readings = row["readings"]
    seeds = " ".join(plain(value, 3) for value in readings["exact"]["values"]) or NONE
    return [row["cell"], *map(_mean, readings.values()), seeds]


def _mean(found: Mapping[str, Any]) -> str:
    if found.get("point") is None:
        return NONE
    ends = [found["low"], found["high"]]
    shown = "" if None in ends else f" [{', '.join(plain(end, 3) for end in ends)}]"
    return plain(found["point"], 3) + shown


def _gain(row: Mapping[str, Any]) -> list[str]:
    return [row["label"], interval(row), p(row["p"]), p(row["p_holm"]), count(row["n"])]
