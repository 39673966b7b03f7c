"""Models of a table against their baselines: costs read off runs, crossings, equal use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lrt_lab.analysis.scaling import (
    Crossing,
    Deployment,
    Draws,
    Runs,
    crossing,
    equal_use,
    measured,
    proportional,
    timed,
)
from lrt_lab.report.scaling.question import Question
from lrt_lab.report.scaling.table import PRICES, Table


def crossings(
    table: Table,
    given: Runs,
    costs: Mapping[str, np.ndarray],
    draws: Draws,
    target: float,
    asked: Question,
) -> list[dict[str, Any]]:
    """Every comparison, in every unit that the table prices, at every ratio."""
    found = []
    for unit, needed in PRICES.items():
        if unit != "FLOPs" and not all(name in costs for name in needed):
            continue
        for model, baseline in table.pairs:
            base, other = (
                deployments(table, given, costs, unit, one, asked.prefill_passes)
                for one in (baseline, model)
            )
            names = table.models[baseline], table.models[model]
            for ratio in asked.ratios:
                answer = crossing(
                    draws,
                    base[0],
                    other,
                    target,
                    ratio=ratio,
                    window=asked.window,
                    level=asked.level,
                )
                found.append(_crossing(answer, unit, *names, other, costs))
    return found


def equal_uses(
    table: Table,
    given: Runs,
    costs: Mapping[str, np.ndarray],
    draws: Draws,
    asked: Question,
) -> list[dict[str, Any]]:
    """Every comparison at equal decode FLOPs, for as much training as the largest run of the
    baseline had.
    """
    found = []
    for model, baseline in table.pairs:
        base, other = (
            deployments(table, given, costs, "FLOPs", one, asked.prefill_passes)
            for one in (baseline, model)
        )
        mine = given.model == baseline
        sizes = np.geomspace(given.size[mine].min(), given.size[mine].max(), 5)
        training = float(given.compute[mine].max())
        answer = equal_use(
            draws, base[0], other, base[0].decode(sizes), training, level=asked.level
        )
        names = {"model": table.models[model], "baseline": table.models[baseline]}
        found.append({**names, "training": training, **vars(answer)})
    return found


def deployments(
    table: Table,
    given: Runs,
    costs: Mapping[str, np.ndarray],
    unit: str,
    model: int,
    prefill_passes: float | None,
) -> list[Deployment]:
    """A model at each number of passes that it was trained with, its prices read off its runs."""
    train, prefill, decode = PRICES[unit]
    through = timed if unit == "seconds" else measured
    found = []
    for passes in np.unique(given.passes[given.model == model]):
        mine = (given.model == model) & (given.passes == passes)
        size = given.size[mine]
        over = passes if prefill_passes is None else min(passes, prefill_passes)
        spent = given.compute if unit == "FLOPs" else costs[train]
        use = {
            "prefill": through(size, costs[prefill][mine]) if prefill in costs else None,
            "decode": through(size, costs[decode][mine]) if decode in costs else None,
        }
        deployed = Deployment(
            name=f"{table.models[model]}, K = {passes:g}",
            model=model,
            passes=float(passes),
            recurrent=float(given.recurrent[mine][np.argmax(size)]),
            train=through(size, spent[mine] / given.tokens[mine]),
            prefill=use["prefill"] or proportional(2 * over),
            decode=use["decode"] or proportional(2),
            prefill_passes=float(over),
        )
        if "decode_bytes" in costs:
            deployed = replace(deployed, moved=measured(size, costs["decode_bytes"][mine]))
        found.append(deployed)
    return found


def _crossing(
    answer: Crossing,
    unit: str,
    baseline: str,
    model: str,
    used: Sequence[Deployment],
    costs: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    values = dict(vars(answer))
    # infinity is an answer here, and JSON has none
    for name in ("point", "low", "high"):
        values[name] = "none" if values[name] == np.inf else values[name]
    return {
        "unit": unit,
        "baseline": baseline,
        "model": model,
        "passes": [d.passes for d in used],
        "prefill_passes": [d.prefill_passes for d in used],
        "prefill_measured": PRICES[unit][1] in costs,
        "decode_measured": PRICES[unit][2] in costs,
        **values,
    }
