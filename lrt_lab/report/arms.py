"""One axis of arms: the primary contrast with its verdict, the ablations, every arm on every
outcome, and what each costs.

A design has arms where one axis is compared in ln loss and the primary contrast is one of its
gains. The primary contrast is alone in its family unless the declared family names it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lrt_lab.analysis.contrasts import Contrast, against, evaluate
from lrt_lab.analysis.estimate import Estimate
from lrt_lab.analysis.gain import judge, shown
from lrt_lab.analysis.planning import detectable
from lrt_lab.analysis.spread import sd
from lrt_lab.analysis.square import log
from lrt_lab.analysis.table import Table
from lrt_lab.analysis.verdict import FEWEST_SEEDS
from lrt_lab.errors import UserError
from lrt_lab.report.budgets import further_seeds
from lrt_lab.report.comparisons import known
from lrt_lab.report.records import Design, Record, table
from lrt_lab.report.values import interval, mean, spread, test

Rows = Sequence[Mapping[str, Any]]
#: Where bits per byte of each outcome stand in a run's curve over passes.
PASSES: dict[str, int | str] = {"pass 4": 4, "mean of passes 4 to 16": "mean_4_16"}
#: What the headline is called, by the evaluation that it is.
HEADLINE = {"exact": "token recurrence", "last_pass": "last training pass"}
OTHER = "several at once"


def primary(design: Design) -> Contrast | None:
    """The primary contrast of a design with arms; None in any other design."""
    if design.square is not None or design.baseline is None or design.sweep is not None:
        return None
    return known(design).get(design.primary)


def require(design: Design) -> None:
    """Raise if the baseline must be solid and the runs could not say so."""
    if not design.solid:
        return
    if primary(design) is None:
        raise UserError(
            f"statistics.primary is {design.primary!r}, which is no contrast at scale "
            f"{design.scale}; known are: {', '.join(known(design))}"
        )
    if over(design) is None:
        raise UserError(
            f"statistics.solid compares the baseline with {design.solid['over']}, which scale "
            f"{design.scale} leaves out"
        )


def over(design: Design) -> str | None:
    """The cell that the baseline must beat; None where that is not asked for, or it is not run."""
    if not design.solid or design.baseline is None:
        return None
    wanted = {**design.cells[design.baseline], design.square_axes[0]: design.solid["over"]}
    return next((name for name, axes in design.cells.items() if dict(axes) == wanted), None)


def measured(
    losses: Table, design: Design, records: Sequence[Record], family: Rows
) -> dict[str, Any] | None:
    """Everything about arms as plain values; None in a design without them.

    Args:
        losses: of every cell and seed.
        design: with the primary contrast.
        records: of all runs.
        family: the declared family, evaluated.
    """
    contrast = primary(design)
    if contrast is None:
        return None
    own = [cell for cell in design.cells if cell not in _aside(design)]
    ablations = [] if contrast.name in design.family or not design.solid else list(family)
    reference, arm = _sides(contrast.weights)
    named = {design.baseline, *contrast.weights}
    named |= {cell for row in ablations for cell in row["weights"]}
    beside = [cell for cell in own if cell not in named]
    return {
        "baseline": design.baseline,
        "primary": _verdict(losses, design, contrast),
        "alone": len(family) == 1 or contrast.name not in {row["name"] for row in family},
        "reference": reference,
        "arm": arm,
        "solid": _solid(losses, design),
        "at_default": _at_default(losses, design, contrast),
        "sensitivity": _sensitivity(design, records, contrast),
        "ablations": [_ablation(row, design) for row in ablations],
        "beside": [_gain(losses, design, cell) for cell in beside],
        "outcomes": _outcomes(losses, design, records, own),
        "costs": [_cost(cell, design, records) for cell in own],
    }


def _aside(design: Design) -> set[str]:
    return design.again | {twin.cell for twin in design.twins}


def _sides(weights: Mapping[str, float]) -> tuple[str | None, str | None]:
    """Reference and arm of a difference of two cells; None where it is something else."""
    sides = {1.0: None, -1.0: None} | {weight: cell for cell, weight in weights.items()}
    return (sides[1.0], sides[-1.0]) if len(weights) == len(sides) == 2 else (None, None)


def _verdict(losses: Table, design: Design, contrast: Contrast) -> dict[str, Any]:
    tested = evaluate(losses, contrast)
    gain, solid = tested.estimate, _estimate(losses, design)
    inner = 1 - 2 * design.alpha
    deviations = sd(_per_seed(losses, contrast))
    known_ends = np.isfinite(gain.se) and (solid is None or np.isfinite(solid.se))
    return test(
        gain,
        1 - design.alpha,
        name=contrast.name,
        weights=dict(contrast.weights),
        inner=interval(gain, inner),
        inner_level=inner,
        sd=deviations[0],
        sd_low=deviations[1],
        sd_high=deviations[2],
        p_sign_flip=tested.sign_flip,
        per_seed=_per_seed(losses, contrast),
        reading=str(judge(gain, design.margin, design.alpha, solid)) if known_ends else "withheld",
        pilot=gain.n < FEWEST_SEEDS,
        detectable=detectable(float(deviations[0]), gain.n, alpha=design.alpha),
        further_seeds=further_seeds(deviations[0], gain.n, design),
    )


def _per_seed(losses: Table, contrast: Contrast) -> np.ndarray:
    part = losses.select([cell for cell, weight in contrast.weights.items() if weight]).blocks()
    return np.array([contrast.weights[cell] for cell in part.cells]) @ log(part.loss)


def _estimate(losses: Table, design: Design) -> Estimate | None:
    """What the baseline gains over the cell that it must beat."""
    cell = over(design)
    if cell is None:
        return None
    return evaluate(losses, Contrast("solid", {cell: 1.0, str(design.baseline): -1.0})).estimate


def _solid(losses: Table, design: Design) -> dict[str, Any] | None:
    gain = _estimate(losses, design)
    if gain is None:
        return None
    return test(gain, 1 - design.alpha, over=over(design), shown=bool(shown(gain, design.alpha)))


def _at_default(losses: Table, design: Design, contrast: Contrast) -> dict[str, Any] | None:
    """The primary contrast at the default of the tuned key; None where nothing was run there."""
    cells = {cell: design.at_default(cell) for cell in contrast.weights}
    if None in cells.values() or list(cells) == list(cells.values()):
        return None
    weights = {str(cells[cell]): weight for cell, weight in contrast.weights.items()}
    gain = evaluate(losses, Contrast(contrast.name, weights)).estimate
    return test(gain, 1 - design.alpha, cells=list(weights))


def _sensitivity(
    design: Design, records: Sequence[Record], contrast: Contrast
) -> dict[str, Any] | None:
    """The primary contrast with diverged runs scored at their last finite loss."""
    cells = {*contrast.weights, design.baseline, over(design)}
    if not any(r.status == "diverged" and r.cell in cells for r in records):
        return None
    found = _verdict(table(records, design, failed="last"), design, contrast)
    return {key: found[key] for key in ("point", "low", "high", "n", "reading")}


def _ablation(row: Mapping[str, Any], design: Design) -> dict[str, Any]:
    """A row of the family with its reference, its arm, and what tells them apart."""
    reference, arm = _sides(row["weights"])
    changes = _changes(design, reference, arm)
    group = next(iter(changes)) if len(changes) == 1 else OTHER if changes else None
    return {**row, "reference": reference, "arm": arm, "changes": changes, "group": group}


def _changes(design: Design, reference: str | None, arm: str | None) -> dict[str, list[str]]:
    """By choice the words of both, where they differ; empty where one is not described."""
    words = design.groups.get("values", {})
    axis = design.square_axes[0]
    told = [words.get(design.cells.get(str(c), {}).get(axis, "")) for c in (reference, arm)]
    if None in told:
        return {}
    one, other = told
    return {choice: [one[choice], other[choice]] for choice in one if one[choice] != other[choice]}


def _gain(losses: Table, design: Design, cell: str) -> dict[str, Any]:
    """A cell's gain over the baseline, as `beside` has it."""
    (contrast,) = against(str(design.baseline), [cell])
    return test(evaluate(losses, contrast).estimate, 1 - design.alpha, arm=cell)


