"""Reads a suite's plan and run folders into a design and records. Only finished records count: a
run has DONE or it has not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lrt_lab.analysis.square import Square
from lrt_lab.errors import UserError
from lrt_lab.report.numbers import listing
from lrt_lab.report.records import KINDS, Design, Record, Twin

NAN = float("nan")


def scale_folder(plan: Mapping[str, Any], runs_dir: Path) -> Path:
    """The folder that holds the plan's cells: `runs_dir` itself, or `<suite>/<scale>` below it."""
    nested = runs_dir / str(plan["suite"]) / str(plan["scale"])
    return nested if not (runs_dir / "plan.json").exists() and nested.is_dir() else runs_dir


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan of a suite's run folder, `runs/<suite>/<scale>/plan.json`."""
    path = folder / "plan.json"
    if not path.is_file():
        raise UserError(
            f"{folder} holds no plan.json; give the folder of one scale, such as runs/h1/quick, "
            "or a .csv file"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not JSON ({error}); run `lrt-lab suite run` again to rewrite it"
        ) from None


def design_of(plan: Mapping[str, Any]) -> Design:
    """The design that a plan declares."""
    statistics = plan["statistics"]
    cells: dict[str, Mapping[str, str]] = {}
    twins: dict[str, Twin] = {}
    axes: dict[str, dict[str, None]] = {}
    for item in plan["cells"]:
        cells.setdefault(item["cell"], item["axes"])
        for axis, value in item["axes"].items():
            axes.setdefault(axis, {}).setdefault(str(value))
        twin = item.get("twin")
        if twin:
            # A report names a budget after the column that it is read from.
            match = "train_seconds" if twin["match"] == "wall_clock" else twin["match"]
            twins.setdefault(item["cell"], Twin(item["cell"], twin["of"], twin["as"], match))
    rungs, defaults = _again(plan["cells"], twins)
    ordered = _axis_values(statistics.get("axes") or {}, axes, statistics.get("groups") or {})
    repeated = {again for found in (*rungs.values(), defaults) for again in found.values()}
    cells = _in_order(cells, ordered, {*twins, *repeated})
    ends = statistics.get("axes") or {}
    own = {c: a for c, a in cells.items() if c not in twins and c not in repeated}
    # A default rate among tuned ones, or another width, would bend the line between budgets.
    bent = {*defaults.values(), *(twin.cell for twin in twins.values() if not twin.same_model)}
    floor = statistics.get("floor")
    swept = statistics.get("sweep")
    sweep = (swept["axis"], swept["default"]) if swept else None
    return Design(
        name=plan["suite"],
        axes=ordered,
        cells=cells,
        square=square_of(ends, own, str(plan.get("suite_file") or f"suite {plan['suite']}")),
        baseline=baseline_of(ends, own, sweep),
        sweep=sweep,
        groups=_groups(statistics.get("groups"), ends),
        solid=statistics.get("solid") or {},
        ladders={
            cell: [by[cell] for by in rungs.values() if cell in by]
            or [c for c, axes in cells.items() if axes == cells[cell] and c not in bent]
            for cell in (own if repeated else ())
        },
        squares=statistics.get("squares") or {},
        rungs=rungs,
        defaults=defaults,
        unchanged=tuple(sorted((plan.get("same") or {}).values())),
        positions=statistics.get("positions") or {},
        seeds=tuple(sorted({item["seed"] for item in plan["cells"]})),
        margin=float(statistics["margin"]),
        alpha=float(statistics.get("alpha", 0.05)),
        planned_seeds=statistics.get("planned_seeds"),
        primary=statistics.get("primary", "interaction"),
        family=tuple(statistics.get("family", ())),
        contrasts=statistics.get("contrasts", {}),
        floors=()
        if floor is None
        else tuple(floor)
        if isinstance(floor, list)
        else (float(floor),),
        twins=tuple(twins.values()),
        square_axes=tuple(list(statistics.get("axes") or {})[:2]),
        outcome=statistics.get("outcome", "exact"),
        metric=statistics.get("metric", "loss"),
        title=plan.get("title", ""),
        hypothesis=plan.get("hypothesis", ""),
        prediction=plan.get("prediction", ""),
        vocabulary=statistics.get("vocabulary"),
        scale=plan["scale"],
        source=plan,
    )


