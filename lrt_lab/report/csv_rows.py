"""The rows of anybody's table of runs: which column holds what, and one record per row."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.report.records import Record

UNITS = {"nats": 1.0, "bits": math.log(2)}
# cost of a record -> option of `lrt-lab report` that names its column
COST_OPTIONS = {
    "tokens": "tokens",
    "train_flops": "flops",
    "train_seconds": "seconds",
    "parameters": "parameters",
}
WHOLE = re.compile(r"([+-]?\d+)(?:\.0*)?")
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


def read_rows(path: Path) -> list[dict[str, str]]:
    """The lines of the file as column -> text."""
    if not path.is_file():
        raise UserError(
            f"{path} is not there; give a .csv file or the run folder of one scale, such as "
            "runs/h1/quick"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    # UTF-16 without its mark decodes as UTF-8, with a zero byte beside every letter
    if "\0" in text:
        raise UserError(f"{path} is not UTF-8 text; save it as CSV in UTF-8 and try again")
    try:
        rows = [
            {k: v or "" for k, v in row.items() if k is not None}
            for row in csv.DictReader(io.StringIO(text, newline=""))
        ]
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as CSV: {error}") from None
    if not rows:
        raise UserError(f"{path} has no rows; it needs a header line and one line a run")
    return rows


def find_axes(path: Path, row: Mapping[str, str], columns: Columns) -> tuple[str, ...]:
    """The columns that tell cells apart: those given, or the usual ones."""
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


def named(columns: Columns) -> dict[str, str]:
    """Every column that an option names, by that option."""
    named = {f"--{COST_OPTIONS[cost]}": column for cost, column in columns.costs.items()}
    named |= {"--loss": columns.loss, **{f"--axes ({axis})": axis for axis in columns.axes}}
    for option in ("seed", "budget", "status"):
        if getattr(columns, option) is not None:
            named[f"--{option}"] = getattr(columns, option)
    return named


def require_columns(path: Path, row: Mapping[str, str], named: Mapping[str, str]) -> None:
    """Every named column is there."""
    absent = {option: column for option, column in named.items() if column not in row}
    if absent:
        said = ", ".join(
            f"{column!r} ({option.split(' ')[0]})" for option, column in absent.items()
        )
        raise UserError(f"{path} has no column {said}; its columns are: {', '.join(row)}")


def unit_of(
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


def record_of_row(
    path: Path,
    line: int,
    row: Mapping[str, str],
    columns: Columns,
    unit: float,
    unit_column: str | None,
) -> Record:
    """One run."""
    cell = "+".join(row[axis].strip() for axis in columns.axes)
    if columns.budget is not None:
        cell = f"{cell}@{row[columns.budget].strip()}"
    text = row[columns.loss].strip()
    status = row[columns.status].strip().lower() if columns.status else "finished"
    diverged = columns.status is not None and status in DIVERGED
    loss = float("nan")
    if not diverged:
        loss = number(path, line, columns.loss, text) * unit
        if not math.isfinite(loss):
            raise UserError(
                f"{path}, line {line} ({cell}): the loss is {text or 'empty'!r}; say that a run "
                "diverged "
                "in a column of its own (--status), or take the line out"
            )
        if loss <= 0:
            raise UserError(f"{path}, line {line} ({cell}): losses must be positive, not {text}")
    costs: dict[str, Any] = {
        name: number(path, line, column, row[column].strip())
        for name, column in columns.costs.items()
    }
    seed = row[columns.seed].strip() if columns.seed is not None else "-"
    if not seed:
        raise UserError(
            f"{path}, line {line} ({cell}): the seed is empty (column {columns.seed!r})"
        )
    whole = WHOLE.fullmatch(seed)
    record = Record(
        cell=cell,
        # a table that went through floats says 1.0 where another says 1
        seed=int(whole[1]) if whole else seed,
        status="diverged" if diverged else "finished",
        loss=loss,
    )
    return replace(record, **costs)


def number(path: Path, line: int, column: str, text: str) -> float:
    """A number, NaN for an empty field."""
    try:
        return float(text) if text else float("nan")
    except ValueError:
        raise UserError(
            f"{path}, line {line}: column {column!r} holds {text!r}, which is not a number"
        ) from None


def require_one_unit(path: Path, records: Sequence[Record]) -> None:
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
