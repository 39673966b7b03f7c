"""What a suite's report tests: the section `statistics` of a suite file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.suite.checks import items, number, require_known, section, text

OUTCOMES = ("exact", "last_pass")
METRICS = ("loss", "accuracy", "last_accuracy", "exact_match")


@dataclass(frozen=True)
class Statistics:
    """What the report tests, fixed before the runs.

    `axes` names, for each axis in the contrast, its baseline and its improved value; `family` the
    contrasts whose error rate is controlled together; `outcome` which evaluation is the headline,
    and `metric` what is compared on it: ln loss, or for tasks an accuracy, as plain differences.
    Optional: `contrasts`, each a name and the weights of cells; `floor`, the entropy floor (or
    floors) in nats of the excess scale; `sweep`, the `axis` whose values are tried for every
    variant and then chosen among, and its `default`; `squares`, further 2x2s by name, each the
    primary one with other cells in the place of some; `groups`, an `axis` of the
    contrast and the words that describe each of its `values` but the baseline:
    `{LRT: {retain: one block, ..}, ..}`, of the baseline too if it is named; `solid`, where there
    is one axis: the value that its baseline must beat, `{over: none}`, before a gain over the
    baseline means anything; `positions`, what a position of a task's row stands for:
    `{name: associations held, unit: 3}` where three of them make one.
    """

    primary: str
    axes: dict[str, dict[str, str]]
    family: tuple[str, ...] = ()
    outcome: str = "exact"
    metric: str = "loss"
    alpha: float = 0.05
    contrasts: dict[str, dict[str, float]] = field(default_factory=dict)
    floor: tuple[float, ...] = ()
    sweep: dict[str, str] = field(default_factory=dict)
    squares: dict[str, dict[str, str]] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    solid: dict[str, str] = field(default_factory=dict)
    positions: dict[str, Any] = field(default_factory=dict)


def parse(tree: object, axes: Mapping[str, Mapping[str, Any]], where: str) -> Statistics:
    """The section `statistics`."""
    shown = ("groups", "metric", "positions", "solid")
    optional = ("family", "outcome", "alpha", "contrasts", "floor", "sweep", "squares", *shown)
    parts = section(tree, where, ("primary", "axes", *optional), optional)
    outcome = parts.get("outcome", "exact")
    require_known("outcome", [outcome], OUTCOMES, where)
    metric = parts.get("metric", "loss")
    require_known("metric", [metric], METRICS, where)
    alpha = number(parts.get("alpha", 0.05), f"{where}.alpha")
    if not 0 < alpha < 1:
        raise UserError(f"{where}.alpha is {alpha}; it lies between 0 and 1.")
    ends = section(parts["axes"], f"{where}.axes")
    require_known("axis", ends, axes, f"{where}.axes")
    for axis, pair in ends.items():
        place = f"{where}.axes.{axis}"
        values = section(pair, place, ("baseline", "improved")).values()
        require_known("value", values, axes[axis], place)
    floor = parts.get("floor", [])
    return Statistics(
        primary=str(parts["primary"]),
        axes=ends,
        family=tuple(str(name) for name in items(parts.get("family", []), f"{where}.family")),
        outcome=outcome,
        metric=metric,
        alpha=alpha,
        contrasts={
            name: {
                cell: number(weight, f"{where}.contrasts.{name}.{cell}")
                for cell, weight in section(weights, f"{where}.contrasts.{name}").items()
            }
            for name, weights in section(parts.get("contrasts", {}), f"{where}.contrasts").items()
        },
        floor=tuple(
            number(one, f"{where}.floor") for one in (floor if isinstance(floor, list) else [floor])
        ),
        sweep=_sweep(parts.get("sweep"), axes, ends, f"{where}.sweep"),
        squares={
            str(name): section(cells, f"{where}.squares.{name}")
            for name, cells in section(parts.get("squares", {}), f"{where}.squares").items()
        },
        groups=_groups(parts.get("groups"), axes, ends, f"{where}.groups"),
        solid=_solid(parts.get("solid"), axes, ends, metric, f"{where}.solid"),
        positions=_positions(parts.get("positions"), f"{where}.positions"),
    )


def _sweep(
    tree: object, axes: Mapping[str, Mapping[str, Any]], ends: Mapping[str, Any], where: str
) -> dict[str, str]:
    if tree is None:
        return {}
    sweep = section(tree, where, ("axis", "default"))
    require_known("axis", [sweep["axis"]], [axis for axis in axes if axis not in ends], where)
    require_known("value", [sweep["default"]], axes[sweep["axis"]], where)
    return sweep


def _positions(tree: object, where: str) -> dict[str, Any]:
    if tree is None:
        return {}
    parts = section(tree, where, ("name", "unit"))
    unit = number(parts["unit"], f"{where}.unit")
    if unit <= 0:
        raise UserError(f"{where}.unit is {unit}; it is how many positions make one.")
    return {"name": text(parts, "name", where), "unit": unit}


def _solid(
    tree: object,
    axes: Mapping[str, Mapping[str, Any]],
    ends: Mapping[str, Any],
    metric: str,
    where: str,
) -> dict[str, str]:
    if tree is None:
        return {}
    if len(ends) != 1 or metric != "loss":
        raise UserError(
            f"{where}: a baseline is solid or not where statistics.axes names one axis and the "
            f"metric is loss; here they are {', '.join(ends)} and {metric}."
        )
    ((axis, values),) = ends.items()
    solid = section(tree, where, ("over",))
    others = [value for value in axes[axis] if value != values["baseline"]]
    require_known(f"other value of axis {axis}", [solid["over"]], others, where)
    return solid


def _groups(
    tree: object, axes: Mapping[str, Mapping[str, Any]], ends: Mapping[str, Any], where: str
) -> dict[str, Any]:
    if tree is None:
        return {}
    groups = section(tree, where, ("axis", "values"))
    axis = groups["axis"]
    require_known("axis", [axis], ends, where)
    base = ends[axis]["baseline"]
    others = [value for value in axes[axis] if value != base]
    described = section(groups["values"], f"{where}.values", (*others, base), (base,))
    choices = tuple(section(described[others[0]], f"{where}.values.{others[0]}")) if others else ()
    if len(choices) < 2:
        raise UserError(f"{where}.values: describe every value of {axis} by at least two choices.")
    for value, words in described.items():
        section(words, f"{where}.values.{value}", choices)
        for choice in choices:
            text(words, choice, f"{where}.values.{value}")
    return groups
