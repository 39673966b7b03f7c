"""Cells beside the product: left out, run again with another budget or rate, twins of those."""

from __future__ import annotations

from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.suite import plan as plans
from lrt_lab.suite.declaration import Suite, load
from lrt_lab.suite.expansion import Run, cells, runs

from .conftest import Lab
from .fake_backend import resolve

AGAIN = {
    "x2": {"of": {"route": ["none", "LRT"]}, "times": 2},
    "x4": {"of": {"route": "none"}, "times": 4},
}
TWINS = {
    "flops": {"of": {"route": "none"}, "as": {"route": "LRT"}, "match": "train_flops"},
    "flops-x2": {
        "of": {"route": "none"},
        "as": {"route": "LRT"},
        "match": "train_flops",
        "at": "x2",
    },
}


def scales(**quick: Any) -> dict[str, Any]:
    own = {"config": ["configs/quick.yaml"], "seeds": [1, 2], "margin": 0.01, **quick}
    return {"quick": own}


def names(suite: Suite) -> list[str]:
    return [cell.name for cell in cells(suite, suite.scale("quick"))]


def priced(suite: Suite) -> dict[str, dict[str, Any]]:
    scale = suite.scale("quick")
    wanted = [run for run in runs(suite, scale) if run.seed == 1]
    entries = plans.price(suite, scale, wanted, lambda configs: [resolve(c) for c in configs])
    return {entry["cell"]: entry for entry in entries}


def test_cells_are_run_again_after_the_product_and_before_the_twins(lab: Lab) -> None:
    suite = load(lab.save(again=AGAIN, twins=TWINS, scales=scales()))
    assert names(suite)[4:] == [
        "PreNorm+none@x2",
        "PreNorm+LRT@x2",
        "AttentionResiduals+none@x2",
        "AttentionResiduals+LRT@x2",
        "PreNorm+none@x4",
        "AttentionResiduals+none@x4",
        "PreNorm+none@flops",
        "AttentionResiduals+none@flops",
        "PreNorm+none@flops-x2",
        "AttentionResiduals+none@flops-x2",
    ]
    again = cells(suite, suite.scale("quick"))[4]
    assert again.axes == {"backbone": "PreNorm", "route": "none"}


def test_a_budget_is_a_schedule_of_its_own(lab: Lab) -> None:
    """Steps are the config's times the budget, and a twin at a budget costs what that one costs."""
    lab.config("quick", {"trainer": {"max_steps": 1000}})
    entries = priced(load(lab.save(again=AGAIN, twins=TWINS, scales=scales())))
    steps = {name: entry["steps"] for name, entry in entries.items() if "PreNorm" in name}
    assert steps == {
        "PreNorm+none": 1000,
        "PreNorm+LRT": 1000,
        "PreNorm+none@x2": 2000,
        "PreNorm+LRT@x2": 2000,
        "PreNorm+none@x4": 4000,
        "PreNorm+none@flops": 2100,
        "PreNorm+none@flops-x2": 4200,
    }
    twin = entries["PreNorm+none@flops-x2"]
    assert twin["twin"]["as"] == "PreNorm+LRT@x2"
    assert twin["twin"]["ratio"] == pytest.approx(1)
    assert [entries[f"PreNorm+none{at}"]["times"] for at in ("", "@x2", "@x4")] == [1, 2, 4]


@pytest.mark.parametrize(
    ("without", "scale", "left"),
    [
        ([{"route": "LRT", "backbone": "PreNorm"}], {}, ["PreNorm+none", "A+none", "A+LRT"]),
        ([], {"only": {"route": ["none"]}}, ["PreNorm+none", "A+none"]),
        ([], {"only": {"backbone": "PreNorm"}}, ["PreNorm+none", "PreNorm+LRT"]),
    ],
    ids=["without", "only values", "only value"],
)
def test_a_scale_need_not_run_the_whole_product(
    lab: Lab, without: list[Any], scale: dict[str, Any], left: list[str]
) -> None:
    suite = load(lab.save(without=without, twins={}, scales=scales(**scale)))
    assert [name.replace("AttentionResiduals", "A") for name in names(suite)] == left


