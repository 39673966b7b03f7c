"""The declared 2x2 of a task's accuracies: as run, at matched training FLOPs, with other cells in
the place of some, against budget, and in the last training pass. All are plain differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lrt_lab.analysis.square import Square
from lrt_lab.analysis.table import Table
from lrt_lab.report import squares
from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import count, interval
from lrt_lab.report.protocol_tables import budgeted, effects, exposed, head
from lrt_lab.report.records import BUDGETS, Design

Results = Mapping[str, Any]
OWN = "as run"
FLOPS = BUDGETS["train_flops"]


def more(share: np.ndarray) -> np.ndarray:
    """The scale of what should be large: contrasts are written for what should be small."""
    return -share


def measured(
    shares: Table, design: Design, last: Callable[[str], np.ndarray | None]
) -> dict[str, Any] | None:
    """Both gains and the interaction of every square; None where no 2x2 is declared.

    Args:
        shares: the accuracy that the suite compares, by cell and seed.
        design: the squares.
        last: a cell's accuracies in the last training pass, one per seed; None where there are
            none.
    """
    square, level = design.square, 1 - design.alpha
    if square is None:
        return None
    named = {OWN: square, FLOPS: design.matched(square, "train_flops")}
    rows = [
        {"name": name, **squares.effects(shares, one, level, more)}
        for name, one in named.items()
        if isinstance(one, Square)
    ]
    return {
        "base": square.base,
        "improved": square.improved,
        "none": square.none,
        "route": square.route,
        "cells": list(square.cells),
        "squares": [*rows, *squares.others(shares, design, more)],
        "ladder": squares.ladder(shares, design, more),
        "exposure": squares.exposure(shares, design, last, more),
    }


def verdict(found: Mapping[str, Any]) -> str:
    """What the square says at equal training FLOPs, or that it says nothing."""
    row = next((row for row in found["squares"] if row["name"] == FLOPS), None)
    if row is None:
        return "Nothing here is a statement at equal training FLOPs: no cell was trained so."
    gain = f"{found['route']} on"
    return (
        f"At {FLOPS}, without correction: {gain} {found['base']} {interval(row['gain_base'])}, "
        f"{gain} {found['improved']} {interval(row['gain_improved'])}, interaction "
        f"{interval(row['interaction'])}."
    )


def section(results: Results) -> list[str]:
    """The squares, the budgets and what decoding loses."""
    found = results["accuracy"]["square"]
    if not found:
        return []
    own = found["cells"]
    rows = [[row["name"], *effects(row), count(row["n"])] for row in found["squares"]]
    changed = [
        f"- {row['name']}: " + ", ".join(f"`{cell}`" for cell in row["cells"] if cell not in own)
        for row in found["squares"]
        if row["name"] != OWN
    ]
    parts = [
        "### The square, and with other cells",
        "Gains, and the interaction I, which is their difference; uncorrected intervals.",
        grid([*head(results, found, "square"), "n"], rows),
        "\n".join(changed),
    ]
    if found["ladder"]:
        columns = head(results, found, "budget")
        parts += ["### Against budget", grid(columns, budgeted(found["ladder"]))]
    if found["exposure"]:
        parts += [
            "### Last training pass and exact recurrence",
            "gain(exact) = gain(last training pass) - exposure gap, the gap being the routed "
            "cell's accuracy in the last training pass minus that of the exact recurrence.",
            grid(head(results, found, "evaluation"), exposed(found["exposure"])),
        ]
    return parts
