"""Anybody's table of runs, one row a run, as a design and records. Columns are named by options."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.report.records import Design, Record
from lrt_lab.report.suite_runs import square_of

UNITS = {"nats": 1.0, "bits": math.log(2)}
DIVERGED = ("diverged", "nan", "inf", "failed")


@dataclass(frozen=True)
class Columns:
    """Which column holds what, and what the table is asked."""

    loss: str = "loss"
    seed: str | None = "seed"
    axes: Sequence[str] = ()
    baseline: Sequence[str] = ()
    improved: Sequence[str] = ()
    costs: Mapping[str, str] = field(default_factory=dict)
    budget: str | None = None
    status: str | None = None
    unit: str = "nats"
    paired: bool = True
    ladder: Sequence[str] = ()
    floors: Sequence[float] = ()
    margin: float = 0.001
    alpha: float = 0.05
    planned_seeds: int | None = None
    vocabulary: int | None = None
    straight: str = "log"
    title: str = ""


def read_csv(path: Path, columns: Columns) -> tuple[Design, list[Record]]:
    """The table's design and records; whatever cannot be used is one `UserError`."""
    rows = _rows(path)
    columns = replace(columns, axes=_axes(path, rows[0], columns))
    _require(path, rows[0], _named(columns))
    unit, unit_column = _unit(path, rows, columns)
    records = [_record(path, i + 2, row, columns, unit, unit_column) for i, row in enumerate(rows)]
    cells: dict[str, Mapping[str, str]] = {}
    for row, record in zip(rows, records, strict=True):
        cells.setdefault(record.cell, {axis: row[axis].strip() for axis in columns.axes})
    design = _design(path, columns, cells, records)
    _require_one_unit(path, records)
    if columns.seed is not None:
        _require_seeds(path, design, records)
    return design, records


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise UserError(
            f"{path} is not there; give a .csv file or the run folder of one scale, such as "
            "runs/h1/quick"
        )
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [
            {k: v or "" for k, v in row.items() if k is not None} for row in csv.DictReader(file)
        ]
    if not rows:
        raise UserError(f"{path} has no rows; it needs a header line and one line a run")
    return rows


def _axes(path: Path, row: Mapping[str, str], columns: Columns) -> tuple[str, ...]:
    if columns.axes:
        return tuple(columns.axes)
    for axes in (("backbone", "route"), ("cell",)):
        if all(axis in row for axis in axes):
            return axes
    raise UserError(
        f"{path} has neither 'backbone' and 'route' nor 'cell' among its columns "
        f"({', '.join(row)}); "
        "name the columns that tell cells apart with --axes"
    )


def _named(columns: Columns) -> dict[str, str]:
    named = {f"--{option}": column for option, column in columns.costs.items()}
    named |= {"--loss": columns.loss, **{f"--axes ({axis})": axis for axis in columns.axes}}
    for option in ("seed", "budget", "status"):
        if getattr(columns, option) is not None:
            named[f"--{option}"] = getattr(columns, option)
    return named


def _require(path: Path, row: Mapping[str, str], named: Mapping[str, str]) -> None:
    absent = {option: column for option, column in named.items() if column not in row}
    if absent:
        said = ", ".join(
            f"{column!r} ({option.split(' ')[0]})" for option, column in absent.items()
        )
        raise UserError(f"{path} has no column {said}; its columns are: {', '.join(row)}")


def _unit(
    path: Path, rows: Sequence[Mapping[str, str]], columns: Columns
) -> tuple[float, str | None]:
    """The factor to nats, and the unit's column if a column says it."""
    if columns.unit in UNITS:
        return UNITS[columns.unit], None
    if columns.unit not in rows[0]:
        raise UserError(f"--unit is 'nats', 'bits' or a column of {path}, not {columns.unit!r}")
    found = sorted({row[columns.unit].strip().lower() for row in rows})
    if len(found) > 1:
        raise UserError(
            f"{path} has mixed units in column {columns.unit!r}: {', '.join(found)}; convert it "
            "to one"
        )
    if found[0] not in UNITS:
        raise UserError(
            f"{path}: unit {found[0]!r} in column {columns.unit!r}; known are nats and bits"
        )
    return UNITS[found[0]], columns.unit


def _record(
    path: Path,
    line: int,
    row: Mapping[str, str],
    columns: Columns,
    unit: float,
    unit_column: str | None,
) -> Record:
    cell = "+".join(row[axis].strip() for axis in columns.axes)
    if columns.budget is not None:
        cell = f"{cell}@{row[columns.budget].strip()}"
    text = row[columns.loss].strip()
    status = row[columns.status].strip().lower() if columns.status else "finished"
    diverged = columns.status is not None and status in DIVERGED
    loss = float("nan")
    if not diverged:
        loss = _number(path, line, columns.loss, text) * unit
        if not math.isfinite(loss):
            raise UserError(
                f"{path}, line {line} ({cell}): the loss is {text or 'empty'!r}; say that a run "
                "diverged "
                "in a column of its own (--status), or take the line out"
            )
        if loss <= 0:
            raise UserError(f"{path}, line {line} ({cell}): losses must be positive, not {text}")
    costs: dict[str, Any] = {
        name: _number(path, line, column, row[column].strip())
        for name, column in columns.costs.items()
    }
    seed = row[columns.seed].strip() if columns.seed is not None else "-"
    record = Record(
        cell=cell,
        seed=int(seed) if seed.lstrip("-").isdigit() else seed,
        status="diverged" if diverged else "finished",
        loss=loss,
    )
    return replace(record, **costs)


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        return float(text) if text else float("nan")
    except ValueError:
        raise UserError(
            f"{path}, line {line}: column {column!r} holds {text!r}, which is not a number"
        ) from None


def _design(
    path: Path, columns: Columns, cells: Mapping[str, Mapping[str, str]], records: Sequence[Record]
) -> Design:
    names, main = _main_cells(path, columns, cells)
    axes = {
        axis: tuple(dict.fromkeys(cell[axis] for cell in cells.values())) for axis in columns.axes
    }
    square, baseline = None, None
    if len(columns.axes) >= 2:
        square = square_of(_ends(path, columns, axes), main)
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
    chosen = min(shared, key=lambda text: _number(path, 1, str(columns.budget), text))
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


def _require_one_unit(path: Path, records: Sequence[Record]) -> None:
    """Two seeds of one cell whose losses differ by the factor between nats and bits are in
    different units.
    """
    last: dict[str, Record] = {}
    for record in records:
        before = last.get(record.cell)
        if before is not None and math.isclose(
            abs(math.log(record.loss / before.loss)), -math.log(math.log(2)), rel_tol=0.03
        ):
            raise UserError(
                f"{path}: {record.cell}: the losses of seeds {before.seed} and {record.seed} "
                "differ by the factor "
                "1/ln 2: nats and bits are mixed; convert them to one unit"
            )
        if math.isfinite(record.loss):
            last[record.cell] = record


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
                "cell the same seeds, or say --unpaired true if equal seeds share nothing"
            )