def test_a_scale_chooses_its_budgets_and_leaves_out_twins_without_a_partner(lab: Lab) -> None:
    chosen = scales(again=["x4"], only={"backbone": "PreNorm"})
    suite = load(lab.save(again=AGAIN, twins=TWINS, scales=chosen))
    assert names(suite) == [
        "PreNorm+none",
        "PreNorm+LRT",
        "PreNorm+none@x4",
        "PreNorm+none@flops",
    ]
    plain = load(lab.save(scales=scales(again=["x4"], only={"route": "none"})))
    assert not [name for name in names(plain) if "flops" in name]


def test_what_a_run_changes_stays_its_own(lab: Lab) -> None:
    """A budget of one cell must not leak into another through a shared table of options."""
    suite = load(lab.save(again=AGAIN, scales=scales()))
    scale = suite.scale("quick")
    first, again = (
        next(cell for cell in cells(suite, scale) if cell.name == name)
        for name in ("PreNorm+none", "PreNorm+none@x4")
    )
    assert plans.config_of(suite, scale, Run(again, 1))["trainer"]["max_steps"] == 20
    assert plans.config_of(suite, scale, Run(first, 1))["trainer"]["max_steps"] == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"again": {"x1": {"of": {}, "times": 1}}}, "the same cell again"),
        ({"again": {"x0": {"of": {}, "times": 0}}}, "the same cell again"),
        ({"again": {"x2": {"of": {}, "times": 2, "tuned": False}}}, "with both it stands in no"),
        ({"again": {"flops": {"of": {}, "times": 2}}}, "two changes of a cell called 'flops'"),
        ({"scales": scales(twins={"flops": TWINS["flops"]})}, "two changes of a cell called"),
        ({"again": {"a b": {"of": {}, "times": 2}}}, "must be a text of letters"),
        ({"again": {"x2": {"of": {"rout": "none"}, "times": 2}}}, "Did you mean 'route'"),
        ({"again": {"x2": {"of": {"route": "non"}, "times": 2}}}, "Did you mean 'none'"),
        ({"without": [{"route": "lrt"}]}, "unknown value of axis route 'lrt'"),
        ({"scales": scales(again=["x3"])}, "unknown cell that is run again 'x3'"),
        ({"scales": scales(only={"size": "big"})}, "unknown axis 'size'"),
        ({"twins": {"f": {**TWINS["flops"], "at": "x3"}}}, "unknown cell that is run again 'x3'"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_mistakes_are_one_line(lab: Lab, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(lab.save(**{"again": AGAIN, **changes}))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"contrasts": {"c": {"PreNorm+none": 1, "PreNorm+LRT2": -1}}}, "contrasts.c: unknown"),
        ({"squares": {"s": {"PreNorm+none": "PreNorm+LRT2"}}}, "squares.s: unknown"),
        ({"squares": {"s": {"PreNorm+non": "PreNorm+LRT"}}}, "Did you mean 'PreNorm.none'"),
    ],
    ids=["contrast", "square", "place in a square"],
)
def test_a_comparison_of_cells_that_no_scale_runs_is_refused(
    lab: Lab, section: dict[str, Any], words: str
) -> None:
    """What a scale leaves out drops its comparisons; a name that is wrong must not."""
    lab.save(statistics={**lab.tree["statistics"], **section})
    with pytest.raises(UserError, match=words):
        lab.run(dry_run=True)


def test_a_family_of_unknown_contrasts_is_refused_before_any_run(lab: Lab) -> None:
    lab.save(statistics={**lab.tree["statistics"], "family": ["gain_bas"]})
    with pytest.raises(UserError, match="did you mean 'gain_base'"):
        lab.run()
    assert not list(lab.runs.glob("*/*"))


def test_a_scale_without_cells_is_refused(lab: Lab) -> None:
    with pytest.raises(UserError, match="leave scale quick no cell"):
        names(load(lab.save(without=[{}], scales=scales())))
