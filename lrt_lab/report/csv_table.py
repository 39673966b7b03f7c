"""Anybody's table of runs, one row a run, as a design and records. Columns are named by options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.report.csv_rows import (
    Columns,
    find_axes,
    named,
    number,
    read_rows,
    record_of_row,
    require_columns,
    require_one_unit,
    unit_of,
)
from lrt_lab.report.records import Design, Record
from lrt_lab.report.suite_runs import square_of


def read_csv(path: Path, columns: Columns) -> tuple[Design, list[Record]]:
    """The table's design and records; whatever cannot be used is one `UserError`."""
    rows = read_rows(path)
    columns = replace(columns, axes=find_axes(path, rows[0], columns))
    require_columns(path, rows[0], named(columns))
    unit, unit_column = unit_of(path, rows, columns)
    records = [
        record_of_row(path, i + 2, row, columns, unit, unit_column) for i, row in enumerate(rows)
    ]
    cells: dict[str, Mapping[str, str]] = {}
    for row, record in zip(rows, records, strict=True):
        cells.setdefault(record.cell, {axis: row[axis].strip() for axis in columns.axes})
    design = _design(path, columns, cells, records)
    require_one_unit(path, records)
    if columns.seed is not None:
        _require_seeds(path, design, records)
    return design, records


def _design(
    path: Path, columns: Columns, cells: Mapping[str, Mapping[str, str]], records: Sequence[Record]
) -> Design:
    names, main = _main_cells(path, columns, cells)
    axes = {
        axis: tuple(dict.fromkeys(cell[axis] for cell in cells.values())) for axis in columns.axes
    }
    square, baseline = None, None
    if len(columns.axes) >= 2:
        square = square_of(_ends(path, columns, axes), main, str(path))
    else:
        baseline = _baseline(path, columns, axes[columns.axes[0]])
        baseline = next(name for name, cell in main.items() if cell[columns.axes[0]] == baseline)
    _require_cells("--ladder", columns.ladder, names)
    anchor = baseline if square is None else square.cells[0]
    return Design(
        name=path.stem,
        title=columns.title or f"Report of {path.name}",
        axes=axes,
        cells=names,
        square=square,
        seeds=tuple(sorted({r.seed for r in records}, key=lambda s: (isinstance(s, str), s))),
        margin=columns.margin,
        alpha=columns.alpha,
        planned_seeds=columns.planned_seeds,
        vocabulary=columns.vocabulary,
        floors=tuple(columns.floors),
        square_axes=(columns.axes[0], columns.axes[1]) if square else ("", ""),
        baseline=baseline,
        ladders={str(anchor): tuple(columns.ladder)} if columns.ladder else {},
        straight="linear" if columns.straight == "linear" else "log",
        paired=columns.paired,
        seeded=columns.seed is not None,
        outcome=columns.loss,
        cost_names=dict(columns.costs),
    )


def _main_cells(
    path: Path, columns: Columns, cells: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Mapping[str, str]], dict[str, Mapping[str, str]]]:
    """All cells, and those of the smallest budget that all of them share: the comparison at matched
    budget.
    """
    if columns.budget is None:
        return dict(cells), dict(cells)
    budgets: dict[tuple[str, ...], set[str]] = {}
    for name, values in cells.items():
        budgets.setdefault(tuple(values.values()), set()).add(name.rsplit("@", 1)[1])
    shared = set.intersection(*budgets.values())
    if not shared:
        raise UserError(
            f"{path}: no value of {columns.budget!r} is shared by all cells, so nothing is matched"
        )
    chosen = min(shared, key=lambda text: number(path, 1, str(columns.budget), text))
    return dict(cells), {name: c for name, c in cells.items() if name.endswith(f"@{chosen}")}


def _ends(
    path: Path, columns: Columns, axes: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, str]]:
    ends = {}
    for i, axis in enumerate(columns.axes[:2]):
        values = list(axes[axis])
        base = columns.baseline[i] if i < len(columns.baseline) else values[0]
        _require_cells(f"--baseline ({axis})", [base], values)
        others = [value for value in values if value != base]
        if not others:
            raise UserError(
                f"{path}: column {axis!r} holds only {base!r}; a comparison needs two values"
            )
        improved = columns.improved[i] if i < len(columns.improved) else others[0]
        _require_cells(f"--improved ({axis})", [improved], others)
        ends[axis] = {"baseline": base, "improved": improved}
    return ends


def _baseline(path: Path, columns: Columns, values: Sequence[str]) -> str:
    if len(values) < 2:
        raise UserError(f"{path}: only one cell, {values[0]!r}; a comparison needs two")
    if not columns.baseline:
        raise UserError(
            f"which cell is the baseline? name one with --baseline: {', '.join(values)}"
        )
    _require_cells("--baseline", columns.baseline[:1], values)
    return columns.baseline[0]


def _require_cells(option: str, wanted: Sequence[str], known: Any) -> None:
    for value in wanted:
        if value not in known:
            raise UserError(
                f"{option} names {value!r}, which the table does not have; it has: "
                f"{', '.join(known)}"
            )


def _require_seeds(path: Path, design: Design, records: Sequence[Record]) -> None:
    by_cell: dict[str, set[Any]] = {}
    for record in records:
        by_cell.setdefault(record.cell, set()).add(record.seed)
    most = max(len(seeds) for seeds in by_cell.values())
    if most < 2:
        raise UserError(
            f"{path} has one seed only ({design.seeds[0]}): no interval exists; run more seeds (5 "
            "or more for a "
            "verdict), or say --seed none for point estimates"
        )
    if not design.paired:
        return
    for cell, seeds in by_cell.items():
        lacking = [seed for seed in design.seeds if seed not in seeds]
        if lacking:
            raise UserError(
                f"{path}: unequal seeds across cells: {cell} lacks seed "
                f"{', '.join(map(str, lacking))}; give every "
                "cell the same seeds, or say --unpaired if equal seeds share nothing"
            )
