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
from lrt_lab.suite import statistics as tested
from lrt_lab.suite.checks import (
    UniqueKeys,
    items,
    number,
    require_known,
    require_name,
    section,
    text,
)


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
class Suite:
    """A declared experiment. `axes[axis][value]` holds dotted config keys, as `fit` takes them."""

    name: str
    title: str
    hypothesis: str
    prediction: str
    base: tuple[Path, ...]
    axes: dict[str, dict[str, dict[str, Any]]]
    twins: tuple[Twin, ...]
    statistics: tested.Statistics
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
        statistics=tested.parse(top["statistics"], axes, f"{path}: statistics"),
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
