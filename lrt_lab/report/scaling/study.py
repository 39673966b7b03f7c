"""Every number of a scaling report, as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import (
    MOST_EPOCHS,
    PASSES,
    Candidate,
    Draws,
    Law,
    Runs,
    admit,
    candidate,
    choose,
    correlations,
    interaction_law,
    largest,
    law,
    nested_p,
    outliers,
    profile,
    resample,
    separate,
    told_apart,
)
from lrt_lab.errors import UserError
from lrt_lab.report.scaling import comparisons, pictures
from lrt_lab.report.scaling.question import Interactions, Question
from lrt_lab.report.scaling.table import Table
from lrt_lab.report.values import clean, interval

PROFILED = 21
# for a law of passes the number that is reported whatever law is chosen
REPORTED = "iso-recurrence"


def summarise(table: Table, asked: Question, title: str) -> dict[str, Any]:
    """Fit, choose, resample, cross."""
    admitted = admit(table.runs, asked.repeated)
    entering = np.setdiff1d(np.arange(len(table.runs)), admitted.refused)
    costs = {name: values[entering] for name, values in table.costs.items()}
    given, models = admitted.runs, len(table.models)
    candidates = [
        candidate(found, given) for found in laws(given, models, asked, admitted.repetition)
    ]
    best = choose(candidates)
    assert best.fit is not None
    draws = resample(best.fit, generator(asked.seed, "scaling bootstrap"), asked.resamples)
    apart = _apart(best, given, models, admitted.repetition)
    target = asked.target or _target(best, given)
    found = {
        "title": title,
        "preface": asked.preface,
        "level": asked.level,
        "models": table.models,
        "runs": _runs(table, given, admitted.said, admitted.refused),
        "law": _law(best, draws, asked.level),
        "candidates": [_candidate(c, candidates, best) for c in (*candidates, *apart)],
        "held_out_runs": int(largest(given).sum()),
        "nested_p": [nested_p(best, c, len(given)) for c in apart if not c.refused],
        "phi": _phi(candidates, best, draws, asked),
        "profile": _profile(best),
        "target": target,
        "prefill_passes": asked.prefill_passes,
        "crossings": comparisons.crossings(table, given, costs, draws, target, asked),
        "interaction": interaction(asked.interactions, asked.level),
        "equal_use": comparisons.equal_uses(table, given, costs, draws, asked),
        "points": pictures.points(best.fit, given),
        "isoflop": pictures.isoflop(best.fit, given),
        "passes": pictures.passes(best.fit, given),
        "settings": {"resamples": asked.resamples, "seed": asked.seed, "window": asked.window},
    }
    return clean(found)


def laws(given: Runs, models: int, asked: Question, repetition: bool) -> list[Law]:
    """The laws that the table can be asked about."""
    varied = len(np.unique(given.passes)) > 1
    if asked.law is not None and asked.law not in PASSES:
        raise UserError(f"--law is one of {', '.join(PASSES)}, not {asked.law!r}")
    names = [asked.law] if asked.law is not None else list(PASSES) if varied else ["none"]
    found = [law(name, 1, repetition) for name in names]
    if models > 1 and told_apart(given):
        for kinds in ("size", "size data"):
            found += [law(name, models, repetition, kinds) for name in names]
    return found


def _target(best: Candidate, given: Runs) -> float:
    """What the law gives the baseline's run of middle compute: from there much use may pull both
    models to other sizes and more data without leaving all runs far behind.
    """
    assert best.fit is not None
    base = np.flatnonzero(given.model == 0)
    at = base[np.argsort(given.compute[base], kind="stable")[len(base) // 2]]
    return float(np.exp(best.fit.log_loss(given.take(np.array([at])))[0]))


def _runs(table: Table, given: Runs, said: str, refused: np.ndarray) -> dict[str, Any]:
    ratio = given.tokens / given.size
    return {
        "all": len(table.runs),
        "fitted": len(given),
        "cells": len(np.unique(given.cell)),
        "dropped": table.dropped,
        "refused": len(refused),
        "epochs": said,
        "most_epochs": MOST_EPOCHS,
        "sizes": [given.size.min(), given.size.max(), len(np.unique(given.size))],
        "tokens": [given.tokens.min(), given.tokens.max()],
        "ratios": [ratio.min(), ratio.max()],
        "compute": [given.compute.min(), given.compute.max()],
        "passes": np.unique(given.passes),
    }


def _law(best: Candidate, draws: Draws, level: float) -> dict[str, Any]:
    found = best.fit
    assert found is not None
    low, high = draws.interval(draws.natural, level)
    spread = np.full(len(found.law), np.nan)
    if len(draws.theta) > 1:
        spread = draws.natural.std(axis=0, ddof=1)
    late = outliers(found)
    return {
        "name": found.law.name,
        "parameters": [
            {"name": name, "point": point, "low": low[i], "high": high[i], "se": se}
            for i, ((name, point), se) in enumerate(zip(found.natural.items(), spread, strict=True))
        ],
        "objective": found.objective,
        "delta": found.delta,
        "rms": float(np.sqrt((found.residuals**2).mean())),
        "starts": found.starts,
        "agreeing": found.agreeing,
        "gradient": found.gradient,
        "condition": found.condition,
        "flags": found.flags,
        "correlations": {
            "A alpha": correlations(found)[0, 3],
            "B beta": correlations(found)[1, 4],
        },
        "failed": draws.failed,
        "stratified": draws.stratified,
        "outliers": [
            {
                "size": found.runs.size[i],
                "tokens": found.runs.tokens[i],
                "loss": found.runs.loss[i],
                "residual": found.residuals[i],
            }
            for i in late
        ],
    }


def _apart(best: Candidate, given: Runs, models: int, repetition: bool) -> list[Candidate]:
    """The chosen law for every model by itself, without multipliers."""
    assert best.fit is not None
    if models == 1:
        return []
    chosen = next((n for n in PASSES if best.fit.law.name.startswith(n)), "none")
    counted = [len(np.unique(given.passes[given.model == m])) for m in range(models)]
    own = [law(chosen if count > 1 else "none", 1, repetition) for count in counted]
    return [separate(own, given)]


def _candidate(c: Candidate, all_of: Sequence[Candidate], best: Candidate) -> dict[str, Any]:
    least = min(other.aicc for other in all_of if other.fit is not None)
    return {
        "name": c.name,
        "parameters": c.parameters,
        "held_out": c.held_out,
        "bias": c.bias,
        "delta_aicc": c.aicc - least,
        "chosen": c is best,
        "flags": c.fit.flags if c.fit else (),
        "refused": c.refused,
    }


def _phi(
    candidates: Sequence[Candidate], best: Candidate, draws: Draws, asked: Question
) -> dict[str, Any] | None:
    """phi of the iso-recurrence law, the chosen one's or the smallest one's that has it."""
    have = [c for c in candidates if c.fit is not None and "phi" in c.fit.law.names]
    if not have:
        return None
    used = best if best in have else min(have, key=lambda c: c.held_out)
    assert used.fit is not None
    if used is not best:
        draws = resample(used.fit, generator(asked.seed, "phi"), asked.resamples)
    at = used.fit.law.names.index("phi")
    low, high = draws.interval(draws.natural[:, at], asked.level)
    return {
        "law": used.name,
        "point": used.fit.natural["phi"],
        "low": low,
        "high": high,
        "flags": used.fit.flags,
    }


def interaction(found: Interactions | None, level: float) -> dict[str, Any] | None:
    """The law of the interaction in size and data, with what it was fitted to."""
    if found is None:
        return None
    said = {
        "base": found.base,
        "improved": found.improved,
        "passes": np.unique(found.passes),
        "n": len(found.values),
        "entries": {"size": found.size, "tokens": found.tokens, "value": found.values},
    }
    try:
        fitted = interaction_law(found.size, found.tokens, found.values)
    except UserError as error:
        return {**said, "refused": str(error)}
    slopes = {"by_size": fitted.by_size, "by_data": fitted.by_data}
    return {
        **said,
        "size": fitted.size,
        "tokens": fitted.tokens,
        "middle": interval(fitted.middle, level),
        **{k: None if s is None else interval(s, level) for k, s in slopes.items()},
        "vanishes": fitted.vanishes,
        "df": fitted.middle.df,
    }


def _profile(best: Candidate) -> dict[str, Any]:
    """The objective along the parameter that matters most: the effects' first, or alpha."""
    found = best.fit
    assert found is not None
    name = found.law.names[5] if len(found.law) > 5 else "alpha"
    at = found.law.names.index(name)
    lowest, highest = found.law.limits()[:, at]
    reach = max(0.3 * abs(found.theta[at]), 0.1)
    values = np.linspace(
        max(found.theta[at] - reach, lowest), min(found.theta[at] + reach, highest), PROFILED
    )
    logs = {p.name for p in found.law.parameters if p.log}
    return {
        "name": name,
        "values": np.exp(values) if name in logs else values,
        "objective": profile(found, name, values) / found.objective,
    }
