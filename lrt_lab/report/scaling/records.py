"""The finished runs of a suite that declares `scaling`, as a table of runs with metered costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lrt_lab.analysis.scaling import runs
from lrt_lab.errors import UserError
from lrt_lab.report.scaling.table import Table
from lrt_lab.report.suite_runs import read_plan, read_runs, require_one_evaluation, scale_folder
from lrt_lab.suite.scaling import order

PILOT = "Pilot: machinery only."


def read_folder(folder: Path, prefill_passes: float | None = None) -> tuple[Table, str, str]:
    """Finished runs with their matrix and pointwise FLOPs, what is said before every verdict, and
    `<suite>/<scale>`.

    A prompt is priced at as many passes as were trained, or at most `prefill_passes`.

    Raises:
        UserError: the suite declares no `scaling`, or no run is finished.
    """
    plan = read_plan(folder)
    declared = plan.get("scaling")
    if declared is None:
        raise UserError(f"{folder}: {plan['suite_file']} declares no 'scaling', so there is no law")
    records = read_runs(plan, scale_folder(plan, folder))
    finished = [record for record in records if record.status == "finished"]
    if not finished:
        raise UserError(f"{folder}: no run is finished yet")
    require_one_evaluation(finished)
    of_cell = {entry["cell"]: entry["axes"][declared["axis"]] for entry in plan["cells"]}
    names = [of_cell[record.cell] for record in finished]
    models = order(names, declared["baseline"])
    costs = [record.final["cost"] for record in finished]

    def priced(kind: str) -> np.ndarray:
        parts = (f"{kind}_flops_per_token", f"{kind}_pointwise_per_token")
        return np.array([sum(cost[part] for part in parts) for cost in costs])

    tokens = np.array([record.tokens for record in finished])
    passes = np.array([float(cost["passes"]) for cost in costs])
    over = passes if prefill_passes is None else np.minimum(passes, prefill_passes)
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
    preface = PILOT if plan["scale"] in declared["pilots"] else ""
    return Table(table, models, measured), preface, f"{plan['suite']}/{plan['scale']}"
