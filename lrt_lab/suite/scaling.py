"""The section `scaling` of a suite: its runs are points of a law in size, data and passes.

`{axis: model, baseline: none, sd: 0.001, pilots: [smoke]}`: the axis that tells models apart, the
baseline among its values, the deviation of one run in ln loss that is expected, and the scales
whose verdicts are of the machinery alone. Size, tokens and passes are not declared: the meter knows
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.suite.checks import items, number, require_known, section


@dataclass(frozen=True)
class Scaling:
    """What the law is fitted to."""

    axis: str
    baseline: str
    sd: float
    pilots: tuple[str, ...] = ()


def scaling(tree: object, axes: Mapping[str, Mapping[str, Any]], where: str) -> Scaling | None:
    """The section, or None where there is none."""
    if tree is None:
        return None
    parts = section(tree, where, ("axis", "baseline", "sd", "pilots"), optional=("sd", "pilots"))
    require_known("axis", [parts["axis"]], axes, where)
    require_known("value", [parts["baseline"]], axes[parts["axis"]], where)
    sd = number(parts.get("sd", 0.001), f"{where}.sd")
    if sd <= 0:
        raise UserError(f"{where}.sd is {sd}; it is a positive deviation of ln loss.")
    pilots = tuple(str(one) for one in items(parts.get("pilots", []), f"{where}.pilots"))
    return Scaling(parts["axis"], parts["baseline"], sd, pilots)


def promise(entries: Sequence[Mapping[str, Any]], declared: Scaling, seeds: int) -> str:
    """What the design can tell: expected standard errors and condition number, as text.

    Args:
        entries: of the plan, one run of each cell.
        declared: the suite's section.
        seeds: of every cell.

    Raises:
        UserError: the design cannot be fitted.
    """
    import numpy as np

    from lrt_lab.analysis.scaling import TYPICAL, expected, law, runs, told_apart

    models = order([entry["axes"][declared.axis] for entry in entries], declared.baseline)
    planned = runs(
        *(
            np.tile([float(value) for value in column], seeds)
            for column in (
                [entry["parameters"]["matmul"] for entry in entries],
                [entry["tokens"] for entry in entries],
                [1.0] * len(entries),
            )
        ),
        passes=np.tile([float(entry["cost"]["passes"]) for entry in entries], seeds),
        model=np.tile([models.index(entry["axes"][declared.axis]) for entry in entries], seeds),
    )
    passes = "iso-recurrence" if len(np.unique(planned.passes)) > 1 else "none"
    wanted = law(passes, len(models) if told_apart(planned) else 1)
    found = expected(wanted, planned, TYPICAL, declared.sd)
    errors = ", ".join(f"{name} {error:.2g}" for name, error in found.errors.items())
    return (
        f"scaling law {wanted.name} on {found.runs} runs, one run's deviation {found.sd:g} in ln "
        f"loss: condition number {found.condition:.3g}; expected standard errors (of logarithms "
        f"for A, B, E and multipliers): {errors}"
    )


def order(names: Sequence[str], baseline: str) -> tuple[str, ...]:
    """Names of models, the baseline first."""
    return (baseline, *(name for name in dict.fromkeys(names) if name != baseline))
