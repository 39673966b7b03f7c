"""Hypothesis 2's suite: its arms, what each changes, and equal dense matrices."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lrt_lab.store import config_hash
from lrt_lab.suite import plan as plans
from lrt_lab.suite.declaration import Suite, load
from lrt_lab.suite.expansion import cells, plain_cell, require_cells, runs
from lrt_lab.suite.match import HIDDEN
from lrt_lab.suite.matched import Widths, solve
from lrt_lab.suite.reports import require_family
from lrt_lab.training.config import merge, merge_configs
from lrt_lab.training.describe import build
from lrt_lab.training.meter import counted

ROOT = Path(__file__).parents[2]
#: What one factor is changed from.
REFERENCE = "Householder"


@cache
def h2() -> Suite:
    return load(ROOT / "experiments" / "h2.yaml")


@cache
def panel() -> Suite:
    return load(ROOT / "experiments" / "h2-swaps.yaml")


@cache
def configs(scale: str) -> dict[str, dict[str, Any]]:
    """The merged configs of all arms, before they are matched."""
    suite = h2()
    files = [*suite.base, *suite.scale(scale).config]
    # Copied, since building a model changes the options that it is given.
    return {
        arm: copy.deepcopy(merge_configs(files, plain_cell(suite, {"arm": arm}).overrides))
        for arm in suite.axes["arm"]
    }


def counts(config: dict[str, Any]) -> dict[str, Any]:
    """What a price has of a config's parameters, without pricing it."""
    return _counts(json.dumps(config))


@cache
def _counts(config: str) -> dict[str, Any]:
    with torch.device("meta"):
        decoder, _, _ = build(json.loads(config))
    model = {"blocks": decoder.shape.blocks}
    return {"config": {"model": model}, "parameters": counted(decoder)}


def widths(scale: str) -> dict[str, Widths]:
    """What the first FFN of every arm becomes."""
    found = configs(scale)
    return solve(
        found, dict.fromkeys(found, found["none"]), lambda many: [counts(one) for one in many]
    )


def test_the_arms_of_every_scale() -> None:
    suite = h2()
    require_cells(suite)
    names = [cell.name for cell in cells(suite, suite.scale("cpu"))]
    # The primary contrast, both other routes and at least eight ablations.
    assert names[:5] == ["none", "FFN", "Householder", "LRT", "FullBandwidth"]
    assert len(names) == len(set(names)) >= 5 + 8 and set(names) <= set(suite.axes["arm"])
    for scale in ("smoke", "gpu"):
        assert [cell.name for cell in cells(suite, suite.scale(scale))] == list(suite.axes["arm"])
    quick = [cell.name for cell in cells(suite, suite.scale("quick"))]
    assert quick == ["none", "FFN", "Householder"]
    assert {name: scale.tuned for name, scale in suite.scales.items()} == {
        "smoke": False,
        "quick": True,
        "cpu": True,
        "gpu": True,
    }
    assert all(suite.scale(name).seeds == (1, 2, 3, 4, 5) for name in ("quick", "cpu", "gpu"))


def test_the_family_is_every_ablation_and_nothing_else() -> None:
    suite = h2()
    statistics = suite.statistics
    assert statistics.primary == REFERENCE and statistics.solid == {"over": "none"}
    assert statistics.axes == {"arm": {"baseline": "FFN", "improved": REFERENCE}}
    steps = ["gather", "norm", "token", "linear"]
    others = ["none", "LRT", "FullBandwidth", "FFN", REFERENCE]
    changed = [arm for arm in suite.axes["arm"] if arm not in (*steps, *others)]
    assert list(statistics.contrasts) == [f"{arm} over {REFERENCE}" for arm in changed]
    for arm, weights in zip(changed, statistics.contrasts.values(), strict=True):
        assert weights == {REFERENCE: 1, arm: -1}
    assert list(statistics.family) == [*steps, *statistics.contrasts]


def test_words_say_the_one_thing_that_an_ablation_changes() -> None:
    suite = h2()
    words = suite.statistics.groups["values"]
    assert list(words) == list(suite.axes["arm"])
    for name in suite.statistics.family:
        arm = name.partition(" ")[0]
        own = words[REFERENCE if "over" in name else "FFN"]
        differ = [choice for choice in own if words[arm][choice] != own[choice]]
        assert len(differ) == 1, name
        # And so do the options: the schedule where training differs, the route elsewhere.
        options, theirs = suite.axes["arm"][arm], suite.axes["arm"][REFERENCE]
        same = {key for key in options if options[key] == theirs[key]}
        assert same == {"model.route" if differ == ["train"] else "model.schedule"}, name