def _outcomes(
    losses: Table, design: Design, records: Sequence[Record], cells: Sequence[str]
) -> list[dict[str, Any]]:
    """Bits per byte (of tasks nats per token) of every arm, and its gain over the baseline."""
    done = [r for r in records if r.status == "finished" and r.cell in cells]
    found = []
    for name, place in PASSES.items():
        scored = [replace(r, loss=of_curve(r, place), bpb=of_curve(r, place)) for r in done]
        if np.isfinite([r.loss for r in scored]).any():
            found.append({"name": name, **_outcome(table(scored, design), design, scored, cells)})
    headline = {"name": HEADLINE[design.outcome], **_outcome(losses, design, done, cells)}
    return [*found, headline]


def of_curve(record: Record, place: int | str) -> float:
    """Bits per byte of one of `PASSES` in a run's curve; NaN where it has none."""
    curve = record.curve or {}
    by_pass = dict(zip(curve.get("passes", ()), curve.get("bpb", ()), strict=True))
    value = by_pass.get(place) if isinstance(place, int) else curve.get(place)
    return float("nan") if value is None else float(value)


def _outcome(
    values: Table, design: Design, runs: Sequence[Record], cells: Sequence[str]
) -> dict[str, Any]:
    level = 1 - design.alpha
    others = [cell for cell in cells if cell != design.baseline]
    gains = {c.name: evaluate(values, c).estimate for c in against(str(design.baseline), others)}
    rows = []
    for cell in cells:
        scores = np.array([r.bpb for r in runs if r.cell == cell], float)
        gain = gains.get(cell)
        rows.append(
            {
                "cell": cell,
                "bpb": spread(scores[np.isfinite(scores)]),
                "gain": None if gain is None else interval(gain, level),
            }
        )
    return {"rows": rows}


def _cost(cell: str, design: Design, records: Sequence[Record]) -> dict[str, Any]:
    """Dense parameters, FLOPs of training, and FLOPs of decoding a token."""
    done = [r for r in records if r.cell == cell and r.status == "finished"]
    costs = [(r.final or {}).get("cost") or {} for r in done]
    return {
        "cell": cell,
        "dense": mean(r.kinds.get("dense") for r in done),
        "train_flops": mean(r.train_flops for r in done),
        "decode_flops_per_token": mean(c.get("decode_flops_per_token") for c in costs),
    }
