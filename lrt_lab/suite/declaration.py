"""The suite file: what is varied, on which seeds, at which scales, and what it is meant to show.

`load` turns the YAML into typed, validated dataclasses. Whatever is wrong with the file is one
`UserError` naming the place in it; nothing later in the suite meets an unchecked value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lrt_lab.errors import UserError
from lrt_lab.suite import extras, match, matched
from lrt_lab.suite import scaling as laws
from lrt_lab.suite.checks import (
    UniqueKeys,
    items,
    number,
    require_known,
    require_name,
    section,
    text,
)

OUTCOMES = ("exact", "last_pass")
METRICS = ("loss", "accuracy", "last_accuracy", "exact_match")


@dataclass(frozen=True)
class Twin:
    """Extra cells: copies of those that agree with `of`, with the budget of their `as_` partner.

    `{of: {route: none}, as: {route: LRT}, match: train_flops}` gives every no-route cell a twin
    that gets the training FLOPs of its LRT cell; with `at: x2` of that cell's run as `again.x2`.
    `lrt_lab.suite.match` has the other words.
    """

    name: str
    of: dict[str, str]
    as_: dict[str, str]
    match: match.Match
    at: str | None = None


@dataclass(frozen=True)
class Scale:
    """How large: config fragments over the suite's base, the seeds, and the negligible margin.

    `only` names the values that are run of some axes, `again` the cells that are run once more (all
    of them unless it is given); `tuned` is off where defaults are good enough; `twins` are run at
    this scale beside the suite's; `gpu`, `{card: H200, flops: 1.0e+13}`, the speed that a dry run
    assumes for its GPU-hours.
    """

    name: str
    config: tuple[Path, ...]
    seeds: tuple[int, ...]
    margin: float
    only: extras.Selection = field(default_factory=dict)
    again: tuple[str, ...] = ()
    tuned: bool = True
    twins: tuple[Twin, ...] = ()
    gpu: extras.Card | None = None


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


@dataclass(frozen=True)
class Suite:
    """A declared experiment. `axes[axis][value]` holds dotted config keys, as `fit` takes them."""

    name: str
    title: str
    hypothesis: str
    prediction: str
    base: tuple[Path, ...]
    axes: dict[str, dict[str, dict[str, Any]]]
    twins: tuple[Twin, ...]
    statistics: Statistics
    scales: dict[str, Scale]
    path: Path
    sha256: str
    without: tuple[extras.Selection, ...] = ()
    again: tuple[extras.Again, ...] = ()
    tuning: extras.Tuning | None = None
    scaling: laws.Scaling | None = None
    # By axis, the value whose cells give all others their dense parameters.
    matched: dict[str, str] = field(default_factory=dict)

    def scale(self, name: str) -> Scale:
        """The scale of that name, its config files checked to be there."""
        require_known("scale", [name], self.scales, str(self.path))
        scale = self.scales[name]
        for file in (*self.base, *scale.config):
            if not file.is_file():
                raise UserError(
                    f"{self.path}: config fragment '{file}' (scale {name}) does not exist."
                )
        return scale


def load(path: Path) -> Suite:
    """Read and check a suite file."""
    if not path.is_file():
        raise UserError(
            f"Suite file '{path}' does not exist; give a path such as experiments/h1.yaml."
        )
    source = path.read_bytes()
    try:
        tree = yaml.load(source, UniqueKeys)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    keys = (
        "suite",
        "title",
        "hypothesis",
        "prediction",
        "base",
        "axes",
        "without",
        "again",
        "twins",
        "matched",
        "tuning",
        "scaling",
        "statistics",
        "scales",
    )
    optional = ("base", "without", "again", "twins", "matched", "tuning", "scaling")
    top = section(tree, str(path), keys, optional=optional)
    axes = _axes(top["axes"], f"{path}: axes")
    again = extras.again(top.get("again"), axes, f"{path}: again")
    twins = section(top.get("twins") or {}, f"{path}: twins")
    tuning = extras.tuning(top.get("tuning"), tuple(twins), f"{path}: tuning")
    rungs = tuple(entry.name for entry in again)
    suite = Suite(
        name=require_name("suite", top["suite"], str(path)),
        title=text(top, "title", str(path)),
        hypothesis=text(top, "hypothesis", str(path)),
        prediction=text(top, "prediction", str(path)),
        base=_files(top.get("base") or [], path, f"{path}: base"),
        axes=axes,
        twins=tuple(
            _twin(name, value, axes, rungs, f"{path}: twins.{name}")
            for name, value in twins.items()
        ),
        statistics=_statistics(top["statistics"], axes, f"{path}: statistics"),
        scales={
            require_name("scale", name, f"{path}: scales"): _scale(
                name, value, path, axes, rungs, tuning
            )
            for name, value in section(top["scales"], f"{path}: scales").items()
        },
        path=path,
        sha256=hashlib.sha256(source).hexdigest(),
        without=extras.without(top.get("without"), axes, f"{path}: without"),
        again=again,
        tuning=tuning,
        scaling=laws.scaling(top.get("scaling"), axes, f"{path}: scaling"),
        matched=matched.parse(top.get("matched"), axes, f"{path}: matched"),
    )
    _require_whole(suite)
    return suite


def _require_whole(suite: Suite) -> None:
    """Raise for what is wrong between sections: names that two of them give, twins without rate."""
    for scale in suite.scales.values():
        names = [entry.name for entry in suite.again]
        names += [twin.name for twin in (*suite.twins, *scale.twins)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(
                f"{suite.path}: scale {scale.name} has two changes of a cell called '{twice[0]}' "
                "among 'again' and 'twins'; each makes cells of that name."
            )
    tuned = () if suite.tuning is None else suite.tuning.twins
    for twin in suite.twins:
        if twin.name in tuned and twin.at is not None:
            raise UserError(
                f"{suite.path}: tuning.twins has {twin.name}, whose partner is run at {twin.at} "
                "and not tuned; leave it out, and it takes the rate of the nearest tuned schedule."
            )


def _axes(tree: object, where: str) -> dict[str, dict[str, dict[str, Any]]]:
    axes: dict[str, dict[str, dict[str, Any]]] = {}
    owner: dict[str, str] = {}
    for axis, values in section(tree, where).items():
        require_name("axis", axis, where)
        axes[axis] = {}
        for value, keys in section(values, f"{where}.{axis}").items():
            require_name("value", value, f"{where}.{axis}")
            options = section(keys or {}, f"{where}.{axis}.{value}")
            for key in options:
                if key == "seed":
                    raise UserError(f"{where}.{axis}.{value} sets 'seed'; seeds belong to a scale.")
                # Two axes that set one key would make a cell depend on the order of the axes.
                if owner.setdefault(key, axis) != axis:
                    raise UserError(f"{where}: '{key}' is set by both {owner[key]} and {axis}.")
            axes[axis][value] = options
        if not axes[axis]:
            raise UserError(f"{where}.{axis} has no values.")
    if not axes:
        raise UserError(f"{where} is empty: a suite varies at least one axis.")
    return axes


def _twin(
    name: object,
    tree: object,
    axes: Mapping[str, Mapping[str, Any]],
    rungs: tuple[str, ...],
    where: str,
) -> Twin:
    parts = section(tree, where, ("of", "as", "match", "at"), optional=("at",))
    for side in ("of", "as"):
        require_known("axis", section(parts[side], f"{where}.{side}"), axes, f"{where}.{side}")
        for axis, value in parts[side].items():
            require_known(f"value of axis {axis}", [value], axes[axis], f"{where}.{side}")
    matched = match.parse(parts["match"], where)
    at = parts.get("at")
    if at is not None:
        require_known("cell that is run again", [at], rungs, f"{where}.at")
    twin = Twin(require_name("twin", name, where), parts["of"], parts["as"], matched, at)
    if {**twin.of, **twin.as_} == twin.of:
        raise UserError(f"{where}: 'as' changes nothing of 'of'; name the value to be matched.")
    return twin


def _statistics(tree: object, axes: Mapping[str, Mapping[str, Any]], where: str) -> Statistics:
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


def _scale(
    name: str,
    tree: object,
    path: Path,
    axes: Mapping[str, Mapping[str, Any]],
    rungs: tuple[str, ...],
    tuning: extras.Tuning | None,
) -> Scale:
    where = f"{path}: scales.{name}"
    optional = ("only", "again", "tuned", "twins", "gpu")
    parts = section(tree, where, ("config", "seeds", "margin", *optional), optional)
    seeds = extras.seeds(parts["seeds"], f"{where}.seeds")
    tuned = parts.get("tuned", True)
    if not isinstance(tuned, bool):
        raise UserError(f"{where}.tuned is {tuned!r}; give true or false.")
    shared = sorted(set(seeds) & set(tuning.seeds)) if tuning else []
    if shared:
        raise UserError(
            f"{where}.seeds has {shared[0]}, which is a tuning seed; a report uses none of those."
        )
    margin = number(parts["margin"], f"{where}.margin")
    if margin <= 0:
        raise UserError(f"{where}.margin is {margin}; it is a positive difference in ln loss.")
    chosen = items(parts.get("again", list(rungs)), f"{where}.again")
    require_known("cell that is run again", chosen, rungs, f"{where}.again")
    return Scale(
        name,
        _files(parts["config"], path, f"{where}.config"),
        seeds,
        margin,
        extras.selection(parts.get("only", {}), axes, f"{where}.only"),
        tuple(chosen),
        tuned and tuning is not None,
        tuple(
            _twin(twin, value, axes, rungs, f"{where}.twins.{twin}")
            for twin, value in section(parts.get("twins") or {}, f"{where}.twins").items()
        ),
        extras.card(parts.get("gpu"), f"{where}.gpu"),
    )


def _files(value: object, path: Path, where: str) -> tuple[Path, ...]:
    """Paths as written, found beside the suite file or in a folder above it, or from the working
    folder.

    So that a suite means the same wherever it is started from.
    """
    found = []
    for name in items(value, where):
        roots = path.resolve().parents
        places = [root / str(name) for root in roots if (root / str(name)).is_file()]
        found.append(places[0] if places else Path(str(name)))
    return tuple(found)
