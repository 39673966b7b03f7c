"""Cells matched by the first FFN: solved before the runs, recorded, or refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.store import read_json
from lrt_lab.suite import plan as plans
from lrt_lab.suite import tuned
from lrt_lab.suite.commands import execute_tuning
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import runs
from lrt_lab.suite.match import HIDDEN

from .conftest import BACKEND, Lab
from .fake_backend import resolve

COLUMN = 16
MATCHED = {"dense_parameters": {"route": "none"}}


@pytest.fixture
def matched_lab(lab: Lab) -> Lab:
    optimizer = {"lr": 0.003}
    lab.config("base", {"model": {"optimizer": optimizer, "ffn": {"init_args": {"hidden": 4}}}})
    lab.save(matched=MATCHED, twins={})
    return lab


def priced(lab: Lab, adds: int = 24) -> dict[str, dict[str, Any]]:
    """The first seed's entries by cell, LRT bringing so many parameters."""
    lab.tree["axes"]["route"]["LRT"]["model.adds"] = adds
    suite = load(lab.save())
    scale = suite.scale("quick")
    wanted = [run for run in runs(suite, scale) if run.seed == 1]
    found = plans.price(suite, scale, wanted, lambda configs: [resolve(one) for one in configs])
    return {entry["cell"]: entry for entry in found}


@pytest.mark.parametrize(
    ("adds", "first"), [(24, 2), (16, 3), (40, 2), (7, 4), (0, 4), (-32, 6), (48, 1)]
)
def test_the_first_width_pays_to_one_column(matched_lab: Lab, adds: int, first: int) -> None:
    found = priced(matched_lab, adds)
    for backbone in ("PreNorm", "AttentionResiduals"):
        plain, routed = found[f"{backbone}+none"], found[f"{backbone}+LRT"]
        goal = plain["parameters"]["dense"]
        assert abs(routed["parameters"]["dense"] - goal) <= COLUMN / 2
        knob = {HIDDEN: [first, 4]} if first != 4 else {}
        assert routed["matched"] == {
            "match": "dense_parameters",
            "goal": goal,
            "set": knob,
            "ratio": routed["parameters"]["dense"] / goal,
        }
        assert plain["matched"]["set"] == {} and plain["matched"]["ratio"] == 1


def test_runs_and_their_records_have_what_was_solved(
    matched_lab: Lab, written_reports: list[Any]
) -> None:
    assert matched_lab.run() == 0
    plan = read_json(matched_lab.runs / "plan.json")
    assert plan["matched"] == {"route": "none"}
    for entry in plan["cells"]:
        meta = read_json(matched_lab.runs / entry["folder"] / "meta.json")
        assert meta["matched"] == entry["matched"]
        assert meta["config_hash"] == entry["hash"]
    # The written plan is used again: nothing is solved anew, and nothing runs twice.
    assert matched_lab.run() == 0


def test_tuning_matches_too_and_is_refused_when_the_match_changes(
    matched_lab: Lab, written_reports: list[Any]
) -> None:
    tuning = {"key": "model.optimizer.lr", "grid": [0.5, 1, 2], "seeds": [101, 102]}
    lab = matched_lab
    lab.save(tuning=tuning)
    assert execute_tuning(str(lab.suite), "quick", 2, runs=f"{lab.home}/runs", backend=BACKEND) == 0
    plan = read_json(lab.home / "runs" / "toy" / "quick-tuning" / "plan.json")
    routed = [entry for entry in plan["cells"] if "+LRT@" in entry["cell"]]
    assert len({entry["cell"] for entry in routed}) >= 6
    assert all(entry["matched"]["set"] == {HIDDEN: [2, 4]} for entry in routed)
    suite = load(lab.suite)
    assert tuned.load(suite, suite.scale("quick")) is not None
    other = load(lab.save(matched={"dense_parameters": {"route": "LRT"}}))
    with pytest.raises(UserError, match="has changed since"):
        tuned.load(other, other.scale("quick"))


def test_a_twin_keeps_its_cells_width(matched_lab: Lab) -> None:
    twin = {"of": {"route": "LRT"}, "as": {"route": "none"}, "match": "train_flops"}
    matched_lab.save(twins={"flops": twin})
    found = priced(matched_lab)
    own, again = found["PreNorm+LRT"], found["PreNorm+LRT@flops"]
    assert again["parameters"] == own["parameters"]
    assert again["twin"]["set"] == own["matched"]["set"] == {HIDDEN: [2, 4]}
    assert again["steps"] < own["steps"]


def test_the_dry_run_counts_parameters_by_kind(
    matched_lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert matched_lab.run(dry_run=True) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cell", "all", "dense", "queries,", "biases,", "gains", "lookup", "tables"] in [
        line[:8] for line in shown
    ]
    assert ["PreNorm+none", "1,128", "1,028", "60", "40", "as", "given"] in shown
    assert ["PreNorm+LRT", "1,120", "1,020", "60", "40", "2"] in shown


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        pytest.param({"parameters": {"route": "none"}}, "unknown key 'parameters'", id="word"),
        pytest.param({"dense_parameters": {}}, "name the cells to match", id="empty"),
        pytest.param({"dense_parameters": {"rout": "none"}}, "unknown axis 'rout'", id="axis"),
        pytest.param(
            {"dense_parameters": {"route": "non"}},
            "unknown value of axis route 'non'. Did you mean 'none'",
            id="value",
        ),
    ],
)
def test_what_names_no_cells(lab: Lab, tree: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(lab.save(matched=tree))


def test_what_cannot_be_paid(matched_lab: Lab) -> None:
    words = (
        "PreNorm.LRT: it has 90 dense parameters more .* the 4 columns .* have 64; give it fewer"
    )
    with pytest.raises(UserError, match=words) as error:
        priced(matched_lab, 90)
    assert "\n" not in str(error.value)


def test_an_unsaid_width(lab: Lab) -> None:
    lab.save(matched=MATCHED, twins={})
    with pytest.raises(
        UserError, match="PreNorm.none: matched by the first FFN, so the config has"
    ):
        priced(lab)
