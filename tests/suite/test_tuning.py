"""Tuning: every cell on one grid, wider where the edge is best, committed, and refused when old."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from lrt_lab.errors import UserError
from lrt_lab.store import read_json, write_json
from lrt_lab.suite import plan as plans
from lrt_lab.suite import tuned
from lrt_lab.suite.commands import execute_tuning
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import Run, cells
from lrt_lab.suite.tune import best, extended

from .conftest import BACKEND, Lab

pytestmark = pytest.mark.usefixtures("written_reports")

TUNING = {
    "key": "model.optimizer.lr",
    "grid": [0.5, 1, 2],
    "seeds": [101, 102],
    "twins": ["flops"],
}
SCALES = {
    "quick": {"config": ["configs/quick.yaml"], "seeds": [1, 2], "margin": 0.01},
    "rough": {
        "config": ["configs/quick.yaml"],
        "seeds": [1],
        "margin": 0.01,
        "tuned": False,
    },
}


@pytest.fixture
def tuning_lab(lab: Lab) -> Lab:
    lab.config("base", {"model": {"width": 8, "optimizer": {"lr": 0.003}}})
    lab.save(
        tuning=TUNING,
        again={
            "x4": {"of": {"route": "none"}, "times": 4},
            "default": {"of": {"route": "none"}, "tuned": False},
        },
        scales=SCALES,
    )
    return lab


def tune(lab: Lab, scale: str = "quick", **options: Any) -> int:
    return execute_tuning(
        str(lab.suite), scale, 2, runs=str(lab.home / "runs"), backend=BACKEND, **options
    )


def committed(lab: Lab, scale: str = "quick") -> dict[str, Any]:
    return read_json(lab.suite.parent / "tuning" / "toy.json")["scales"][scale]


def test_every_cell_is_tried_at_every_factor_and_the_best_is_written(tuning_lab: Lab) -> None:
    """The fake backend's loss is smallest at 0.012, at a factor of 4: beyond the grid."""
    assert tune(tuning_lab) == 0
    found = committed(tuning_lab)
    assert found["seeds"] == [101, 102] and found["key"] == TUNING["key"]
    assert sorted(found["cells"]) == [
        "AttentionResiduals+LRT",
        "AttentionResiduals+none",
        "AttentionResiduals+none@flops",
        "PreNorm+LRT",
        "PreNorm+none",
        "PreNorm+none@flops",
    ]
    for name, choice in found["cells"].items():
        assert list(choice["losses"]) == ["0.5", "1", "2", "4", "8"]
        assert all(len(losses) == 2 for losses in choice["losses"].values())
        assert choice["factor"] == 4 and choice["inside"]
        # Two epochs of the LRT cell's cost fit into the twin.
        assert choice["steps"] == (10 if "@flops" in name else 5)


def test_a_suite_that_compares_right_answers_is_tuned_on_them(tuning_lab: Lab) -> None:
    """The fake backend answers best at 0.006, at a factor of 2, and has its least loss at 4."""
    assert tune(tuning_lab) == 0
    by_loss = committed(tuning_lab)
    statistics = yaml.safe_load(tuning_lab.suite.read_text())["statistics"]
    tuning_lab.save(statistics={**statistics, "metric": "last_accuracy"})
    suite = load(tuning_lab.suite)
    with pytest.raises(UserError, match="has changed since"):
        tuned.load(suite, suite.scale("quick"))
    assert tune(tuning_lab) == 0
    found = committed(tuning_lab)
    assert (by_loss["outcome"], found["outcome"]) == ("exact", "exact last_accuracy")
    for name, choice in found["cells"].items():
        assert choice["factor"] == 2 and by_loss["cells"][name]["factor"] == 4
        assert choice["losses"]["2"] == pytest.approx([0, 0], abs=1e-12)
        assert choice["losses"]["1"] == pytest.approx([0.5, 0.5])


def test_contrasts_of_the_report_are_nothing_to_tuning(lab: Lab) -> None:
    """They are made of the suite's cells, and tuning's are others."""
    arms = {
        name: {"model.backbone": backbone, "model.route": route}
        for name, backbone, route in (
            ("none", "PreNorm", "NoRoute"),
            ("LRT", "PreNorm", "LRT"),
            ("both", "AttentionResiduals", "LRT"),
        )
    }
    ends = {"arm": {"baseline": "none", "improved": "LRT"}}
    lab.config("base", {"model": {"width": 8, "optimizer": {"lr": 0.003}}})
    lab.save(
        axes={"arm": arms},
        twins={},
        tuning={**TUNING, "twins": []},
        statistics={"primary": "LRT", "family": ["both"], "axes": ends},
    )
    assert tune(lab) == 0
    assert sorted(committed(lab)["cells"]) == sorted(arms)


