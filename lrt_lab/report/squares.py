"""The primary 2x2 again, with other cells in the place of some: declared substitutions, the default
learning rate, budgets, and the last training pass instead of the exact recurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lrt_lab.analysis.contrasts import Contrast, evaluate, of_square
from lrt_lab.analysis.square import Scale, Square, log
from lrt_lab.analysis.table import Table
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import interval

EFFECTS = ("gain_base", "gain_improved", "interaction")
#: What a cell's losses of the last training pass are called in an extended table.
LAST = "{} (last pass)"
DEFAULT = "default learning rate"


def effects(losses: Table, square: Square, level: float, scale: Scale = log) -> dict[str, Any]:
    """Both gains and the interaction of a square, each with its interval."""
    known = of_square(square)
    found = {name: evaluate(losses, known[name], scale).estimate for name in EFFECTS}
    return {
        "cells": list(square.cells),
        "n": found["interaction"].n,
        **{name: interval(estimate, level) for name, estimate in found.items()},
    }


def others(losses: Table, design: Design, scale: Scale = log) -> list[dict[str, Any]]:
    """Every further square of the plan, and the one at the default learning rate."""
    square = design.square
    if square is None:
        return []
    named = {name: dict(cells) for name, cells in design.squares.items()}
    default = {cell: design.defaults[cell] for cell in square.cells if cell in design.defaults}
    if default:
        named[DEFAULT] = default
    level = 1 - design.alpha
    return [
        {"name": name, **effects(losses, square.with_cells(cells), level, scale)}
        for name, cells in named.items()
    ]


def ladder(losses: Table, design: Design, scale: Scale = log) -> dict[str, Any] | None:
    """The square at every budget that all four cells have, and how its effects move with budget.

    A slope is that of the least-squares line over ln budget, seed by seed; at equal tokens, and at
    equal training FLOPs where twins were trained for the routed cells. None with one budget.
    """
    square = design.square
    if square is None:
        return None
    rungs = {1.0: square} | {
        times: square.with_cells(dict(cells))
        for times, cells in sorted(design.rungs.items())
        if set(square.cells) <= set(cells)
    }
    if len(rungs) < 2:
        return None
    matched = {times: _twinned(design, square, rung) for times, rung in rungs.items()}
    kinds: dict[str, dict[float, Square]] = {"tokens": rungs}
    if all(matched.values()):
        kinds["train_flops"] = {times: rung for times, rung in matched.items() if rung}
    level = 1 - design.alpha
    return {
        kind: {
            "budgets": [
                {"times": times, **effects(losses, rung, level, scale)}
                for times, rung in found.items()
            ],
            "slope": {
                effect: interval(evaluate(losses, _slope(found, effect), scale).estimate, level)
                for effect in EFFECTS
            },
        }
        for kind, found in kinds.items()
    }


def _twinned(design: Design, square: Square, rung: Square) -> Square | None:
    """The square at a budget, its no-route cells replaced by twins with the routed cells' FLOPs."""
    stand_ins = {}
    for place in (0, 2):
        found = [
            twin.cell
            for twin in design.twins
            if twin.match == "train_flops"
            and (twin.of, twin.as_) == (square.cells[place], rung.cells[place + 1])
        ]
        if not found:
            return None
        stand_ins[rung.cells[place]] = found[0]
    return rung.with_cells(stand_ins)


def _slope(rungs: Mapping[float, Square], effect: str) -> Contrast:
    """The contrast that is the slope of an effect over ln budget."""
    x = np.log(list(rungs))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    total: dict[str, float] = {}
    for weight, square in zip(weights, rungs.values(), strict=True):
        for cell, own in of_square(square)[effect].weights.items():
            total[cell] = total.get(cell, 0.0) + float(weight) * own
    return Contrast(f"slope of {effect}", total)


def exposure(
    losses: Table,
    design: Design,
    last: Callable[[str], np.ndarray | None],
    scale: Scale = log,
) -> list[dict[str, Any]]:
    """gain(exact) = gain(last training pass) - exposure gap, by backbone and for the interaction.

    The gap is ln L(exact) - ln L(last pass) of the routed cell: what decoding loses to what
    training saw. Empty where runs record only one of the two.

    Args:
        losses: of the exact recurrence.
        design: the squares.
        last: a cell's losses of the last training pass, one per seed; None where there are none.
        scale: what differences are taken of.
    """
    square, level = design.square, 1 - design.alpha
    if square is None or design.outcome != "exact":
        return []
    found = []
    named: dict[str, Square] = {square.route: square}
    named |= {name: square.with_cells(dict(cells)) for name, cells in design.squares.items()}
    for name, one in named.items():
        extended = losses
        for cell in (one.cells[1], one.cells[3]):
            row = last(cell)
            if row is None:
                break
            extended = replace(
                extended,
                cells=(*extended.cells, LAST.format(cell)),
                loss=np.concatenate([extended.loss, row[None, :]], axis=-2),
            )
        else:
            at_last = one.with_cells({c: LAST.format(c) for c in (one.cells[1], one.cells[3])})
            p1, a1 = one.cells[1], one.cells[3]
            gaps = {
                "gain_base": {p1: 1.0, LAST.format(p1): -1.0},
                "gain_improved": {a1: 1.0, LAST.format(a1): -1.0},
            }
            both = {**gaps["gain_improved"], **{c: -w for c, w in gaps["gain_base"].items()}}
            gaps["interaction"] = both
            found.append(
                {
                    "name": name,
                    "exact": effects(extended, one, level, scale),
                    "last_pass": effects(extended, at_last, level, scale),
                    "gap": {
                        effect: interval(
                            evaluate(extended, Contrast(f"gap of {effect}", gap), scale).estimate,
                            level,
                        )
                        for effect, gap in gaps.items()
                    },
                }
            )
    return found


def last_losses(losses: Table, records: Sequence[Record], cell: str) -> np.ndarray | None:
    """A cell's losses of the last training pass, one per seed; None where none is recorded."""
    row = np.full(len(losses.seeds), np.nan)
    for record in records:
        if record.cell == cell and record.status == "finished" and record.seed in losses.seeds:
            last = ((record.final.get("test") or {}).get("last_pass") or {}).get("loss")
            if last is not None and np.ndim(last) == 0:
                row[losses.seeds.index(record.seed)] = last
    return row if np.isfinite(row).any() else None