def _groups(
    groups: Mapping[str, Any] | None, ends: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """What describes an axis' values, with the baseline that they gain over."""
    return {} if not groups else {**groups, "baseline": ends[groups["axis"]]["baseline"]}


def _again(
    items: Sequence[Mapping[str, Any]], twins: Mapping[str, Twin]
) -> tuple[dict[float, dict[str, str]], dict[str, str]]:
    """Cells that are run at other budgets, and at the default of the tuned key, by their own."""
    rungs: dict[float, dict[str, str]] = {}
    defaults: dict[str, str] = {}
    for item in items:
        cell, times = item["cell"], item.get("times", 1)
        # A suite joins a cell's name and what is changed of it.
        own = cell.partition("@")[0]
        if item.get("at_default"):
            defaults[own] = cell
        elif times != 1 and cell not in twins:
            rungs.setdefault(float(times), {})[own] = cell
    return rungs, defaults


def _axis_values(
    ends: Mapping[str, Mapping[str, str]],
    axes: Mapping[str, Mapping[str, None]],
    groups: Mapping[str, Any],
) -> dict[str, tuple[str, ...]]:
    """Axes of the contrast first, on each its baseline first: a plan lists cells by cost.

    A single axis has the order of its groups.
    """
    found = {}
    for axis in [*ends, *sorted(set(axes) - set(ends))]:
        first = ends.get(axis, {})
        named = [first[end] for end in ("baseline", "improved") if end in first]
        told = groups["values"] if groups and len(ends) == 1 and groups["axis"] == axis else ()
        there = [value for value in told if value in axes[axis]]
        found[axis] = tuple(dict.fromkeys([*named, *there, *sorted(axes[axis])]))
    return found


def _in_order(
    cells: Mapping[str, Mapping[str, str]],
    axes: Mapping[str, tuple[str, ...]],
    later: set[str],
) -> dict[str, Mapping[str, str]]:
    """Cells in the order of their axes; twins and repetitions behind the cells that they copy."""

    def key(cell: str) -> tuple[list[int], bool, str]:
        return [v.index(str(cells[cell][axis])) for axis, v in axes.items()], cell in later, cell

    return {cell: cells[cell] for cell in sorted(cells, key=key)}


def square_of(
    ends: Mapping[str, Mapping[str, str]], cells: Mapping[str, Mapping[str, str]], source: str
) -> Square | None:
    """The 2x2 between the baseline and improved values of two axes; other axes at their first
    value. None with fewer axes. `source` is the file that an error names.
    """
    if len(ends) < 2:
        return None
    (one, first), (two, second) = list(ends.items())[:2]
    first_axes = next(iter(cells.values()))
    rest = {axis: value for axis, value in first_axes.items() if axis not in (one, two)}

    def cell(backbone: str, route: str) -> str:
        wanted = {**rest, one: backbone, two: route}
        for name, axes in cells.items():
            if dict(axes) == wanted:
                return name
        values = listing([f"{axis} {value}" for axis, value in wanted.items()])
        raise UserError(
            f"{source}: missing cell: the 2x2 needs one with {values}; it has: {', '.join(cells)}"
        )

    p, a, none, route = first["baseline"], first["improved"], second["baseline"], second["improved"]
    return Square(p, a, none, route, (cell(p, none), cell(p, route), cell(a, none), cell(a, route)))


def baseline_of(
    ends: Mapping[str, Mapping[str, str]],
    cells: Mapping[str, Mapping[str, str]],
    sweep: tuple[str, str] | None = None,
) -> str | None:
    """With one axis: the cell that every other one is compared with, in a sweep at its default."""
    if len(ends) != 1:
        return None
    ((axis, values),) = ends.items()
    wanted = {axis: values["baseline"], **(dict([sweep]) if sweep else {})}
    return next(
        (name for name, axes in cells.items() if wanted.items() <= dict(axes).items()), None
    )


def read_runs(plan: Mapping[str, Any], folder: Path) -> list[Record]:
    """One record for every planned run, finished or not."""
    return [record_of(item, plan, _reader(folder / item["folder"])) for item in plan["cells"]]


def strays(plan: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Finished runs beside the plan's, of other configurations or seeds: they enter no number, but
    are named.
    """
    planned = {item["folder"] for item in plan["cells"]}
    found = (done.parent.relative_to(folder).as_posix() for done in folder.glob("*/*/DONE"))
    return tuple(sorted(name for name in found if name not in planned))


def require_one_evaluation(records: Sequence[Record]) -> None:
    """Losses on different bytes must never be compared; those of different tasks never are."""
    slices: dict[Any, dict[str, str]] = {}
    for r in records:
        if r.status == "finished":
            data = r.meta.get("data") or {}
            task = json.dumps(data, sort_keys=True) if "task" in data else None
            sha256 = str((r.final.get("test") or {}).get("sha256"))
            slices.setdefault(task, {})[sha256] = f"{r.cell}, seed {r.seed}"
    for found in slices.values():
        if len(found) > 1:
            (one, first), (two, second) = list(found.items())[:2]
            raise UserError(
                f"runs were evaluated on different bytes: {first} on {one[:12]}, {second} on "
                f"{two[:12]}; "
                "evaluate them again on one slice"
            )


def _reader(folder: Path) -> Callable[[str], Any]:
    def read(name: str) -> Any:
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if name == "DONE":
            return True
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{folder / name} is not JSON ({error}); remove the run's folder and run the "
                "suite again"
            ) from None

    return read


def record_of(
    item: Mapping[str, Any], plan: Mapping[str, Any], read: Callable[[str], Any]
) -> Record:
    """One planned run and what its folder holds; `read` gives a file's content by name, None where
    it is absent.
    """
    outcome = plan["statistics"].get("outcome", "exact")
    planned = item.get("parameters") or {}
    base = {"cell": item["cell"], "seed": item["seed"], "folder": item["folder"]}
    if not read("DONE"):
        status = "failed" if read("failed.json") else "missing"
        return Record(
            **base,
            status=status,
            parameters=planned.get("total", NAN),
            matmul_parameters=planned.get("matmul", NAN),
            kinds=_kinds(planned),
        )
    final, meta = read("final.json"), read("meta.json") or {}
    if final is None:
        raise UserError(
            f"{item['folder']} has DONE but no final.json; remove the folder and run the suite "
            "again"
        )
    test = (final.get("test") or {}).get(outcome) or {}
    parameters = final.get("parameters") or planned
    if final["status"] == "finished":
        _require_losses(item, test, final.get("test") or {})
    return Record(
        **base,
        status=final["status"],
        loss=test.get("loss", NAN),
        last_finite_loss=final.get("last_finite_loss") or NAN,
        bpb=test.get("bpb", NAN),
        tokens=final.get("tokens", NAN),
        train_flops=final.get("train_flops", NAN),
        train_seconds=final.get("train_seconds", NAN),
        eval_seconds=final.get("eval_seconds", NAN),
        tokens_per_second=final.get("tokens_per_second", NAN),
        parameters=parameters.get("total", NAN),
        matmul_parameters=parameters.get("matmul", NAN),
        decode_flops=item.get("decode_flops_per_token", NAN),
        kinds=_kinds(parameters),
        curve=final.get("curve"),
        final=final,
        meta=meta,
    )


def _kinds(parameters: Mapping[str, float]) -> dict[str, float]:
    return {kind: parameters[kind] for kind in KINDS if kind in parameters}


def _require_losses(
    item: Mapping[str, Any], outcome: Mapping[str, Any], test: Mapping[str, Any]
) -> None:
    """A finished run has a finite loss in nats per token, and bits per byte that agree with it."""
    where = f"{item['cell']}, seed {item['seed']}"
    loss = np.asarray(outcome.get("loss", NAN), dtype=float)
    if not np.isfinite(loss).all():
        raise UserError(
            f"{where}: the run is finished but its loss is {outcome.get('loss')}; "
            "a run without a finite loss is 'diverged', or has to be evaluated again"
        )
    if test.get("bytes") and test.get("tokens") and outcome.get("bpb") is not None:
        bpb = loss * test["tokens"] / (test["bytes"] * np.log(2))
        if not np.allclose(bpb, outcome["bpb"], rtol=0.02):
            raise UserError(
                f"{where}: mixed units: {loss} nats per token are {bpb:.4f} bits per byte, "
                f"but the record says {outcome['bpb']}"
            )
