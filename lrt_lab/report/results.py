"""Every number of a report, as one JSON-ready value. The Markdown is a function of it and of
nothing else.

What a clock measured lies under `wall_clock` alone, so that everything else can be compared for
equality between two executions of one suite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.analysis.estimate import Estimate
from lrt_lab.analysis.power import seeds_needed
from lrt_lab.analysis.signflip import floor as sign_flip_floor
from lrt_lab.analysis.spread import correlation, rate, sd
from lrt_lab.analysis.square import Square, signs_disagree
from lrt_lab.analysis.study import GAINS, Study, analyse
from lrt_lab.analysis.table import Table
from lrt_lab.report.curves import Curve
from lrt_lab.report.records import BUDGETS, Design, Record, table

SCHEMA = "lrt-lab results 1"


def clean(value: Any) -> Any:
    """Plain JSON values: numpy scalars and arrays unpacked, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return clean(value.tolist())
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, np.generic):
        return clean(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def summarise(
    design: Design, records: Sequence[Record], curves: Sequence[Curve] = ()
) -> dict[str, Any]:
    """The report's numbers from its design and records."""
    losses = table(records, design)
    budgets = {}
    if design.square is not None:
        for match in BUDGETS:
            square = _matched(design, match)
            if square is not None:
                budgets[match] = _budget(losses, square, design, records)
    result = {
        "schema": SCHEMA,
        "suite": _suite(design),
        "square": None if design.square is None else _square(design.square),
        "registration": _registration(design, records, losses),
        "evaluation": _evaluation(records),
        "cells": [_cell(name, design, records) for name in design.cells],
        "budgets": {match: value for match, value in budgets.items() if match != "train_seconds"},
        "passes": _passes(design, records),
        "missing": [
            {"cell": r.cell, "seed": r.seed, "status": r.status}
            for r in records
            if r.status not in ("finished", "diverged")
        ],
        "curves": [_curve(curve, ("tokens", "flops")) for curve in curves],
        "wall_clock": {
            "cells": [_clock(name, records) for name in design.cells],
            "budgets": {
                match: value for match, value in budgets.items() if match == "train_seconds"
            },
            "curves": [{"cell": curve.cell, "seconds": curve.x["seconds"]} for curve in curves],
        },
    }
    return clean(result)


def _matched(design: Design, match: str) -> Square | None:
    if match == "tokens":
        return design.square
    substitutes = design.substitutes(match)
    return design.square.with_cells(substitutes) if substitutes and design.square else None


def _suite(design: Design) -> dict[str, Any]:
    return {
        "name": design.name,
        "title": design.title,
        "hypothesis": design.hypothesis,
        "prediction": design.prediction,
        "scale": design.scale,
        "axes": {axis: list(values) for axis, values in design.axes.items()},
        "outcome": design.outcome,
        "primary": design.primary,
        "family": list(design.family),
        "margin": design.margin,
        "alpha": design.alpha,
        "floors": list(design.floors),
        "paired": design.paired,
    }


def _square(square: Square) -> dict[str, Any]:
    return {
        "base": square.base,
        "improved": square.improved,
        "none": square.none,
        "route": square.route,
        "cells": list(square.cells),
    }


def _registration(design: Design, records: Sequence[Record], losses: Table) -> dict[str, Any]:
    plan = design.source
    done = [r for r in records if r.status in ("finished", "diverged")]
    hashes = Counter(r.meta.get("suite_hash") for r in done if r.meta.get("suite_hash"))
    commits = Counter(
        (str((r.meta.get("git") or {}).get("commit")), bool((r.meta.get("git") or {}).get("dirty")))
        for r in done
        if r.meta
    )
    versions = Counter(
        tuple(sorted((r.meta.get("versions") or {}).items())) for r in done if r.meta
    )
    complete = (
        losses.select(design.square.cells).blocks().seeds if design.square and design.paired else ()
    )
    current = plan.get("suite_hash")
    return {
        "suite_file": plan.get("suite_file"),
        "suite_hash": current,
        "frozen": plan.get("frozen"),
        "other_suite_hashes": sorted(h for h in hashes if h != current),
        "changed_after_runs": any(h != current for h in hashes),
        "planned_seeds": design.planned_seeds,
        "seeds": list(design.seeds),
        "complete_seeds": list(complete),
        "runs": {
            "planned": len(records),
            "finished": sum(r.status == "finished" for r in records),
            "diverged": sum(r.status == "diverged" for r in records),
            "missing": len(records) - len(done),
        },
        "commits": [{"commit": c, "dirty": d, "runs": n} for (c, d), n in sorted(commits.items())],
        "versions": [{"versions": dict(v), "runs": n} for v, n in sorted(versions.items())],
        "data": _unique(r.meta.get("data") for r in done),
        "machines": _unique(r.meta.get("machine") for r in done),
    }


def _unique(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value is not None and value not in found:
            found.append(value)
    return sorted(found, key=str)


def _evaluation(records: Sequence[Record]) -> list[dict[str, Any]]:
    slices = Counter()
    for r in records:
        test = r.final.get("test") if r.final else None
        if test:
            slices[(test.get("bytes"), test.get("tokens"), test.get("sha256"))] += 1
    return [
        {"bytes": b, "tokens": t, "sha256": h, "runs": n}
        for (b, t, h), n in sorted(slices.items(), key=str)
    ]


def _cell(name: str, design: Design, records: Sequence[Record]) -> dict[str, Any]:
    runs = [r for r in records if r.cell == name]
    done = [r for r in runs if r.status == "finished"]
    diverged = sum(r.status == "diverged" for r in runs)
    losses, bpb = np.array([r.loss for r in done], float), np.array([r.bpb for r in done], float)
    twin = next((t for t in design.twins if t.cell == name), None)
    share, low, high = rate(diverged, len(done) + diverged)
    return {
        "cell": name,
        "axes": dict(design.cells[name]),
        "twin": None if twin is None else {"of": twin.of, "as": twin.as_, "match": twin.match},
        "planned": len(runs),
        "n": len(done),
        "seeds": [r.seed for r in done],
        "loss": _spread(losses),
        "bpb": _spread(bpb),
        "parameters": _one(r.parameters for r in runs),
        "tokens": _one(r.tokens for r in done),
        "train_flops": _one(r.train_flops for r in done),
        "divergence": {
            "runs": diverged,
            "of": len(done) + diverged,
            "rate": share,
            "low": low,
            "high": high,
        },
    }


def _clock(name: str, records: Sequence[Record]) -> dict[str, Any]:
    done = [r for r in records if r.cell == name and r.status == "finished"]
    return {
        "cell": name,
        "tokens_per_second": _mean(r.tokens_per_second for r in done),
        "train_seconds": _mean(r.train_seconds for r in done),
        "eval_seconds": _mean(r.eval_seconds for r in done),
    }


def _spread(values: np.ndarray) -> dict[str, Any]:
    if not len(values):
        return {"mean": None, "sd": None, "sd_low": None, "sd_high": None, "values": []}
    point, low, high = sd(values)
    return {"mean": values.mean(), "sd": point, "sd_low": low, "sd_high": high, "values": values}


def _mean(values: Any) -> float | None:
    found = [v for v in values if v is not None and math.isfinite(v)]
    return sum(found) / len(found) if found else None


def _one(values: Any) -> float | None:
    found = [v for v in values if v is not None and math.isfinite(v)]
    return _mean(found) if found and min(found) != max(found) else (found[0] if found else None)


def _budget(
    losses: Table, square: Square, design: Design, records: Sequence[Record]
) -> dict[str, Any]:
    study = analyse(losses, square, design.margin, design.alpha, design.floors)
    level = 1 - design.alpha
    scales = {"log": study.log["interaction"], "absolute": study.absolute["interaction"]}
    for floor, found in study.excess.items():
        scales[f"log excess over {floor:g}"] = found["interaction"]
    names = {"gain_base": square.base, "gain_improved": square.improved}
    finite = {name: e for name, e in scales.items() if np.isfinite(e.point)}
    part = losses.select(square.cells).blocks()
    interaction_sd = sd(study.per_seed["interaction"]) if study.per_seed else (np.nan,) * 3
    return {
        "cells": list(square.cells),
        "seeds": list(study.seeds),
        "n": study.log["interaction"].n,
        "gains": {
            names[gain]: {
                "log": _test(study, gain, level),
                "relative": _interval(study.relative[gain], level),
                "absolute": _interval(study.absolute[gain], level),
                "shown": bool(getattr(study.verdict, gain)),
                "p_holm": getattr(
                    study.verdict, "holm_base" if gain == "gain_base" else "holm_improved"
                ),
            }
            for gain in GAINS
        },
        "improvement": {
            "without": _test(study, "improvement", level),
            "with": _test(study, "improvement_routed", level),
        },
        "together": _test(study, "together", level),
        "interaction": {
            **_test(study, "interaction", level),
            "inner": _interval(study.log["interaction"], 1 - 2 * design.alpha),
            "sd": interaction_sd[0],
            "sd_low": interaction_sd[1],
            "sd_high": interaction_sd[2],
            "scales": {name: _interval(estimate, level) for name, estimate in scales.items()},
            "scale_dependent": signs_disagree(finite.values(), level),
            "all_scales": len(finite) > 1
            and all(bool(e.interval(level)[0] > 0) for e in finite.values()),
            "blocked": _interval(study.blocked["interaction"], level) if study.blocked else None,
            "equal_variances_p": study.equal_variances,
            "sign_flip_floor": sign_flip_floor(len(study.seeds))
            if study.per_seed and study.seeds
            else None,
        },
        "ratio": {
            "point": study.ratio.point,
            "low": study.ratio.low,
            "high": study.ratio.high,
            "kind": str(study.ratio.kind),
        },
        "correlation": dict(
            zip(("mean", "low", "high"), correlation(np.log(part.loss)), strict=True)
        )
        if design.paired
        else None,
        "reading": str(study.verdict.reading)
        if np.isfinite(study.log["interaction"].se)
        else "withheld",
        "reaches_alone": {
            "improvement": bool(study.verdict.backbone_alone),
            "route": bool(study.verdict.route_alone),
        },
        "pilot": bool(study.verdict.pilot),
        "further_seeds": _further(interaction_sd[0], study.log["interaction"].n, design),
        "sensitivity": _sensitivity(records, design, square, level),
    }


def _further(interaction_sd: Any, n: int, design: Design) -> int | None:
    if not np.isfinite(interaction_sd) or interaction_sd <= 0:
        return None
    needed = seeds_needed(design.margin, float(interaction_sd), alpha=design.alpha)
    return None if needed is None else max(0, needed - n)


def _sensitivity(
    records: Sequence[Record], design: Design, square: Square, level: float
) -> dict[str, Any] | None:
    if not any(r.status == "diverged" and r.cell in square.cells for r in records):
        return None
    study = analyse(table(records, design, failed="last"), square, design.margin, design.alpha)
    return {
        "n": study.log["interaction"].n,
        "interaction": _interval(study.log["interaction"], level),
        "gains": {
            square.base: _interval(study.log["gain_base"], level),
            square.improved: _interval(study.log["gain_improved"], level),
        },
        "reading": str(study.verdict.reading)
        if np.isfinite(study.log["interaction"].se)
        else "withheld",
    }


def _interval(estimate: Estimate, level: float) -> dict[str, Any]:
    low, high = estimate.interval(level)
    return {"point": estimate.point, "low": low, "high": high}


def _test(study: Study, name: str, level: float) -> dict[str, Any]:
    estimate = study.log[name]
    return {
        **_interval(estimate, level),
        "se": estimate.se,
        "df": estimate.df,
        "p": estimate.p(),
        "p_sign_flip": study.sign_flip.get(name),
        "per_seed": study.per_seed.get(name),
    }


def _passes(design: Design, records: Sequence[Record]) -> list[dict[str, Any]]:
    found = []
    for cell in design.cells:
        curves = [r.curve for r in records if r.cell == cell and r.status == "finished" and r.curve]
        if not curves or any(c["passes"] != curves[0]["passes"] for c in curves):
            continue
        values = np.array([c["bpb"] for c in curves], float)
        found.append(
            {
                "cell": cell,
                "bytes": curves[0].get("bytes"),
                "passes": curves[0]["passes"],
                "bpb": values.mean(axis=0),
                "per_seed": values,
                "exact_bpb": np.mean([c["exact_bpb"] for c in curves]),
                "trained": _mean(
                    r.final.get("passes")
                    for r in records
                    if r.cell == cell and r.status == "finished"
                ),
            }
        )
    return found


def _curve(curve: Curve, axes: Sequence[str]) -> dict[str, Any]:
    mean, low, high = curve.band()
    return {
        "cell": curve.cell,
        "series": curve.series,
        **{axis: curve.x[axis] for axis in axes},
        "mean": mean,
        "low": low,
        "high": high,
        "n": len(curve.loss),
    }
