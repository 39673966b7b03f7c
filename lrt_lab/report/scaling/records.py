"""The finished runs of a suite that declares `scaling`, as a table of runs with metered costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrt_lab.analysis.scaling import WINDOW, runs
from lrt_lab.errors import UserError
from lrt_lab.report.records import Record
from lrt_lab.report.scaling.question import Interactions
from lrt_lab.report.scaling.table import Table
from lrt_lab.report.suite_runs import read_plan, read_runs, require_one_evaluation, scale_folder
from lrt_lab.suite.scaling import Scaling, order, squares

PILOT = "pilot: machinery only."


@dataclass(frozen=True)
class Given:
    """What a run folder gives to a fit.

    Attributes:
        table: the runs.
        name: `<suite>/<scale>`.
        preface: said before every verdict.
        window: of output tokens.
        interactions: where the suite declares them and runs are there.
    """

    table: Table
    name: str
    preface: str
    window: tuple[float, float]
    interactions: Interactions | None

    @property
    def declared(self) -> dict[str, Any]:
        """What the suite says of a `Question`."""
        return {
            "window": self.window,
            "preface": self.preface,
            "interactions": self.interactions,
        }


def read_folder(folder: Path, prefill_passes: float | None = None) -> Given:
    """The finished runs of one scale.

    Raises:
        UserError: the suite declares no `scaling`, or no run is finished.
    """
    plan = read_plan(folder)
    if plan.get("scaling") is None:
        raise UserError(f"{folder}: {plan['suite_file']} declares no 'scaling', so there is no law")
    records = read_runs(plan, scale_folder(plan, folder))
    require_one_evaluation(records)
    return given(plan, records, prefill_passes, str(folder))


def given(
    plan: Mapping[str, Any],
    records: Sequence[Record],
    prefill_passes: float | None = None,
    where: str = "",
) -> Given:
    """Finished runs with what they cost: matrix and pointwise FLOPs, and seconds where measured.

    A prompt is priced at as many passes as were trained, or at most `prefill_passes`.

    Args:
        plan: of the suite.
        records: one for each of the plan's cells, in their order.
        prefill_passes: passes over a prompt.
        where: what an error names.
    """
    declared = Scaling(**plan["scaling"])
    finished = [record for record in records if record.status == "finished"]
    if not finished:
        raise UserError(f"{where or plan['suite']}: no run is finished yet")
    of_cell = {entry["cell"]: entry["axes"][declared.axis] for entry in plan["cells"]}
    names = [of_cell[record.cell] for record in finished]
    models = order(names, declared.baseline)
    costs = [record.final["cost"] for record in finished]
    tokens = np.array([record.tokens for record in finished])
    passes = np.array([float(cost["passes"]) for cost in costs])
    over = passes if prefill_passes is None else np.minimum(passes, prefill_passes)

    def priced(kind: str) -> np.ndarray:
        parts = (f"{kind}_flops_per_token", f"{kind}_pointwise_per_token")
        return np.array([sum(cost[part] for part in parts) for cost in costs])

    table = runs(
        [record.matmul_parameters for record in finished],
        tokens,
        [record.loss for record in finished],
        passes=passes,
        model=[models.index(name) for name in names],
        compute=tokens * priced("train"),
        # generated data is new for ever
        unique=[record.meta.get("data", {}).get("training_tokens", np.inf) for record in finished],
        cell=[record.cell for record in finished],
    )
    measured = {"prefill_flops": over * priced("prefill"), "decode_flops": priced("decode")}
    moved = [cost.get("decode_bytes_per_token") for cost in costs]
    if None not in moved:
        measured["decode_bytes"] = np.array(moved, dtype=float)
    speed = _speeds(finished)
    if speed is not None:
        measured |= {
            "train_seconds": tokens / speed["tokens_per_second"],
            "prefill_seconds": over / speed["prefill_tokens_per_second"],
            "decode_seconds": 1 / speed["decode_tokens_per_second"],
        }
    pairs = [(pair["model"], pair["baseline"]) for pair in declared.compare]
    compare = tuple(
        (models.index(model), models.index(baseline))
        for model, baseline in pairs
        if model in models and baseline in models
    )
    return Given(
        Table(table, models, measured, compare=compare),
        f"{plan['suite']}/{plan['scale']}",
        PILOT if plan["scale"] in declared.pilots else "",
        WINDOW if declared.window is None else (declared.window[0], declared.window[1]),
        _interactions(plan["cells"], records, declared),
    )


def _speeds(finished: Sequence[Record]) -> dict[str, np.ndarray] | None:
    """Tokens per second of training, prefill and decoding; None where a run lacks one."""
    names = ("tokens_per_second", "prefill_tokens_per_second", "decode_tokens_per_second")
    clocks = [record.final.get("throughput") or {} for record in finished]
    if not all(clock.get(name) for clock in clocks for name in names):
        return None
    return {name: np.array([clock[name] for clock in clocks], dtype=float) for name in names}


def _interactions(
    entries: Sequence[Mapping[str, Any]], records: Sequence[Record], declared: Scaling
) -> Interactions | None:
    """I of every 2x2 whose four runs are finished."""
    found = []
    for square in squares(entries, declared):
        runs_of = {
            end: {s: records[at] for s, at in sides.items()} for end, sides in square.items()
        }
        if all(r.status == "finished" for sides in runs_of.values() for r in sides.values()):
            gains = {
                end: float(np.log(sides["none"].loss / sides["routed"].loss))
                for end, sides in runs_of.items()
            }
            plain, routed = runs_of["improved"]["none"], runs_of["improved"]["routed"]
            where = plain.matmul_parameters, plain.tokens, float(routed.final["cost"]["passes"])
            found.append((*where, gains["improved"] - gains["base"]))
    if not found:
        return None
    assert declared.interaction is not None
    ends = [
        tuple(declared.interaction[end][side] for side in ("none", "routed"))
        for end in ("base", "improved")
    ]
    return Interactions((ends[0][0], ends[0][1]), (ends[1][0], ends[1][1]), *np.array(found).T)
