"""The plan: every run of a suite at a scale, priced, with its folder; written once and read by all
that follows.

Pricing needs the model and hence torch, so a worker does it. The plan is kept in
`runs/<suite>/<scale>/plan.json` and stands as long as what it was made from does (the suite file,
the config fragments, the code that turns them into a model), so that `suite status` and `suite
report` need no torch and a finished suite starts at once.
"""

from __future__ import annotations

import copy
import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.store import RunFolder, folder_name, read_json, write_json
from lrt_lab.suite import matched
from lrt_lab.suite.declaration import Scale, Suite
from lrt_lab.suite.expansion import Cell, Run, TwinOf, cells, plain_cell, running_order
from lrt_lab.suite.match import amount, knob_for, steps_for
from lrt_lab.suite.matched import Price, Widths
from lrt_lab.suite.tuned import Tuned, scaled

PLAN = "plan.json"

# Takes merged configs and returns the measured seconds of a training step of each, in order.
Clock = Callable[[list[dict[str, Any]]], list[float]]


def home(suite: Suite, scale: Scale, root: Path) -> Path:
    """The folder of a suite's runs at a scale."""
    return root / suite.name / scale.name


def config_of(
    suite: Suite,
    scale: Scale,
    run: Run,
    steps: int | None = None,
    choices: Tuned | None = None,
    knob: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A run's merged config: base and scale fragments, the axes, its steps, its rate, the seed.

    ``knob`` holds the keys that the cell was matched by, and their values.
    """
    from lrt_lab.training.config import merge_configs

    cell = run.cell
    overrides = {**cell.overrides, **(knob or {}), "seed": run.seed}
    # Copied: what is changed below may belong to the suite.
    config = copy.deepcopy(merge_configs([*suite.base, *scale.config], overrides))
    trainer = config["trainer"]
    if steps is not None:
        trainer["max_steps"] = steps
    elif cell.times != 1:
        trainer["max_steps"] = max(1, round(cell.times * trainer["max_steps"]))
    factor = cell.factor
    if factor is None and choices is not None:
        factor = choices.factor(cell, trainer["max_steps"])
    if factor is not None and suite.tuning is not None:
        scaled(config, suite.tuning.key, factor)
    return config


def price(
    suite: Suite,
    scale: Scale,
    wanted: list[Run],
    ask: Price,
    choices: Tuned | None = None,
    clock: Clock | None = None,
) -> list[dict[str, Any]]:
    """The plan's entries for these runs, in running order, twins solved last.

    Without a ``clock`` a twin of equal wall-clock gets equal FLOPs, for want of a measurement.
    """
    widths = _widths(suite, scale, wanted, ask)
    plain = [run for run in wanted if run.cell.twin is None]
    configs = {
        (run.cell.name, run.seed): config_of(
            suite, scale, run, None, choices, _set(widths, run.cell)
        )
        for run in plain
    }
    priced = {
        (run.cell.name, run.seed): _entry(run, answer)
        for run, answer in zip(plain, ask(list(configs.values())), strict=True)
    }
    for run in plain if widths else ():
        entry = priced[run.cell.name, run.seed]
        entry["matched"] = widths[_place(run.cell)].record(run.cell.name, entry["parameters"])
    # Seeds differ in nothing that costs: each twin is solved once.
    solved: dict[TwinOf, Solved] = {}
    twins = []
    for run in wanted:
        twin = run.cell.twin
        if twin is None:
            continue
        if twin not in solved:
            of, target = ((name, run.seed) for name in (twin.of, twin.as_))
            solved[twin] = _solve(
                run.cell,
                (priced[of], configs[of]),
                (priced[target], configs[target]),
                ask,
                clock,
            )
        twins.append((run, solved[twin]))
    wide = [
        config_of(suite, scale, run, found.steps, choices, {**_set(widths, run.cell), **found.knob})
        for run, found in twins
    ]
    for (run, found), answer in zip(twins, ask(wide), strict=True):
        entry = _entry(run, answer)
        goal, has = found.compare(entry)
        knob = {**_set(widths, run.cell), **found.knob}
        entry["twin"] |= {"ratio": has / goal, "set": knob, **found.notes}
        priced[run.cell.name, run.seed] = entry
    return running_order(priced.values())


def _widths(suite: Suite, scale: Scale, wanted: list[Run], ask: Price) -> dict[str, Widths]:
    """What makes each cell of the product match, by its name; rates and steps are no matter."""
    if not suite.matched:
        return {}
    places = {_place(run.cell): run for run in wanted}

    def config(run: Run, axes: dict[str, str]) -> dict[str, Any]:
        return config_of(suite, scale, Run(plain_cell(suite, axes), run.seed))

    return matched.solve(
        {name: config(run, run.cell.axes) for name, run in places.items()},
        {name: config(run, {**run.cell.axes, **suite.matched}) for name, run in places.items()},
        ask,
    )


def _place(cell: Cell) -> str:
    """The name of a cell's place in the product."""
    return "+".join(cell.axes.values())


def _set(widths: Mapping[str, Widths], cell: Cell) -> dict[str, Any]:
    return widths[_place(cell)].set if widths else {}


@dataclass(frozen=True)
class Solved:
    """What meets a match.

    Attributes:
        steps: of the twin.
        knob: what else is set in its config.
        notes: what was measured, for the plan.
        compare: of a twin's entry, what it was to have of the matched thing, and what it has.
    """

    steps: int
    knob: dict[str, Any]
    notes: dict[str, Any]
    compare: Callable[[Mapping[str, Any]], tuple[float, float]]


def _solve(
    cell: Cell,
    of: tuple[dict[str, Any], dict[str, Any]],
    target: tuple[dict[str, Any], dict[str, Any]],
    ask: Price,
    clock: Clock | None,
) -> Solved:
    """What a twin changes; ``of`` and ``target`` are entries of the plan with their configs."""
    from lrt_lab.training.config import merge, merge_configs

    assert cell.twin is not None
    match, where = cell.twin.match, cell.name
    (mine, config), (theirs, _) = of, target
    if match.knob is not None:
        knob = match.knob

        def attempt(value: Any) -> Mapping[str, Any]:
            return ask([merge(config, merge_configs([], {knob: value}))])[0]

        goal = amount(match, theirs)
        blocks = ask([config])[0]["config"]["model"]["blocks"]
        value = knob_for(match, blocks, goal, attempt, where)
        return Solved(mine["steps"], {knob: value}, {}, lambda entry: (goal, amount(match, entry)))
    if match.word == "wall_clock":
        measured = None if clock is None else clock([config, target[1]])
        names = ("of", "as")
        notes = {"seconds_per_step": measured and dict(zip(names, measured, strict=True))}
        # Unmeasured, a FLOP takes as long in both.
        step, its = measured or [float(one["train_flops_per_step"]) for one in (mine, theirs)]
        goal = theirs["steps"] * its
        pair = {"seconds_per_step": step}, {"seconds_per_step": its, "steps": theirs["steps"]}
        steps = steps_for(match, *pair, where)
        return Solved(steps, {}, notes, lambda entry: (goal, entry["steps"] * step))
    steps = steps_for(match, mine, theirs, where)
    return Solved(steps, {}, {}, lambda entry: (theirs[match.word], entry[match.word]))


def _entry(run: Run, answer: dict[str, Any]) -> dict[str, Any]:
    cell = run.cell
    return {
        "cell": cell.name,
        "axes": cell.axes,
        "twin": None if cell.twin is None else cell.twin.record(),
        "matched": None,
        "times": cell.times,
        "at_default": cell.factor == 1,
        "seed": run.seed,
        "folder": f"{cell.name}/{folder_name(run.seed, answer['hash'])}",
        "hash": answer["hash"],
        "steps": answer["steps"],
        "tokens": answer["tokens"],
        "train_flops": answer["train_flops"],
        "tokens_per_step": answer["tokens_per_step"],
        "train_flops_per_step": answer["train_flops_per_step"],
        "parameters": answer["parameters"],
        "decode_flops_per_token": answer["decode_flops_per_token"],
        "cost": answer["cost"],
    }


def build(
    suite: Suite, scale: Scale, entries: list[dict[str, Any]], choices: Tuned | None = None
) -> dict[str, Any]:
    """The whole plan, as it is written."""
    statistics = suite.statistics
    known = {entry["cell"] for entry in entries}
    same = _same(suite, scale, choices)
    weighed = {name: _renamed(w, same) for name, w in statistics.contrasts.items()}
    contrasts = {name: w for name, w in weighed.items() if w and known >= set(w)}
    swapped = {n: {a: same.get(b, b) for a, b in s.items()} for n, s in statistics.squares.items()}
    # A scale that leaves cells out leaves out what compares them.
    gone = statistics.contrasts.keys() - contrasts.keys()
    gone |= {value for axis, kept in scale.only.items() for value in {*suite.axes[axis]} - {*kept}}
    return {
        "suite": suite.name,
        "scale": scale.name,
        "suite_file": str(suite.path),
        "suite_hash": suite.sha256,
        "frozen": frozen(suite.path),
        "title": suite.title,
        "hypothesis": suite.hypothesis,
        "prediction": suite.prediction,
        "statistics": {
            "family": [name for name in statistics.family if name not in gone],
            "primary": statistics.primary,
            "outcome": statistics.outcome,
            "metric": statistics.metric,
            "margin": scale.margin,
            "planned_seeds": len(scale.seeds),
            "alpha": statistics.alpha,
            "contrasts": contrasts,
            "floor": list(statistics.floor) or None,
            "axes": statistics.axes,
            "sweep": statistics.sweep or None,
            "groups": statistics.groups or None,
            "solid": statistics.solid or None,
            "squares": {n: s for n, s in swapped.items() if known >= {*s, *s.values()}},
            "positions": statistics.positions or None,
        },
        "scaling": None if suite.scaling is None else vars(suite.scaling),
        "tuning": None if choices is None else choices.record,
        "matched": suite.matched or None,
        "same": same,
        "inputs": inputs(suite, scale),
        "cells": entries,
    }


def _same(suite: Suite, scale: Scale, choices: Tuned | None) -> dict[str, str]:
    """Cells that would be their tuned selves over again, and are not run, by those."""
    if choices is None:
        return {}
    return {
        cell.name: cell.name.partition("@")[0]
        for cell in cells(suite, scale)
        if choices.chose_default(cell)
    }


def _renamed(weights: Mapping[str, float], same: Mapping[str, str]) -> dict[str, float]:
    """A contrast with cells that are others under their own names; empty if nothing is left."""
    total: dict[str, float] = {}
    for cell, weight in weights.items():
        name = same.get(cell, cell)
        total[name] = total.get(name, 0.0) + weight
    return {cell: weight for cell, weight in total.items() if weight}


def inputs(suite: Suite, scale: Scale) -> dict[str, Any]:
    """Hashes of all that decides what a run is."""
    fragments = [*suite.base, *scale.config]
    return {
        "fragments": [[file.name, _sha256(file)] for file in fragments],
        "code": _code_hash(),
        "python": sys.version.split()[0],
    }


def cached(
    suite: Suite, scale: Scale, folder: Path, wanted: list[Run], choices: Tuned | None = None
) -> dict[str, Any] | None:
    """The written plan, if a new one would say the same."""
    plan = read_json(folder / PLAN)
    if plan is None or plan["suite_hash"] != suite.sha256:
        return None
    runs = {(entry["cell"], entry["seed"]) for entry in plan["cells"]}
    if runs != {(run.cell.name, run.seed) for run in wanted}:
        return None
    if plan.get("tuning") != (None if choices is None else choices.record):
        return None
    return plan if plan["inputs"] == inputs(suite, scale) else None


def written(suite: Suite, scale: Scale, folder: Path) -> dict[str, Any]:
    """The plan that the runs were started from, whatever has changed since."""
    plan = read_json(folder / PLAN)
    if plan is None:
        others = sorted(path.parent.name for path in folder.parent.glob(f"*/{PLAN}"))
        have = f" Scales that have runs there: {', '.join(others)}." if others else ""
        raise UserError(
            f"No runs of {suite.name} at scale {scale.name} in '{folder}' yet; start them with "
            f"`lrt-lab suite run {suite.path} --scale {scale.name}`.{have}"
        )
    return plan


def write(plan: dict[str, Any], folder: Path) -> None:
    """Leave the plan beside its runs."""
    write_json(folder / PLAN, plan)


def refuse_to_mix(plan: dict[str, Any], folder: Path) -> None:
    """Raise if a cell and seed of the plan already has results from another config.

    Two configs under one cell and seed would be one too many for the report; and a changed config
    must not silently throw away what the old one cost.
    """
    strangers = [
        path
        for entry in plan["cells"]
        for path in (folder / entry["cell"]).glob(f"seed-{entry['seed']}-*")
        if path.name != Path(entry["folder"]).name and RunFolder(path).holds_results()
    ]
    if strangers:
        more = f" (and {len(strangers) - 1} more)" if len(strangers) > 1 else ""
        raise UserError(
            f"'{strangers[0]}'{more} holds a run of another config than {plan['suite_file']} "
            f"now gives this cell and seed. Move '{folder}' away, delete it, or give the scale "
            "another name."
        )


def frozen(path: Path) -> dict[str, str] | None:
    """The last commit that changed the suite file, and its date.

    None outside git and while the file has uncommitted changes: then no commit says what was
    declared.
    """
    if _git(path, "status", "--porcelain", "--ignored", "--", path.name) != "":
        return None
    line = _git(path, "log", "-1", "--format=%H %cI", "--", path.name)
    if not line:
        return None
    commit, date = line.split()
    return {"commit": commit, "date": date}


def refreeze(plan: dict[str, Any], suite: Suite, folder: Path) -> None:
    """Bring a written plan up to date with git: the same file may have been committed since."""
    if plan["suite_hash"] == suite.sha256:
        now = frozen(suite.path)
        if now != plan["frozen"]:
            plan["frozen"] = now
            write(plan, folder)


def _git(path: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=path.resolve().parent, capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _code_hash() -> str:
    """One hash of the sources that turn a config into a model and its costs.

    A changed default changes runs without changing a config file, so a plan must not outlive it.
    The suite, the analysis and the report say nothing about what a run is.
    """
    package = Path(__file__).resolve().parents[1]
    kernels = [package.parent / "kernels" / "lrt_kernels", package.parent / "lrt_kernels"]
    aside = {"suite", "analysis", "report"}
    digest = hashlib.sha256()
    for root in (package, *kernels):
        for file in sorted(root.rglob("*.py")):
            part = file.relative_to(root)
            if part.parts[0] not in aside:
                digest.update(f"{part}\0{_sha256(file)}\n".encode())
    return digest.hexdigest()
