"""The section `scaling` of a suite: its runs are points of a law in size, data and passes.

`{axis: model, baseline: none, sd: 0.001, pilots: [smoke]}`: the axis that tells models apart, the
baseline among its values, the deviation of one run in ln loss that is expected, and the scales
whose verdicts are of the machinery alone. Size and tokens are not declared: the meter knows them.

`compare` lists the models that are set against each other, `{model: LRT, baseline: none}`, the
primary comparison first; without it every other model is set against the baseline. `interaction`
names four models, `{base: {none: .., routed: ..}, improved: {none: .., routed: ..}}`, and `passes`
the axis by which routed cells differ from their cells without a route. `window` is the span of
output tokens that is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.suite.checks import items, number, require_known, section

ENDS = ("base", "improved")
SIDES = ("none", "routed")


@dataclass(frozen=True)
class Scaling:
    """What the law is fitted to."""

    axis: str
    baseline: str
    sd: float
    pilots: tuple[str, ...] = ()
    compare: tuple[dict[str, str], ...] = ()
    interaction: dict[str, dict[str, str]] | None = None
    passes: str | None = None
    window: tuple[float, float] | None = None


def scaling(tree: object, axes: Mapping[str, Mapping[str, Any]], where: str) -> Scaling | None:
    """The section, or None where there is none."""
    if tree is None:
        return None
    optional = ("sd", "pilots", "compare", "interaction", "passes", "window")
    parts = section(tree, where, ("axis", "baseline", *optional), optional)
    require_known("axis", [parts["axis"]], axes, where)
    models = axes[parts["axis"]]
    require_known("value", [parts["baseline"]], models, where)
    sd = number(parts.get("sd", 0.001), f"{where}.sd")
    if sd <= 0:
        raise UserError(f"{where}.sd is {sd}; it is a positive deviation of ln loss.")
    others = [axis for axis in axes if axis != parts["axis"]]
    if "passes" in parts:
        require_known("axis", [parts["passes"]], others, f"{where}.passes")
    compare = []
    for place, one in enumerate(items(parts.get("compare", []), f"{where}.compare")):
        pair = section(one, f"{where}.compare[{place}]", ("model", "baseline"))
        require_known("value", pair.values(), models, f"{where}.compare[{place}]")
        compare.append(pair)
    return Scaling(
        parts["axis"],
        parts["baseline"],
        sd,
        tuple(str(one) for one in items(parts.get("pilots", []), f"{where}.pilots")),
        tuple(compare),
        _interaction(parts.get("interaction"), models, f"{where}.interaction"),
        parts.get("passes"),
        _window(parts.get("window"), f"{where}.window"),
    )


def _interaction(
    tree: object, models: Mapping[str, Any], where: str
) -> dict[str, dict[str, str]] | None:
    if tree is None:
        return None
    found = section(tree, where, ENDS)
    for end in ENDS:
        sides = section(found[end], f"{where}.{end}", SIDES)
        require_known("value", sides.values(), models, f"{where}.{end}")
    return found


def _window(value: object, where: str) -> tuple[float, float] | None:
    if value is None:
        return None
    ends = [number(one, where) for one in items(value, where)]
    if len(ends) != 2 or not 0 < ends[0] < ends[1]:
        raise UserError(f"{where} is {value}; give two rising numbers of output tokens.")
    return ends[0], ends[1]


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
    said = (
        f"scaling law {wanted.name} on {found.runs} runs, one run's deviation {found.sd:g} in ln "
        f"loss: condition number {found.condition:.3g}; expected standard errors (of logarithms "
        f"for A, B, E and multipliers): {_errors(found.errors)}"
    )
    return (
        f"{said}\n{about}" if (about := _promised_interaction(entries, declared, seeds)) else said
    )


def _promised_interaction(
    entries: Sequence[Mapping[str, Any]], declared: Scaling, seeds: int
) -> str | None:
    """Expected standard errors of the interaction's law; a deviation of I is that of four runs."""
    from lrt_lab.analysis.scaling import expected_interaction

    groups = squares(entries, declared)
    if not groups:
        return None
    plain = [entries[group["improved"]["none"]] for group in groups]
    size, tokens = ([e["parameters"]["matmul"] for e in plain], [e["tokens"] for e in plain])
    errors = expected_interaction(size * seeds, tokens * seeds, 2 * declared.sd)
    return (
        f"law of the interaction on {len(groups) * seeds} values of I, deviation "
        f"{2 * declared.sd:g}: expected standard errors {_errors(errors)}"
    )


def _errors(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {error:.2g}" for name, error in found.items())


def squares(
    entries: Sequence[Mapping[str, Any]], declared: Scaling
) -> list[dict[str, dict[str, int]]]:
    """The 2x2s that give one value of the interaction each, as positions in `entries`.

    The four cells share everything but the model; a cell without a route stands beside routed ones
    of any number of passes, and the routed ones have the same number.
    """
    if declared.interaction is None:
        return []
    aside = {declared.axis, declared.passes}
    by_place: dict[tuple[Any, ...], dict[str, dict[Any, int]]] = {}
    for at, entry in enumerate(entries):
        rest = tuple(v for axis, v in sorted(entry["axes"].items()) if axis not in aside)
        place = (rest, entry.get("times", 1), entry.get("seed"))
        model, passes = entry["axes"][declared.axis], entry["axes"].get(declared.passes)
        by_place.setdefault(place, {}).setdefault(model, {})[passes] = at
    found = []
    for cells in by_place.values():
        ends = {
            end: {side: cells.get(model, {}) for side, model in sides.items()}
            for end, sides in declared.interaction.items()
        }
        if not all(len(ends[end]["none"]) == 1 for end in ENDS):
            continue
        for passes in ends["base"]["routed"]:
            if passes in ends["improved"]["routed"]:
                found.append(
                    {
                        end: {
                            "none": next(iter(ends[end]["none"].values())),
                            "routed": ends[end]["routed"][passes],
                        }
                        for end in ENDS
                    }
                )
    return found


def order(names: Sequence[str], baseline: str) -> tuple[str, ...]:
    """Names of models, the baseline first."""
    return (baseline, *(name for name in dict.fromkeys(names) if name != baseline))