def test_tuning_uses_its_own_seeds_and_the_validation_slice_alone(
    tuning_lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tuning_lab) == 0
    said = capsys.readouterr().out
    assert ": validation loss " in said and "test loss" not in said
    plan = read_json(tuning_lab.home / "runs" / "toy" / "quick-tuning" / "plan.json")
    assert {entry["seed"] for entry in plan["cells"]} == {101, 102}
    suite = load(tuning_lab.suite)
    assert not set(suite.scale("quick").seeds) & {101, 102}
    assert tuned.SCORING["evaluation.part"] == "validation"
    for folder in (tuning_lab.home / "runs" / "toy" / "quick-tuning").glob("*/*"):
        assert read_json(folder / "meta.json")["part"] == "validation"


def test_the_suite_runs_at_the_chosen_rates(tuning_lab: Lab) -> None:
    """Cells at other budgets take the rate of the tuned schedule that is nearest."""
    assert tune(tuning_lab) == 0
    file = tuning_lab.suite.parent / "tuning" / "toy.json"
    content = read_json(file)
    chosen = content["scales"]["quick"]["cells"]
    chosen["PreNorm+none"]["factor"], chosen["PreNorm+none@flops"]["factor"] = 2, 0.5
    write_json(file, content)
    suite = load(tuning_lab.suite)
    scale = suite.scale("quick")
    choices = tuned.load(suite, scale)
    rates = {
        cell.name: plans.config_of(suite, scale, Run(cell, 1), choices=choices)["model"][
            "optimizer"
        ]
        for cell in cells(suite, scale)
        if cell.axes["backbone"] == "PreNorm"
    }
    assert {name: rate["lr"] for name, rate in rates.items()} == {
        "PreNorm+none": 0.006,
        "PreNorm+LRT": 0.012,
        "PreNorm+none@x4": 0.0015,
        "PreNorm+none@default": 0.003,
        "PreNorm+none@flops": 0.0015,
    }
    assert tuning_lab.run() == 0
    assert read_json(tuning_lab.runs / "plan.json")["tuning"] == committed(tuning_lab)


@pytest.mark.parametrize("factor", [1, 2])
def test_a_cell_tuned_to_the_default_is_not_run_twice(tuning_lab: Lab, factor: float) -> None:
    assert tune(tuning_lab) == 0
    file = tuning_lab.suite.parent / "tuning" / "toy.json"
    content = read_json(file)
    content["scales"]["quick"]["cells"]["PreNorm+none"]["factor"] = factor
    write_json(file, content)
    plain, default = "PreNorm+none", "PreNorm+none@default"
    tuning_lab.tree["statistics"] |= {
        "contrasts": {
            "by the rate": {default: 1, plain: -1},
            "at the default": {default: 1, "PreNorm+LRT": -1},
        },
        "squares": {"at the default": {plain: default}},
    }
    tuning_lab.save()
    assert tuning_lab.run() == 0
    plan = read_json(tuning_lab.runs / "plan.json")
    found = {entry["cell"] for entry in plan["cells"] if entry["at_default"]}
    assert "AttentionResiduals+none@default" in found
    assert (default in found) == (factor != 1)
    # What compares such a cell with others compares it under its own name.
    stands = plain if factor == 1 else default
    contrasts = plan["statistics"]["contrasts"]
    assert contrasts["at the default"] == {stands: 1, "PreNorm+LRT": -1}
    assert ("by the rate" in contrasts) == (factor != 1)
    assert plan["statistics"]["squares"] == {"at the default": {plain: stands}}
    assert plan["same"].get(default) == (plain if factor == 1 else None)


def test_an_untuned_suite_is_refused_and_a_dry_run_is_not(
    tuning_lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"has no tuning of scale quick; .*suite tune"):
        tuning_lab.run()
    assert tuning_lab.run(dry_run=True) == 0
    assert "note: " in capsys.readouterr().out


@pytest.mark.parametrize("what", ["width", "grid", "seeds", "value", "words"])
def test_a_tuning_of_something_else_is_refused(tuning_lab: Lab, what: str) -> None:
    assert tune(tuning_lab) == 0
    if what == "width":
        tuning_lab.config("base", {"model": {"width": 16, "optimizer": {"lr": 0.003}}})
    elif what in ("grid", "seeds"):
        value = [0.25, 1, 2] if what == "grid" else [101, 103]
        tuning_lab.save(tuning={**TUNING, what: value})
    elif what == "value":
        tuning_lab.tree["axes"]["route"]["none"]["model.extra"] = 1
        tuning_lab.save()
    else:
        tuning_lab.save(title="Only words have changed")
        assert tuning_lab.run() == 0
        return
    with pytest.raises(UserError, match="has changed since"):
        tuning_lab.run()


