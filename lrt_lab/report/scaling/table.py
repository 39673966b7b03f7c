"""Anybody's table of runs for a scaling law: one row a run, columns named by options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from lrt_lab.analysis.scaling import Runs, runs
from lrt_lab.errors import UserError
from lrt_lab.report.csv_rows import UNITS, number, read_rows, require_columns

# price per token of a deployment -> the columns that it is read from, by unit
PRICES = {
    "FLOPs": ("train_flops", "prefill_flops", "decode_flops"),
    "seconds": ("train_seconds", "prefill_seconds", "decode_seconds"),
}


@dataclass(frozen=True)
class Columns:
    """Which column holds what. Those beside size, tokens and loss are used where they are there.

    Attributes:
        size, tokens, loss: parameters used in matrix products, training tokens, final loss.
        passes: K.
        model: name of the model.
        seed: runs that differ in it alone are resampled together.
        recurrent: share of the parameters that every pass uses again.
        corpus: tokens of the training text.
        train_flops, train_seconds: of the whole training of the run.
        prefill_flops, prefill_seconds: per prompt token.
        decode_flops, decode_seconds, decode_bytes: per output token.
    """

    size: str = "parameters"
    tokens: str = "tokens"
    loss: str = "loss"
    passes: str = "passes"
    model: str = "model"
    seed: str = "seed"
    recurrent: str = "recurrent"
    corpus: str = "corpus_tokens"
    train_flops: str = "train_flops"
    prefill_flops: str = "prefill_flops"
    decode_flops: str = "decode_flops"
    train_seconds: str = "train_seconds"
    prefill_seconds: str = "prefill_seconds"
    decode_seconds: str = "decode_seconds"
    decode_bytes: str = "decode_bytes"


NEEDED = ("size", "tokens", "loss")
TEXT = ("model", "seed")


@dataclass(frozen=True)
class Table:
    """Runs with the names of their models, baseline first, and what the table says of costs.
    Losses are in nats.

    Attributes:
        runs: all of them; `model` counts along `models`.
        models: names.
        costs: column name -> value of every run, for the columns that are there.
        dropped: how many of the highest losses were left out.
        compare: (model, baseline) as numbers, the primary comparison first; empty sets every other
            model against the first.
    """

    runs: Runs
    models: tuple[str, ...]
    costs: Mapping[str, np.ndarray] = field(default_factory=dict)
    dropped: int = 0
    compare: tuple[tuple[int, int], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """What is compared with what."""
        return self.compare or tuple((model, 0) for model in range(1, len(self.models)))


def read(
    path: Path,
    columns: Columns,
    asked: Mapping[str, str],
    *,
    baseline: str | None = None,
    unit: str = "nats",
    drop_highest: int = 0,
) -> Table:
    """The table's runs; whatever cannot be used is one `UserError`.

    Args:
        path: a CSV file.
        columns: names of columns.
        asked: option -> column, for the columns that were named and so must be there.
        baseline: name of the baseline model (default: the first row's).
        unit: of the loss, "nats" or "bits".
        drop_highest: leave so many highest losses out, a rule to be stated before the fit.
    """
    if unit not in UNITS:
        raise UserError(f"--unit is 'nats' or 'bits', not {unit!r}")
    rows = read_rows(path)
    needed = {f"--{name}": getattr(columns, name) for name in NEEDED}
    require_columns(path, rows[0], {**needed, **asked})
    there = {f.name: getattr(columns, f.name) for f in fields(columns)}
    there = {name: column for name, column in there.items() if column in rows[0]}
    found = {
        name: np.array([_number(path, i + 2, column, row[column]) for i, row in enumerate(rows)])
        for name, column in there.items()
        if name not in TEXT
    }
    losses = found["loss"]
    if not 0 <= drop_highest < len(rows):
        raise UserError(
            f"--drop-highest is between 0 and the {len(rows)} rows of {path}, not {drop_highest}"
        )
    kept = np.argsort(np.argsort(losses, kind="stable")) < len(losses) - drop_highest
    passes = found.get("passes", np.ones(len(rows)))
    names = _models(path, [row[there["model"]].strip() for row in rows] if "model" in there else [])
    if not names:
        names = ["one pass" if k == 1 else "more passes" for k in passes]
        baseline = baseline or ("one pass" if "one pass" in names else None)
    models = _ordered(names, baseline)
    priced = {"decode_bytes", *(name for names in PRICES.values() for name in names)}
    table = runs(
        found["size"],
        found["tokens"],
        losses * UNITS[unit],
        passes=passes,
        recurrent=found.get("recurrent", 1.0),
        model=[models.index(name) for name in names],
        compute=found.get("train_flops"),
        unique=found.get("corpus", np.inf),
        cell=_cells(found, names, rows, there.get("seed")),
    )
    costs = {name: value[kept] for name, value in found.items() if name in priced}
    return Table(table.take(kept), models, costs, drop_highest)


def _number(path: Path, line: int, column: str, text: str) -> float:
    value = number(path, line, column, text.strip())
    if not (np.isfinite(value) and value >= 0):
        raise UserError(
            f"{path}, line {line}: column {column!r} must be a number from 0, not "
            f"{text.strip() or 'empty'!r}; take diverged or unfinished runs out"
        )
    if value == 0 and column != "recurrent":
        raise UserError(f"{path}, line {line}: column {column!r} must be above 0")
    return value


def _models(path: Path, names: list[str]) -> list[str]:
    for i, name in enumerate(names):
        if not name:
            raise UserError(f"{path}, line {i + 2}: the model has no name")
    return names


def _ordered(names: list[str], baseline: str | None) -> tuple[str, ...]:
    found = list(dict.fromkeys(names))
    if baseline is None:
        return tuple(found)
    if baseline not in found:
        raise UserError(f"--baseline names {baseline!r}; the table has: {', '.join(found)}")
    return (baseline, *(name for name in found if name != baseline))


def _cells(
    found: Mapping[str, np.ndarray],
    names: list[str],
    rows: list[dict[str, str]],
    seed: str | None,
) -> list[str] | None:
    """Runs that differ in their seed alone are one cell; without seeds every run is its own."""
    if seed is None:
        return None
    what = [found[name] for name in ("size", "tokens", "passes") if name in found]
    return [f"{name} {[float(v[i]) for v in what]}" for i, name in enumerate(names)]
