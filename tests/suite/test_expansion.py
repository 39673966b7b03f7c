"""Expansion: the same cells and runs, in the same order, wherever it is done."""

from __future__ import annotations

from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import cells, running_order, runs

from .conftest import Lab


def test_cells_are_all_combinations_then_twins(lab: Lab) -> None:
    found = cells(load(lab.suite), load(lab.suite).scale("quick"))
    assert [cell.name for cell in found] == [
        "PreNorm+none",
        "PreNorm+LRT",
        "AttentionResiduals+none",
        "AttentionResiduals+LRT",
        "PreNorm+none@flops",
        "AttentionResiduals+none@flops",
    ]
    assert found[1].overrides == {"model.backbone": "PreNorm", "model.route": "LRT"}
    twin = found[4]
    assert twin.axes == found[0].axes
    assert twin.twin is not None
    assert twin.twin.record() == {
        "match": "train_flops",
        "of": "PreNorm+none",
        "as": "PreNorm+LRT",
    }


def test_runs_go_seed_by_seed(lab: Lab) -> None:
    suite = load(lab.suite)
    found = runs(suite, suite.scale("quick"))
    assert [run.seed for run in found] == [1] * 6 + [2] * 6
    assert found == runs(load(lab.suite), suite.scale("quick"))


def test_within_a_seed_the_longest_start_first() -> None:
    entries = [
        {"seed": 2, "cell": "a", "train_flops": 9},
        {"seed": 2, "cell": "b", "train_flops": 10},
        {"seed": 1, "cell": "b", "train_flops": 5},
        {"seed": 1, "cell": "c", "train_flops": 7},
        {"seed": 1, "cell": "a", "train_flops": 5},
    ]
    order = [(entry["seed"], entry["cell"]) for entry in running_order(entries)]
    # Seeds stay in the order of the file.
    assert order == [(2, "b"), (2, "a"), (1, "c"), (1, "a"), (1, "b")]
