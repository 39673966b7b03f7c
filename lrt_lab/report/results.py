"""Every number of a report, as one JSON-ready value. The Markdown is a function of it and of
nothing else.

What a clock measured lies under `wall_clock` alone, so that everything else can be compared for
equality between two executions of one suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lrt_lab.report import (
    accuracy,
    arms,
    carried,
    cells,
    comparisons,
    groups,
    multipliers,
    protocol,
    squares,
    sweep,
)
from lrt_lab.report.budgets import budgets
from lrt_lab.report.curves import Curve
from lrt_lab.report.records import Design, Record, table
from lrt_lab.report.registration import registration
from lrt_lab.report.values import clean

SCHEMA = "lrt-lab results 1"
# read off a clock, so different in every execution
CLOCKED = "train_seconds"


def summarise(
    design: Design, records: Sequence[Record], curves: Sequence[Curve] = ()
) -> dict[str, Any]:
    """The report's numbers from its design and records."""
    measured = accuracy.measured(design, records)
    if design.metric != "loss":
        # Effects are then differences in accuracy alone.
        design = replace(
            design, square=None, baseline=None, family=(), contrasts={}, sweep=None, groups={}
        )
    losses = table(records, design)
    matched = budgets(losses, design, records)
    found = {
        cost: multipliers.of_square(losses, design, records, cost)[0]
        for cost in multipliers.COSTS
        if design.square is not None
    }
    if design.square is None and design.baseline is not None:
        found = {
            cost: {
                c.name: multipliers.described(
                    multipliers.against(losses, design, records, design.baseline, c.name, cost)
                )
                for c in comparisons.variants(design)
            }
            for cost in multipliers.COSTS
        }
    family = comparisons.family(losses, design)
    return clean(
        {
            "schema": SCHEMA,
            "suite": _suite(design),
            "square": _square(design),
            "registration": registration(design, records, losses),
            "evaluation": cells.evaluation(records),
            "cells": [cells.cell(name, design, records) for name in design.cells],
            "noise": cells.noise(design, records),
            "budgets": {match: value for match, value in matched.items() if match != CLOCKED},
            "multipliers": {cost: value for cost, value in found.items() if cost != CLOCKED},
            "arms": arms.measured(losses, design, records, family),
            "family": family,
            "contrasts": comparisons.own(losses, design),
            "pairs": comparisons.factorial(losses, design),
            "sweep": sweep.best(losses, design, curves),
            "groups": groups.grouped(losses, design, records),
            "rates": protocol.rates(design, arms.primary(design)),
            "squares": squares.others(losses, design),
            "ladder": squares.ladder(losses, design),
            "exposure": squares.exposure(
                losses, design, partial(squares.last_losses, losses, records)
            ),
            "ports": protocol.ports(design, records),
            "carried": carried.measured(design, records),
            "accuracy": measured,
            "passes": cells.passes(design, records),
            "positions": cells.positions(design, records),
            "curves": [_curve(curve) for curve in curves],
            "wall_clock": {
                "cells": [cells.clock(name, records) for name in design.cells],
                "budgets": {match: value for match, value in matched.items() if match == CLOCKED},
                "multipliers": {cost: value for cost, value in found.items() if cost == CLOCKED},
                "curves": [{"cell": c.cell, "seconds": c.x["seconds"]} for c in curves],
            },
        }
    )


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
        "seeded": design.seeded,
        "baseline": design.baseline,
        "cost_names": dict(design.cost_names),
        "positions": dict(design.positions) or None,
        **({"matched": to} if (to := design.source.get("matched")) else {}),
    }


def _square(design: Design) -> dict[str, Any] | None:
    square = design.square
    if square is None:
        return None
    return {
        "base": square.base,
        "improved": square.improved,
        "none": square.none,
        "route": square.route,
        "cells": list(square.cells),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    mean, low, high = curve.band()
    return {
        "cell": curve.cell,
        "series": curve.series,
        "tokens": curve.x["tokens"],
        "flops": curve.x["flops"],
        "mean": mean,
        "low": low,
        "high": high,
        "n": len(curve.loss),
    }
