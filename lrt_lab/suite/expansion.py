"""From a declaration to its cells and runs: pure functions, so that it expands alike everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.suite.checks import require_known
from lrt_lab.suite.declaration import Scale, Suite
from lrt_lab.suite.extras import selects
from lrt_lab.suite.match import Match


@dataclass(frozen=True)
class TwinOf:
    """What a twin is solved from: the cell that it copies, and the cell whose budget it gets."""

    match: Match
    of: str
    as_: str

    def record(self) -> dict[str, str]:
        """As the plan and the report know it."""
        knob = {} if self.match.knob is None else {"knob": self.match.knob}
        return {"match": self.match.word, "of": self.of, "as": self.as_, **knob}


@dataclass(frozen=True)
class Cell:
    """One combination of the axes' values; `overrides` are dotted keys over the fragments.

    `times` multiplies the steps of its config. `factor` multiplies the tuned key; None is the
    factor that tuning chose.
    """

    name: str
    axes: dict[str, str]
    overrides: dict[str, Any]
    twin: TwinOf | None = None
    times: float = 1.0
    factor: float | None = None


@dataclass(frozen=True)
class Run:
    """A cell on a seed: what one folder holds."""

    cell: Cell
    seed: int


def plain_cell(suite: Suite, axes: dict[str, str]) -> Cell:
    """The cell of the product with these values."""
    overrides: dict[str, Any] = {}
    for axis, value in axes.items():
        overrides |= suite.axes[axis][value]
    return Cell("+".join(axes.values()), axes, overrides)


def cells(suite: Suite, scale: Scale) -> list[Cell]:
    """The combinations of the axes in the file's order, those that are run again, then the twins.

    A twin whose partner the scale leaves out is left out too.
    """
    plain = []
    for values in product(*suite.axes.values()):
        axes = dict(zip(suite.axes, values, strict=True))
        left_out = any(selects(combination, axes) for combination in suite.without)
        if left_out or not selects(scale.only, axes):
            continue
        plain.append(plain_cell(suite, axes))
    if not plain:
        raise UserError(f"{suite.path}: 'without' and 'only' leave scale {scale.name} no cell.")
    again = [
        replace(
            cell,
            name=f"{cell.name}@{entry.name}",
            times=entry.times,
            factor=None if entry.tuned else 1.0,
        )
        for entry in suite.again
        if entry.name in scale.again and (entry.tuned or scale.tuned)
        for cell in plain
        if selects(entry.of, cell.axes)
    ]
    known = {cell.name for cell in (*plain, *again)}
    twins = []
    for twin in (*suite.twins, *scale.twins):
        for cell in plain:
            if cell.axes == {**cell.axes, **twin.of}:
                target = "+".join({**cell.axes, **twin.as_}.values())
                target += f"@{twin.at}" if twin.at else ""
                if target in known:
                    relation = TwinOf(twin.match, cell.name, target)
                    twins.append(replace(cell, name=f"{cell.name}@{twin.name}", twin=relation))
    return [*plain, *again, *twins]


def require_cells(suite: Suite) -> None:
    """Raise for a cell that a contrast or a square names and no scale runs: it would drop out."""
    statistics = suite.statistics
    known = {cell.name: None for scale in suite.scales.values() for cell in cells(suite, scale)}
    for name, weights in statistics.contrasts.items():
        require_known("cell", weights, known, f"{suite.path}: statistics.contrasts.{name}")
    for name, found in statistics.squares.items():
        both = [*found, *map(str, found.values())]
        require_known("cell", both, known, f"{suite.path}: statistics.squares.{name}")


def runs(suite: Suite, scale: Scale) -> list[Run]:
    """Seed by seed, so that complete pair blocks finish first."""
    return [Run(cell, seed) for seed in scale.seeds for cell in cells(suite, scale)]


def running_order(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Priced runs in the order to start them: seed-major, and the costliest first within a seed.

    Long runs first let two jobs end a seed at about the same time. Training FLOPs decide, not
    measured seconds, so that the order does not depend on the machine.
    """
    entries = list(entries)
    seeds = list(dict.fromkeys(entry["seed"] for entry in entries))
    return sorted(
        entries, key=lambda run: (seeds.index(run["seed"]), -run["train_flops"], run["cell"])
    )
