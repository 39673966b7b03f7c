"""The square at each matched budget: as run, with twins, or with the baseline read off between its
completed budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lrt_lab.analysis.planning import detectable, seeds_needed
from lrt_lab.analysis.signflip import floor as sign_flip_floor
from lrt_lab.analysis.spread import correlation, sd
from lrt_lab.analysis.square import Square, signs_disagree
from lrt_lab.analysis.study import GAINS, Study, analyse
from lrt_lab.analysis.table import Table
from lrt_lab.report import multipliers
from lrt_lab.report.numbers import listing
from lrt_lab.report.records import BUDGETS, Design, Record, table
from lrt_lab.report.values import interval, mean, test

# twins may differ by this much in the cost that they match
TOLERANCE = 0.01


def budgets(losses: Table, design: Design, records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """One entry per budget: the analysed square, or `unavailable` with the reason."""
    found = {}
    twinned = {twin.match for twin in design.twins}
    for match in BUDGETS:
        if match == "decode_flops" and match not in twinned:
            # Nothing but twins ever has this budget, so that without them there is nothing to say.
            continue
        square, extended, why = matched(losses, design, records, match)
        if square is None:
            found[match] = {"unavailable": why}
            continue
        summary = _summary(extended, square, design, records, match)
        read_off = extended is not losses
        summary["interpolated"] = read_off
        summary["mismatch"] = None if read_off else _mismatch(square, records, match)
        summary["mismatch_across"] = None if read_off else _across(square, records, match)
        summary["tolerance"] = TOLERANCE
        summary["label"] = _label(match, summary["mismatch"])
        summary["sensitivity"] = None if read_off else _sensitivity(records, design, square)
        found[match] = summary
    return found


def _label(match: str, mismatch: float | None) -> str:
    """How this budget is called: what was only run, and not matched, must not read as matched."""
    if match == "tokens" and mismatch is None:
        return "budgets as run (tokens not recorded)"
    if match == "tokens" and mismatch is not None and mismatch > TOLERANCE:
        return "budgets as run (tokens differ)"
    return BUDGETS[match]


def matched(
    losses: Table, design: Design, records: Sequence[Record], match: str
) -> tuple[Square | None, Table, str]:
    """The square whose cells share one budget, the table that holds its losses, or why there is
    none.
    """
    square = design.square
    if square is None:
        return None, losses, "no 2x2 is declared"
    if match == "tokens":
        return square, losses, ""
    twinned = design.matched(square, match)
    if isinstance(twinned, Square):
        return twinned, losses, ""
    if match == "parameters":
        return None, losses, twinned + _extra_parameters(square, records)
    if match == "decode_flops":
        return None, losses, twinned
    if not design.paired:
        return None, losses, "unpaired runs have no twins with this budget"
    extended, stand_ins = losses, {}
    p0, p1, a0, a1 = square.cells
    for base, routed in ((p0, p1), (a0, a1)):
        row, why = multipliers.at_cost(losses, design, records, base, routed, match)
        if row is None:
            return None, losses, why
        name = f"{base}@{match}"
        stand_ins[base] = name
        extended = replace(
            extended,
            cells=(*extended.cells, name),
            loss=np.concatenate([extended.loss, row[None, :]], axis=-2),
        )
    return square.with_cells(stand_ins), extended, ""


def _extra_parameters(square: Square, records: Sequence[Record]) -> str:
    """How many more parameters the route brings, since nothing was trained to match them."""
    found = {}
    for name, base, routed in zip(
        (square.base, square.improved), square.cells[::2], square.cells[1::2], strict=True
    ):
        one, other = (mean(r.parameters for r in records if r.cell == c) for c in (base, routed))
        if one and other:
            found[name] = f"{100 * (other / one - 1):+.2g}% on {name}"
    return (
        f" ({square.route} changes their number by {listing(list(found.values()))})"
        if found
        else ""
    )


def _mismatch(square: Square, records: Sequence[Record], match: str) -> float | None:
    """The largest relative difference of the matched cost within a backbone."""
    costs = [multipliers.cost_of(records, cell, match) for cell in square.cells]
    if not np.isfinite(costs).all():
        return None
    return max(abs(costs[i + 1] / costs[i] - 1) for i in (0, 2))


def _across(square: Square, records: Sequence[Record], match: str) -> float | None:
    """The same between any two of the four cells, as the rows that compare backbones need it."""
    costs = [multipliers.cost_of(records, cell, match) for cell in square.cells]
    return max(costs) / min(costs) - 1 if np.isfinite(costs).all() else None


def _summary(
    losses: Table, square: Square, design: Design, records: Sequence[Record], match: str
) -> dict[str, Any]:
    level, inner = 1 - design.alpha, 1 - 2 * design.alpha
    part = losses.select(square.cells).blocks()
    lowest = np.nanmin(part.loss) if part.loss.size and np.isfinite(part.loss).any() else np.inf
    floors = [floor for floor in design.floors if floor < lowest]
    study = analyse(losses, square, design.margin, design.alpha, floors)
    main = study.log["interaction"]
    names = {"gain_base": square.base, "gain_improved": square.improved}
    spread = sd(study.per_seed["interaction"]) if study.per_seed else (np.nan,) * 3
    return {
        "cells": list(square.cells),
        "seeds": list(study.seeds) if design.seeded and design.paired else [],
        "n": main.n,
        "gains": {
            names[gain]: {
                "log": _tested(study, gain, level),
                "relative": interval(study.relative[gain], level),
                "absolute": interval(study.absolute[gain], level),
                "excess": {
                    f"{floor:g}": interval(found[gain], level)
                    for floor, found in study.excess.items()
                },
                "shown": bool(getattr(study.verdict, gain)),
                "p_holm": getattr(study.verdict, gain.replace("gain", "holm")),
            }
            for gain in GAINS
        },
        "improvement": {
            "without": _tested(study, "improvement", level),
            "with": _tested(study, "improvement_routed", level),
        },
        "together": _tested(study, "together", level),
        "interaction": {
            **_tested(study, "interaction", level),
            "inner": interval(main, inner),
            "inner_level": inner,
            "sd": spread[0],
            "sd_low": spread[1],
            "sd_high": spread[2],
            **_scales(study, losses, design, records, match, level),
            "blocked": test(study.blocked["interaction"], level)
            if study.blocked and main.n > 1
            else None,
            "equal_variances_p": study.equal_variances,
            "sign_flip_floor": sign_flip_floor(main.n) if study.per_seed and main.n > 1 else None,
        },
        "ratio": {
            "point": study.ratio.point,
            "low": study.ratio.low,
            "high": study.ratio.high,
            "kind": str(study.ratio.kind),
        },
        "correlation": dict(
            zip(("mean", "low", "high"), correlation(np.log(part.loss), level), strict=True)
        )
        if design.paired
        else None,
        "reading": str(study.verdict.reading) if np.isfinite(main.se) else "withheld",
        "reaches_alone": {
            "improvement": bool(study.verdict.backbone_alone),
            "route": bool(study.verdict.route_alone),
        },
        "better_alone": {
            "improvement": bool(study.verdict.backbone_better),
            "route": bool(study.verdict.route_better),
        },
        "pilot": bool(study.verdict.pilot),
        "detectable": detectable(float(spread[0]), main.n, alpha=design.alpha),
        "further_seeds": further_seeds(spread[0], main.n, design),
        "floors_refused": [floor for floor in design.floors if floor >= lowest],
    }


def _scales(
    study: Study,
    losses: Table,
    design: Design,
    records: Sequence[Record],
    match: str,
    level: float,
) -> dict[str, Any]:
    """The interaction on every scale that can be computed, and whether its sign depends on the
    scale.
    """
    scales = {"ln loss": study.log["interaction"], "absolute": study.absolute["interaction"]}
    for floor, found in study.excess.items():
        scales[f"log excess over E = {floor:g}"] = found["interaction"]
    kinds = 2 + bool(study.excess)
    printed = {}
    if match == "tokens":
        # a multiplier compares costs itself, so it belongs to the runs as they are
        _, compute = multipliers.of_square(losses, design, records, "train_flops")
        if compute is not None and compute["enough_budgets"]:
            scales["ln compute multiplier"] = compute["estimate"]
            kinds += 1
        elif compute is not None:
            printed["ln compute multiplier (two budgets)"] = interval(compute["estimate"], level)
    finite = [e for e in scales.values() if np.isfinite(e.point)]
    return {
        "scales": {**{name: interval(e, level) for name, e in scales.items()}, **printed},
        "scale_dependent": signs_disagree(finite, level),
        "all_scales": kinds == 4 and all(bool(e.interval(level)[0] > 0) for e in finite),
    }


def _tested(study: Study, name: str, level: float) -> dict[str, Any]:
    return test(
        study.log[name],
        level,
        p_sign_flip=study.sign_flip.get(name),
        per_seed=study.per_seed.get(name),
    )


def further_seeds(deviation: Any, n: int, design: Design) -> int | None:
    """How many more seeds would show an effect of the margin's size with 80% chance."""
    # two seeds give a deviation that may be 30 times too small
    if n < 3 or not np.isfinite(deviation) or deviation <= 0:
        return None
    needed = seeds_needed(design.margin, float(deviation), alpha=design.alpha)
    return None if needed is None else max(0, needed - n)


def _sensitivity(
    records: Sequence[Record], design: Design, square: Square
) -> dict[str, Any] | None:
    """The same square with diverged runs scored at their last finite loss."""
    lost = [r for r in records if r.status == "diverged" and r.cell in square.cells]
    if not lost:
        return None
    level = 1 - design.alpha
    study = analyse(table(records, design, failed="last"), square, design.margin, design.alpha)
    return {
        "n": study.log["interaction"].n,
        "unscored": 0
        if design.vocabulary
        else sum(not np.isfinite(r.last_finite_loss) for r in lost),
        "interaction": interval(study.log["interaction"], level),
        "gains": {
            square.base: interval(study.log["gain_base"], level),
            square.improved: interval(study.log["gain_improved"], level),
        },
        "reading": str(study.verdict.reading)
        if np.isfinite(study.log["interaction"].se)
        else "withheld",
    }