def test_a_scale_may_do_without(tuning_lab: Lab) -> None:
    assert tuning_lab.run(scale="rough") == 0
    suite = load(tuning_lab.suite)
    scale = suite.scale("rough")
    # The default rate is then every cell's rate.
    assert not [cell for cell in cells(suite, scale) if cell.name.endswith("@default")]
    config = plans.config_of(suite, scale, Run(cells(suite, scale)[0], 1))
    assert config["model"]["optimizer"]["lr"] == 0.003
    with pytest.raises(UserError, match="tunes nothing at scale rough"):
        tune(tuning_lab, "rough")


def test_other_scales_stay_as_they_are(tuning_lab: Lab) -> None:
    assert tune(tuning_lab) == 0
    before = committed(tuning_lab)
    tuning_lab.save(scales={**SCALES, "other": SCALES["quick"]})
    assert tune(tuning_lab, "other") == 0
    assert committed(tuning_lab) == before and committed(tuning_lab, "other") == before


def test_a_diverged_factor_loses(tuning_lab: Lab) -> None:
    tuning_lab.mood("diverge")
    assert tune(tuning_lab) == 0
    choice = committed(tuning_lab)["cells"]["PreNorm+LRT"]
    assert set(map(tuple, choice["losses"].values())) == {(None, None)}
    assert not choice["inside"]


def test_grids_grow_at_the_edge_and_not_for_ever() -> None:
    declared = (0.5, 1.0, 2.0)
    grids = {"low": [0.5, 1.0, 2.0], "high": [0.5, 1.0, 2.0], "inside": [0.5, 1.0, 2.0]}
    losses = {"low": (1, 2, 3), "high": (3, 2, 1), "inside": (2, 1, 2)}
    scores = {
        name: {f: [float(v), float(v)] for f, v in zip(declared, values, strict=True)}
        for name, values in losses.items()
    }
    wider = extended(grids, scores, declared)
    assert wider == {
        "low": [0.25, 0.5, 1.0, 2.0],
        "high": [0.5, 1.0, 2.0, 4.0],
        "inside": [0.5, 1.0, 2.0],
    }
    endless = {"high": [*declared, 4.0, 8.0, 16.0, 32.0]}
    rising = {"high": {factor: [-factor] for factor in endless["high"]}}
    assert extended(endless, rising, declared) == endless


def test_the_best_has_the_lowest_mean_and_of_two_alike_the_lower_factor() -> None:
    assert best({0.5: [2.0, 2.2], 1.0: [2.1, 2.0], 2.0: [1.0, math.inf]}) == 1.0
    assert best({0.5: [2.0], 1.0: [2.0]}) == 0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": [1, 2]}, "three or more rising"),
        ({"grid": [2, 1, 4]}, "three or more rising"),
        ({"grid": [0.5, 2, 4]}, "with 1, the default, among them"),
        ({"seeds": [2, 101]}, "has 2, which is a tuning seed"),
        ({"seeds": []}, "is empty"),
        ({"twins": ["flop"]}, "Did you mean 'flops'"),
        ({"rate": 1}, "unknown key 'rate'"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_mistakes_are_one_line(tuning_lab: Lab, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(tuning_lab.save(tuning={**TUNING, **changes}))


def test_a_twin_of_a_repeated_cell_is_not_tuned(tuning_lab: Lab) -> None:
    """Its partner has no run at a factor, so that nothing could be matched."""
    twin = {"of": {"route": "none"}, "as": {"route": "LRT"}, "match": "train_flops", "at": "x2"}
    again = {"x2": {"of": {}, "times": 2}}
    tuning_lab.save(again=again, twins={"flops-x2": twin}, tuning={**TUNING, "twins": ["flops-x2"]})
    with pytest.raises(UserError, match="whose partner is run at x2 and not tuned"):
        load(tuning_lab.suite)


def test_a_key_that_no_config_sets_cannot_be_tuned(tuning_lab: Lab) -> None:
    tuning_lab.save(tuning={**TUNING, "key": "model.optimiser.lr"})
    with pytest.raises(UserError, match=r"model\.optimiser\.lr: the config fragments give it no"):
        tune(tuning_lab)
