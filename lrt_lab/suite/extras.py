"""What a suite declares beside the product of its axes: cells that are left out, cells that are run
once more with another budget or rate, a key that is tuned for every cell beforehand, and the card
that a scale is meant for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.suite.checks import items, number, require_known, require_name, section

Axes = Mapping[str, Mapping[str, Any]]
#: By axis, the values that are meant.
Selection = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Again:
    """Cells once more: those that agree with `of`, as complete schedules of `times` the steps.

    `tuned: false` runs them at the default of the tuned key.
    """

    name: str
    of: Selection
    times: float = 1.0
    tuned: bool = True


@dataclass(frozen=True)
class Tuning:
    """A key tried, per cell, at `grid` times what its config says, on seeds of its own.

    Tuned are the cells of the product and the named `twins`; all others take the value of the tuned
    cell with their axes whose number of steps is nearest.
    """

    key: str
    grid: tuple[float, ...]
    seeds: tuple[int, ...]
    twins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """The GPU that a scale is meant for, and the FLOP/s that are assumed of it."""

    card: str
    flops: float


def card(tree: object, where: str) -> Card | None:
    """A scale's `gpu`."""
    if tree is None:
        return None
    parts = section(tree, where, ("card", "flops"))
    flops = number(parts["flops"], f"{where}.flops")
    if flops <= 0:
        raise UserError(
            f"{where}.flops is {flops}; it is the FLOP/s that runs are assumed to reach."
        )
    return Card(str(parts["card"]), flops)


def selects(selection: Selection, axes: Mapping[str, str]) -> bool:
    """Whether a cell's values are among the selected ones."""
    return all(axes[axis] in values for axis, values in selection.items())


def selection(tree: object, axes: Axes, where: str) -> Selection:
    """By axis one value or a list of them."""
    found: Selection = {}
    for axis, given in section(tree, where).items():
        require_known("axis", [axis], axes, where)
        values = given if isinstance(given, list) else [given]
        require_known(f"value of axis {axis}", values, axes[axis], where)
        found[axis] = tuple(values)
    return found


def again(tree: object, axes: Axes, where: str) -> tuple[Again, ...]:
    """The section `again`."""
    found = []
    for name, entry in section(tree or {}, where).items():
        place = f"{where}.{name}"
        parts = section(entry, place, ("of", "times", "tuned"), optional=("times", "tuned"))
        times = number(parts.get("times", 1), f"{place}.times")
        tuned = parts.get("tuned", True)
        if times <= 0 or not isinstance(tuned, bool) or (times == 1) == tuned:
            raise UserError(
                f"{place}: give times, a positive number other than 1, or else tuned: false; with "
                "neither it is the same cell again, and with both it stands in no comparison"
            )
        selected = selection(parts["of"], axes, f"{place}.of")
        found.append(Again(require_name("cell", name, where), selected, times, tuned))
    return tuple(found)


def without(tree: object, axes: Axes, where: str) -> tuple[Selection, ...]:
    """The section `without`."""
    return tuple(
        selection(entry, axes, f"{where}[{number}]")
        for number, entry in enumerate(items(tree or [], where))
    )


def tuning(tree: object, twins: tuple[str, ...], where: str) -> Tuning | None:
    """The section `tuning`."""
    if tree is None:
        return None
    parts = section(tree, where, ("key", "grid", "seeds", "twins"), optional=("twins",))
    grid = tuple(number(one, f"{where}.grid") for one in items(parts["grid"], f"{where}.grid"))
    if len(grid) < 3 or min(grid) <= 0 or list(grid) != sorted(set(grid)) or 1 not in grid:
        raise UserError(
            f"{where}.grid {list(grid)}: give three or more rising positive factors with 1, "
            "the default, among them"
        )
    named = items(parts.get("twins", []), f"{where}.twins")
    require_known("twin", named, twins, f"{where}.twins")
    return Tuning(str(parts["key"]), grid, seeds(parts["seeds"], f"{where}.seeds"), tuple(named))


def seeds(value: object, where: str) -> tuple[int, ...]:
    """Distinct whole numbers."""
    found = items(value, where)
    if not found:
        raise UserError(f"{where} is empty; give at least one seed, such as [1, 2, 3, 4, 5].")
    if not all(type(seed) is int and seed >= 0 for seed in found):
        raise UserError(f"{where} {found} must be whole numbers from 0.")
    twice = sorted({seed for seed in found if found.count(seed) > 1})
    if twice:
        raise UserError(f"{where} has {twice[0]} more than once; one seed is one pair block.")
    return tuple(found)
