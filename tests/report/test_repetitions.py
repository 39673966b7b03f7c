"""Cells that are run again, at other budgets or rates or widths, stand in no comparison that is not
about budgets or rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lrt_lab.report.comparisons import all_pairs, variants
from lrt_lab.report.groups import grouped
from lrt_lab.report.multipliers import ladder
from lrt_lab.report.protocol import rates
from lrt_lab.report.records import Design, table
from lrt_lab.report.suite_runs import design_of, record_of
from lrt_lab.report.sweep import best
from tests.report import synthetic

SEEDS = (1, 2, 3)


def entries(
    cell: str, axes: Mapping[str, str], twin: Mapping[str, str] | None = None, **changes: Any
) -> list[dict[str, Any]]:
    return [{**synthetic.item_of(cell, axes, twin, seed), **changes} for seed in SEEDS]


def design(cells: list[dict[str, Any]], **statistics: Any) -> Design:
    plan = synthetic.plan(**statistics)
    return design_of({**plan, "cells": cells})


def arms(*, again: bool) -> list[dict[str, Any]]:
    """A baseline and two variants; the baseline at four budgets and at the default rate too."""
    found = [
        item
        for backbone in ("PreNorm", "MHC", "MUDD")
        for item in entries(backbone, {"backbone": backbone, "route": "none"})
    ]
    if again:
        base = {"backbone": "PreNorm", "route": "none"}
        found += entries("PreNorm@x4", base, times=4.0)
        found += entries("PreNorm@default", base, at_default=True)
        found += entries("MHC@default", {**base, "backbone": "MHC"}, at_default=True)
    return found


@pytest.mark.parametrize("again", [False, True], ids=["plain", "again"])
def test_variants_are_the_other_cells_and_no_repetition(again: bool) -> None:
    ends = {"backbone": {"baseline": "PreNorm", "improved": "MHC"}}
    found = design(arms(again=again), axes=ends, family=[])
    assert [contrast.name for contrast in variants(found)] == ["MHC", "MUDD"]


def test_pairs_are_of_the_product() -> None:
    cells = [item for name, axes in synthetic.CELLS.items() for item in entries(name, axes)]
    for name, axes in synthetic.CELLS.items():
        cells += entries(f"{name}@x2", axes, times=2.0)
    (pair,) = all_pairs(design(cells))
    assert pair.square.cells == tuple(synthetic.CELLS)


def test_words_describe_the_cells_of_the_product() -> None:
    """The repeated cell loses ten times what the route gains: it must not stand in for its own."""
    words = {"LRT": {"retain": "a block", "read": "injection"}}
    cells = [item for name, axes in synthetic.CELLS.items() for item in entries(name, axes)]
    cells += entries("PreNorm+LRT@x2", synthetic.CELLS["PreNorm+LRT"], times=2.0)
    found = design(cells, groups={"axis": "route", "values": words})
    losses = {"PreNorm+LRT@x2": 3.0, "PreNorm+LRT": 1.0}
    records = [
        record_of(
            item,
            found.source,
            {
                "DONE": True,
                "final.json": synthetic.final(item, losses.get(item["cell"], 2.0)),
                "meta.json": {},
            }.get,
        )
        for item in cells
    ]
    grouped_by = grouped(table(records, found), found, records)
    assert grouped_by is not None
    assert grouped_by["rows"][0]["gains"]["PreNorm"]["point"] == pytest.approx(0.6931, abs=1e-4)


def test_a_sweep_chooses_among_the_cells_of_the_product() -> None:
    ends = {"backbone": {"baseline": "PreNorm", "improved": "MHC"}}
    cells = [
        item
        for backbone in ("PreNorm", "MHC")
        for rate in ("x1", "x2")
        for item in entries(
            f"{backbone}+{rate}", {"backbone": backbone, "rate": rate, "route": "none"}
        )
    ]
    own = dict(cells[0]["axes"])
    cells += entries("PreNorm+x1@x4", own, times=4.0)
    found = design(cells, axes=ends, family=[], sweep={"axis": "rate", "default": "x1"})
    records = [
        record_of(
            item,
            found.source,
            {"DONE": True, "final.json": synthetic.final(item, 2.0), "meta.json": {}}.get,
        )
        for item in cells
    ]
    rows = best(table(records, found), found, [])
    assert rows is not None
    assert [row["default"]["cell"] for row in rows["rows"]] == ["PreNorm+x1", "MHC+x1"]


@pytest.mark.parametrize("again", [False, True], ids=["plain", "again"])
def test_a_narrower_twin_is_no_budget_of_its_cell(again: bool) -> None:
    cells = [item for name, axes in synthetic.CELLS.items() for item in entries(name, axes)]
    base = synthetic.CELLS["PreNorm+none"]
    as_ = {"of": "PreNorm+none", "as": "PreNorm+LRT"}
    cells += entries("PreNorm+none@flops", base, {"match": "train_flops", **as_})
    cells += entries("PreNorm+none@wide", base, {"match": "parameters", **as_})
    if again:
        # Of another cell: this one has no declared budgets and keeps all that it was trained at.
        other = synthetic.CELLS["AttentionResiduals+none"]
        cells += entries("AttentionResiduals+none@x2", other, times=2.0)
    assert ladder(design(cells), "PreNorm+none") == ["PreNorm+none", "PreNorm+none@flops"]


def test_a_factor_with_many_digits_finds_its_losses() -> None:
    cells = [item for name, axes in synthetic.CELLS.items() for item in entries(name, axes)]
    third = 1 / 3
    choice = {
        "axes": {},
        "steps": 5,
        "factor": third,
        "inside": False,
        "losses": {f"{third:g}": [2.0], "1": [2.5]},
    }
    tuning = {
        "key": "lr",
        "seeds": [101],
        "outcome": "exact",
        "inputs": "a",
        "cells": {"PreNorm+none": choice},
    }
    found = rates(design_of({**synthetic.plan(), "cells": cells, "tuning": tuning}))
    assert found is not None
    (row,) = found["rows"]
    assert row["best"] == 2.0 and row["factor"] == row["losses"][0]["factor"]
