"""Budgets, further squares, exposure, ports and tuning: suites that never ran, with known truth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrt_lab.report import figures, protocol_tables
from lrt_lab.report.markdown import render
from lrt_lab.report.protocol import rates
from lrt_lab.report.results import summarise
from lrt_lab.report.suite_runs import design_of, record_of
from tests.report import synthetic
from tests.report.synthetic import CELLS

P0, P1, A0, A1 = CELLS
#: ln loss of every cell: the interaction is -.03 at one budget, -.01 at two.
LEVELS = {
    P0: 0.0,
    P1: -0.06,
    A0: -0.04,
    A1: -0.07,
    f"{P0}@x2": -0.10,
    f"{P1}@x2": -0.14,
    f"{A0}@x2": -0.13,
    f"{A1}@x2": -0.16,
    f"{P0}@x4": -0.20,
    f"{A0}@x4": -0.22,
    f"{P0}@flops": -0.11,
    f"{A0}@flops": -0.14,
    f"{P0}@flops-x2": -0.21,
    f"{A0}@flops-x2": -0.23,
    f"{P0}@default": 0.02,
    f"{P1}@default": -0.02,
    "PreNorm+LRT-read": -0.05,
    "PreNorm+LRT-shift": -0.02,
}
STRENGTH = {P1: [-2.0, -2.5], A1: [-1.0, -0.5]}
TUNING = {
    "inputs": "b" * 64,
    "key": "model.optimizer.init_args.lr",
    "seeds": [101, 102],
    "outcome": "exact",
    "cells": {
        cell: {
            "axes": axes,
            "steps": 250,
            "factor": 2.0,
            "inside": cell != A1,
            "losses": {
                "0.5": [2.4, 2.5],
                "1": [2.2, 2.3],
                "2": [2.0 - 0.1 * place, 2.1 - 0.1 * place],
                "4": [2.1, None],
            },
        }
        for place, (cell, axes) in enumerate(CELLS.items())
    },
}


def plan() -> dict[str, Any]:
    """A plan of the full protocol."""
    made = synthetic.plan(
        twins=False,
        squares={"one read only": {P1: "PreNorm+LRT-read"}},
        contrasts={"recurrent over shift": {"PreNorm+LRT-shift": 1, P1: -1}},
    )
    made["tuning"] = TUNING
    for seed in (1, 2, 3, 4, 5):
        for cell in LEVELS:
            own, _, change = cell.partition("@")
            if own == cell and cell in CELLS:
                continue
            backbone, route = own.split("+")
            twin = None
            if change.startswith("flops"):
                partner = own.replace("none", "LRT") + ("@x2" if change.endswith("x2") else "")
                twin = {"match": "train_flops", "of": own, "as": partner}
            item = synthetic.item_of(cell, {"backbone": backbone, "route": route}, twin, seed)
            times = float(change[1:]) if change in ("x2", "x4") else 1.0
            scale = times if twin is None else (2.0 if change.endswith("x2") else 1.0)
            for key in ("steps", "tokens", "train_flops"):
                item[key] = item[key] * scale
            made["cells"].append({**item, "times": times, "at_default": change == "default"})
    return made


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    made = plan()
    records = []
    for item in made["cells"]:
        noise = 1e-4 * synthetic.stream(item["seed"], item["cell"]).normal()
        loss = 2.2 * math.exp(LEVELS[item["cell"]] + noise)
        final = synthetic.final(item, loss)
        # Decoding loses .01 in ln loss to the last training pass on AttentionResiduals alone.
        last = loss * math.exp(-0.01) if item["cell"] == A1 else loss
        final["test"]["last_pass"]["loss"] = last
        if item["cell"] in STRENGTH:
            backbone = item["axes"]["backbone"]
            final["injection"] = {
                "backbone": backbone,
                "vector": f"what {backbone} emits",
                "log_ratio": STRENGTH[item["cell"]],
            }
        files = {"DONE": True, "final.json": final, "meta.json": synthetic.meta(item, made)}
        records.append(record_of(item, made, files.get))
    found = summarise(design_of(made), records)
    found["figures"], found["wall_clock"]["figures"] = [], []
    return {**found, "wall_clock": {**found["wall_clock"], "overhead": None}}


@pytest.fixture(scope="module")
def text(results) -> str:
    return render(results)


def near(found: dict[str, Any], value: float) -> bool:
    return found["low"] < found["high"] and abs(found["point"] - value) < 5e-4


def test_the_primary_square_is_that_of_the_product(results) -> None:
    assert results["square"]["cells"] == [P0, P1, A0, A1]
    assert near(results["budgets"]["tokens"]["interaction"], -0.03)
    assert results["budgets"]["train_flops"]["cells"] == [f"{P0}@flops", P1, f"{A0}@flops", A1]
    # Repetitions stand behind their cells and are no pairs of their own.
    order = [cell["cell"] for cell in results["cells"]]
    assert order.index(P0) < order.index(f"{P0}@x2") < order.index(P1)
    assert all("@" not in row["name"] for row in results["pairs"])


def test_the_interaction_against_budget_has_a_slope(results) -> None:
    at_tokens = results["ladder"]["tokens"]
    assert [one["times"] for one in at_tokens["budgets"]] == [1, 2]
    assert at_tokens["budgets"][1]["cells"] == [f"{cell}@x2" for cell in (P0, P1, A0, A1)]
    assert near(at_tokens["budgets"][0]["interaction"], -0.03)
    assert near(at_tokens["budgets"][1]["interaction"], -0.01)
    assert near(at_tokens["slope"]["interaction"], 0.02 / math.log(2))
    assert near(at_tokens["slope"]["gain_base"], -0.02 / math.log(2))


def test_and_at_equal_flops_each_budget_has_its_own_twins(results) -> None:
    at_flops = results["ladder"]["train_flops"]
    assert at_flops["budgets"][1]["cells"] == [
        f"{P0}@flops-x2",
        f"{P1}@x2",
        f"{A0}@flops-x2",
        f"{A1}@x2",
    ]
    # (-.23 + .16) - (-.21 + .14) = 0 at two budgets, (-.14 + .07) - (-.11 + .06) = -.02 at one.
    assert near(at_flops["budgets"][0]["interaction"], -0.02)
    assert near(at_flops["slope"]["interaction"], 0.02 / math.log(2))


def test_multipliers_read_off_the_declared_budgets_alone(results) -> None:
    for cost in ("tokens", "train_flops"):
        for backbone in ("PreNorm", "AttentionResiduals"):
            found = results["multipliers"][cost][backbone]
            assert found["budgets"] == 3 and found["enough_budgets"]
    scales = results["budgets"]["tokens"]["interaction"]["scales"]
    assert "ln compute multiplier" in scales


def test_other_cells_take_the_place_of_some(results) -> None:
    by_name = {row["name"]: row for row in results["squares"]}
    read = by_name["one read only"]
    assert read["cells"] == [P0, "PreNorm+LRT-read", A0, A1]
    assert near(read["gain_base"], 0.05) and near(read["interaction"], -0.02)
    default = by_name["default learning rate"]
    # Cells that were tuned to the default are not run twice.
    assert default["cells"] == [f"{P0}@default", f"{P1}@default", A0, A1]
    assert near(default["gain_base"], 0.04)


def test_gain_is_that_of_the_last_pass_minus_the_gap(results) -> None:
    (one, other) = results["exposure"]
    assert (one["name"], other["name"]) == ("LRT", "one read only")
    assert one["gap"]["gain_improved"]["point"] == pytest.approx(0.01)
    assert one["gap"]["gain_base"]["point"] == pytest.approx(0, abs=1e-12)
    for effect in ("gain_base", "gain_improved", "interaction"):
        points = [one[part][effect]["point"] for part in ("exact", "last_pass", "gap")]
        assert points[0] == pytest.approx(points[1] - points[2], abs=1e-12)


def test_ports_are_shown_by_block(results, text: str) -> None:
    assert [row["cell"] for row in results["ports"]] == [P1, A1]
    assert results["ports"][1]["log_ratio"] == STRENGTH[A1]
    assert "| PreNorm+LRT | -2.00 | -2.50 |" in text
    assert "AttentionResiduals emits what AttentionResiduals emits" in text


def test_the_sweep_is_shown_with_its_choices(results, text: str) -> None:
    rows = {row["cell"]: row for row in results["rates"]["rows"]}
    assert rows[P1]["best"] == pytest.approx(1.95) and rows[P1]["default"] == pytest.approx(2.25)
    # A diverged run leaves its factor without a mean.
    assert rows[P1]["losses"][-1] == {"factor": 4.0, "loss": None}
    assert (
        "| AttentionResiduals+LRT | 2.4500 | 2.2500 | **1.7500** | diverged | 2 x (at the edge)"
        in (text)
    )
    square = results["rates"]["square"]
    assert square["default"]["interaction"] == pytest.approx(0, abs=1e-12)
    p0, p1, a0, a1 = np.log([2.05, 1.95, 1.85, 1.75])
    assert square["best"]["interaction"] == pytest.approx((a0 - a1) - (p0 - p1))


def test_a_sweep_of_right_answers_is_told_as_shares_of_wrong_ones(results) -> None:
    made = plan()
    made["statistics"]["metric"] = "last_accuracy"
    shares = {"0.5": [0.8, 0.9], "1": [0.6, 0.7], "2": [0.5, 0.3], "4": [0.0, 0.0]}
    made["tuning"] = {
        **TUNING,
        "outcome": "exact last_accuracy",
        "cells": {
            cell: {**choice, "factor": 4.0 if cell == A1 else 2.0, "losses": shares}
            for cell, choice in TUNING["cells"].items()
        },
    }
    found = rates(design_of(made))
    assert found["outcome"] == "exact" and found["metric"] == "last_accuracy"
    # Differences of shares, not of their logarithms: one cell is right everywhere.
    assert found["square"]["best"]["interaction"] == pytest.approx(0.4)
    text = "\n".join(protocol_tables.rates({**results, "rates": found}))
    assert (
        "mean share of wrong answers" in text
        and "| 0.8500 | 0.6500 | 0.4000 | **0.0000** |" in text
    )


def test_the_sweep_is_drawn(results, tmp_path: Path) -> None:
    found = {**results, "wall_clock": dict(results["wall_clock"])}
    figures.draw(found, [], tmp_path)
    (drawn,) = [figure for figure in found["figures"] if figure["name"] == "rates"]
    assert "PreNorm+LRT best at 2 x" in drawn["alt"]
    assert (tmp_path / "rates.svg").stat().st_size > 1000


def test_every_section_is_in_the_report(text: str) -> None:
    heads = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    wanted = [
        "Learning rates",
        "The square with other cells",
        "Against budget",
        "Last training pass and exact recurrence",
        "Ports",
    ]
    assert [head for head in heads if head in wanted] == wanted
    assert "| **slope**, equal training FLOPs |" in text
    assert "recurrent over shift" in text


def test_a_plain_square_has_none_of_them(tmp_path: Path) -> None:
    made = synthetic.plan()
    losses = synthetic.losses(made)
    records = [
        record_of(i, made, {"DONE": 1, "final.json": synthetic.final(i, losses[i["folder"]])}.get)
        for i in made["cells"]
    ]
    found = summarise(design_of(made), records)
    assert found["rates"] is None and found["ladder"] is None
    assert found["squares"] == [] and found["ports"] == []
    # Both evaluations are in every record of a run.
    assert [one["name"] for one in found["exposure"]] == ["LRT"]