def test_the_reference_is_s3e42s_compactor_and_schedule() -> None:
    model = yaml.safe_load((ROOT / "configs" / "model" / "s3e42.yaml").read_text())["model"]
    arm = h2().axes["arm"][REFERENCE]
    assert arm["model.schedule"] == model["schedule"]
    with torch.device("meta"):
        theirs = build(merge_configs([ROOT / "configs" / "model" / "s3e42.yaml"]))[0].route
        ours = build(copy.deepcopy(configs("cpu")[REFERENCE]))[0].route
    for option in ("count", "gate", "queries", "retain", "enters", "readers", "how"):
        assert getattr(ours, option) == getattr(theirs, option)


def test_every_arm_has_the_dense_parameters_of_none_to_one_column() -> None:
    found, solved = configs("smoke"), widths("smoke")
    goal, column = counts(found["none"])["parameters"]["dense"], 3 * 16
    for arm, matched in solved.items():
        assert (matched.goal, matched.column) == (goal, column)
        parameters = counts(merge(found[arm], merge_configs([], matched.set)))["parameters"]
        assert abs(parameters["dense"] - goal) <= column / 2, arm
        matched.record(arm, parameters)
    # Two d x d maps are 2 d / 3 columns of a gated FFN, as the plan pays for them.
    for arm in ("Householder", "linear"):
        assert solved[arm].set == {HIDDEN: [48 - 11, 48]}
    assert solved["FFN"].set == {HIDDEN: [48 - 43, 48]}
    # More queries and a table of token vectors are no dense matrices.
    assert solved["gather"].set == solved["token"].set == solved["none"].set == {}
    assert solved["queries-shared"].set == solved["gate-none"].set == solved["Householder"].set
    # Queries made from the state are two d x d maps more.
    assert solved["queries-input"].set == {HIDDEN: [48 - 21, 48]}


def test_gpu_has_about_thirty_million_parameters() -> None:
    parameters = counts(configs("gpu")["none"])["parameters"]
    assert 28e6 < sum(parameters.values()) < 32e6


def priced(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prices of cells that all cost the same, but for the first FFN."""
    cost = ("tokens", "train_flops", "tokens_per_step", "train_flops_per_step")
    found = []
    for config in configs:
        hidden = config["model"]["ffn"]["init_args"]["hidden"]
        first = hidden[0] if isinstance(hidden, list) else hidden
        kinds = {"total": first, "matmul": first, "dense": first, "queries": 0, "tables": 0}
        found.append(
            {
                "config": {"model": {"blocks": config["model"]["blocks"]}},
                "hash": config_hash(config),
                "steps": config["trainer"]["max_steps"],
                "parameters": kinds,
                "decode_flops_per_token": 1,
                "cost": {},
                **dict.fromkeys(cost, 1),
            }
        )
    return found


@pytest.mark.parametrize("scale", ["smoke", "quick", "cpu", "gpu"])
@pytest.mark.parametrize("suite", [h2, panel], ids=["h2", "h2-swaps"])
def test_the_report_can_make_what_is_declared(suite: Any, scale: str) -> None:
    declared = suite()
    if scale not in declared.scales:
        assert declared is panel() and scale == "quick"
        return
    require_cells(declared)
    chosen = declared.scale(scale)
    wanted = [run for run in runs(declared, chosen) if run.seed == chosen.seeds[0]]
    plan = plans.build(declared, chosen, plans.price(declared, chosen, wanted, priced))
    require_family(plan)
    arms = {"h2": {"quick": 3, "cpu": 18}, "h2-swaps": {}}[declared.name]
    shown = arms.get(scale, {"h2": 26, "h2-swaps": 11}[declared.name])
    assert len(plan["cells"]) == shown
    assert len(plan["statistics"]["family"]) == {26: 21, 18: 13, 11: 9, 3: 0}[shown]


def test_the_panel_has_the_same_arms() -> None:
    axes = panel().axes["arm"]
    assert list(axes) == [
        *("none", "FFN", "Householder", "gather", "norm", "token", "linear"),
        *("generalised", "double", "Cayley", "delta"),
    ]
    assert all(options == h2().axes["arm"][arm] for arm, options in axes.items())
    assert panel().statistics.metric == "last_accuracy"
    assert panel().matched == h2().matched == {"arm": "none"}
