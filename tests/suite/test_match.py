"""Matched budgets: every word is met, or one line says why it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.suite import plan as plans
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import cells, runs
from lrt_lab.suite.match import HIDDEN, Match, parse, spread, steps_for

from .conftest import Lab
from .fake_backend import resolve, seconds_per_step


def priced(lab: Lab, match: Any, clocked: bool = True, steps: int = 1000) -> dict[str, Any]:
    """The twin of PreNorm+none that is matched to PreNorm+LRT, and both of them, by name."""
    lab.config("quick", {"trainer": {"max_steps": steps}})
    lab.tree["twins"] = {"same": {"of": {"route": "none"}, "as": {"route": "LRT"}, "match": match}}
    suite = load(lab.save())
    scale = suite.scale("quick")
    wanted = [run for run in runs(suite, scale) if run.seed == 1]
    entries = plans.price(
        suite,
        scale,
        wanted,
        lambda configs: [resolve(config) for config in configs],
        clock=(lambda configs: [seconds_per_step(one) for one in configs]) if clocked else None,
    )
    found = {entry["cell"]: entry for entry in entries}
    return {name.removeprefix("PreNorm+"): e for name, e in found.items() if "PreNorm" in name}


@pytest.mark.parametrize(
    ("word", "steps"), [("tokens", 1000), ("train_flops", 2100), ("wall_clock", 3000)]
)
def test_steps_meet_a_budget_of_training(lab: Lab, word: str, steps: int) -> None:
    found = priced(lab, word)
    twin = found["none@same"]
    assert twin["steps"] == steps
    assert twin["twin"]["ratio"] == pytest.approx(1, abs=0.01)
    assert twin["twin"]["set"] == {}


def test_a_calibration_is_recorded_and_its_lack_too(lab: Lab) -> None:
    measured = priced(lab, "wall_clock")["none@same"]["twin"]
    assert measured["seconds_per_step"] == {"of": 0.1, "as": 0.3}
    guessed = priced(lab, "wall_clock", clocked=False)["none@same"]
    assert guessed["twin"]["seconds_per_step"] is None
    assert guessed["steps"] == 2100


@pytest.mark.parametrize(
    ("word", "thing", "column"),
    [("parameters", lambda e: e["parameters"]["total"], 16), ("decode_flops", None, 32)],
)
def test_one_feed_forward_column_meets_a_width(lab: Lab, word: str, thing, column: int) -> None:
    thing = thing or (lambda entry: entry["decode_flops_per_token"])
    found = priced(lab, word)
    twin = found["none@same"]
    assert abs(thing(twin) - thing(found["LRT"])) < column
    assert thing(twin) != thing(found["none"])
    assert twin["steps"] == found["none"]["steps"]
    widths = twin["twin"]["set"][HIDDEN]
    # Two blocks share the columns, the deeper one has the odd one.
    assert sum(widths) > 8
    assert 0 <= widths[1] - widths[0] <= 1


def test_the_runs_get_what_was_solved(lab: Lab) -> None:
    found = priced(lab, "parameters")["none@same"]
    suite = load(lab.suite)
    scale = suite.scale("quick")
    run = next(r for r in runs(suite, scale) if r.cell.name == "PreNorm+none@same")
    config = plans.config_of(suite, scale, run, found["steps"], knob=found["twin"]["set"])
    assert resolve(config)["hash"] == found["hash"]


def test_a_knob_of_ones_own(lab: Lab) -> None:
    with pytest.raises(UserError, match=r"none@same: model.depth does not change its parameters"):
        priced(lab, {"parameters": "model.depth"})


def test_no_such_knob(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from . import fake_backend

    def strict(config: dict[str, Any]) -> dict[str, Any]:
        if "hiden" in str(config):
            raise UserError("SquaredReLU has no option 'hiden'")
        return fake_backend.resolve(config)

    monkeypatch.setitem(globals(), "resolve", strict)
    with pytest.raises(UserError, match="match parameters by model.ffn.init_args.hiden: Squared"):
        priced(lab, {"parameters": "model.ffn.init_args.hiden"})


def test_too_small_a_budget(lab: Lab) -> None:
    from lrt_lab.suite.match import knob_for

    def attempt(value: list[int]) -> dict[str, Any]:
        return {"parameters": {"total": 1000 + 16 * sum(value)}}

    with pytest.raises(UserError, match="cannot be made small enough for 900 parameters"):
        knob_for(Match("parameters", HIDDEN), 2, 900, attempt, "cell@same")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        pytest.param("flops", "unknown match 'flops'", id="word"),
        pytest.param("flops", "Known: tokens, train_flops, wall_clock, parameters", id="list"),
        pytest.param({"tokens": HIDDEN}, "takes no knob", id="steps-knob"),
        pytest.param({"parameters": "trainer.max_steps"}, "is no knob", id="not-a-model-key"),
        pytest.param({"parameters": HIDDEN, "tokens": None}, "one word with its knob", id="two"),
    ],
)
def test_what_is_no_match(tree: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(tree, "twins.same.match")


def test_what_counts_nothing_cannot_be_matched() -> None:
    match, target = Match("train_flops"), {"train_flops": 100, "steps": 10}
    with pytest.raises(UserError, match="counts no train_flops_per_step"):
        steps_for(match, {"train_flops_per_step": 0}, target, "cell")
    assert steps_for(match, {"train_flops_per_step": 1e3}, target, "cell") == 1


def test_columns_spread_evenly() -> None:
    assert spread(7, 3) == [2, 2, 3]
    assert sum(spread(1001, 4)) == 1001


def test_a_scale_has_twins_of_its_own(lab: Lab) -> None:
    twin = {"of": {"route": "none"}, "as": {"route": "LRT"}, "match": "wall_clock"}
    lab.tree["scales"]["paper"]["twins"] = {"time": twin}
    suite = load(lab.save())
    names = {scale: [c.name for c in cells(suite, suite.scale(scale))] for scale in suite.scales}
    assert [name for name in names["paper"] if "@time" in name] == [
        "PreNorm+none@time",
        "AttentionResiduals+none@time",
    ]
    assert not any("@time" in name for name in names["quick"])
