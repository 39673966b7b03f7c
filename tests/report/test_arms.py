"""Designs with arms: the verdict in each truth, ablations under Holm, outcomes, costs, figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrt_lab.analysis.multiplicity import holm
from lrt_lab.errors import UserError
from lrt_lab.report import arms, suite_report
from lrt_lab.report.arm_tables import apart
from lrt_lab.report.figures import arms as figures
from lrt_lab.report.figures import passes, style
from lrt_lab.report.figures.style import Look
from lrt_lab.report.markdown import render
from lrt_lab.report.results import summarise
from lrt_lab.report.suite_runs import design_of, record_of
from lrt_lab.report.words import opening, verdict
from tests.report import synthetic

#: Gains in ln loss over no route.
GAINS = {
    "none": 0.0,
    "LRT": 0.03,
    "ffn": 0.02,
    "reflection": 0.05,
    "raw": -0.02,
    "linear": 0.0201,
    "slots-4": 0.08,
    "detached": 0.01,
}
KINDS = {"dense": 200_000, "queries": 500, "tables": 16_448}


def final(item: dict[str, Any], loss: float) -> dict[str, Any]:
    """A record with a curve for every arm, kinds of parameters and what is carried."""
    arm = item["axes"]["arm"]
    found = synthetic.final(item, loss)
    last = loss / math.log(2)
    bpb = [last * (1 if arm == "none" else 1 + 0.1 * 2.0**-k) for k in range(16)]
    found["curve"] = {
        "bytes": 32768,
        "sha256": "e" * 64,
        "passes": list(range(1, 17)),
        "bpb": bpb,
        "mean_4_16": sum(bpb[3:]) / 13,
        "exact_bpb": last,
    }
    found["parameters"] = {**item["parameters"], **KINDS}
    found["cost"] = {"decode_flops_per_token": 1234.0}
    if arm != "none":
        slots = 1 if arm == "LRT" else 4 if arm == "slots-4" else 2
        shares = [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]] * 2
        found["carried"] = {
            "positions": 508,
            "rank": 7.5,
            "width": 64,
            "cosine": 0.1,
            "position": [3.5, 11.5],
            "size": [[0.0, 1.0 + slot] for slot in range(slots)],
            "sources": None if arm == "LRT" else ["embedding", "slot 0", "unit 0"],
            "weights": None if arm == "LRT" else shares[:slots],
        }
    return found


def told(
    gains: dict[str, float],
    seeds: int = 5,
    noise: float = 2e-4,
    scale: str = "gpu",
    lost: tuple[str, ...] = (),
    **statistics: Any,
) -> tuple[str, dict[str, Any]]:
    """The verdict of a suite with these gains, and its results."""
    plan = synthetic.arms(seeds=range(1, seeds + 1))
    plan["scale"] = scale
    plan["statistics"] |= {"margin": 0.002, **statistics}
    means = {arm: 2.2 * math.exp(-gain) for arm, gain in {**GAINS, **gains}.items()}
    losses = synthetic.losses(plan, means, run_sd=noise)
    records = []
    for item in plan["cells"]:
        record = final(item, losses[item["folder"]])
        if f"{item['cell']}/{item['seed']}" in lost:
            record |= {"status": "diverged", "test": None, "curve": None, "last_finite_loss": 3.0}
        files = {"DONE": True, "final.json": record, "meta.json": synthetic.meta(item, plan)}
        records.append(record_of(item, plan, files.get))
    results = summarise(design_of(plan), records)
    return "\n".join(verdict(results)), results


TRUTHS = {
    "solid and better": ({}, "supported", "H2 supported: reflection is better than ffn (gain +0.0"),
    "solid and worse": (
        {"reflection": 0.0},
        "reversed",
        "H2 refuted (reversed): reflection is worse than ffn (gain -0.0",
    ),
    "solid and alike": (
        {"reflection": 0.02},
        "equivalent",
        "H2 refuted (equivalent): reflection and ffn differ by less than the margin of 0.002",
    ),
    "solid and hardly better": (
        {"reflection": 0.0209},
        "negligible",
        "Real but negligible: reflection is better than ffn, but by less than the margin",
    ),
    "no gain of the baseline": (
        {"ffn": -0.0002},
        "not solid",
        "Baseline not solid: the gain of ffn over none is not shown (",
    ),
    "a harmful baseline": (
        {"ffn": -0.02},
        "not solid",
        "Baseline not solid: the gain of ffn over none is negative (-0.01",
    ),
}


@pytest.mark.parametrize(("gains", "reading", "words"), TRUTHS.values(), ids=TRUTHS.keys())
def test_each_truth_has_its_own_words(gains, reading: str, words: str) -> None:
    text, results = told(gains)
    assert results["arms"]["primary"]["reading"] == reading
    assert text.startswith(words)
    solid = results["arms"]["solid"]
    assert solid["shown"] == (reading != "not solid") == (solid["low"] > 0)
    if reading == "not solid":
        assert "so a difference from it says nothing about H2. The difference itself: refl" in text
        assert "The baseline is not solid: the gain of ffn over none is" in text
    else:
        assert "The baseline is solid: the gain of ffn over none is shown (+0.02" in text


def test_noise_is_inconclusive_and_asks_for_seeds() -> None:
    text, results = told({"reflection": 0.2015, "ffn": 0.2}, noise=0.004)
    assert results["arms"]["primary"]["reading"] == "inconclusive"
    assert text.startswith("Inconclusive: the runs neither show a difference between reflection")
    assert "further seeds would show a difference of that size" in text


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "Verdict withheld: complete are 1 of 1 planned pair blocks"),
        (3, "Pilot, no verdict: 3 pair blocks, fewer than 5. The intervals so far would read: H2"),
    ],
)
def test_few_seeds_give_no_verdict(seeds: int, words: str) -> None:
    text, _ = told({}, seeds=seeds)
    assert text.startswith(words)


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_a_small_scale_says_its_size_first_and_its_reach_last(scale: str) -> None:
    _, results = told({}, scale=scale)
    small = scale == "cpu"
    for said in (verdict(results), opening(results)):
        assert said[0].startswith("At 260,000 parameters and 512,000 bytes: H2 supp") == small
        assert said[-1].endswith("This says nothing about larger models.") == small
    assert len(opening(results)) == 2


class TestAblations:
    def test_holm_is_over_the_ablations_alone(self) -> None:
        _, results = told({})
        rows = {row["name"]: row for row in results["arms"]["ablations"]}
        assert list(rows) == ["raw", "linear", "slots-4 over reflection", "detached"]
        adjusted = holm(np.array([row["p"] for row in rows.values()]))
        assert [row["p_holm"] for row in rows.values()] == pytest.approx(list(adjusted))
        assert results["arms"]["alone"]

    def test_each_has_its_reference_and_what_it_changes(self) -> None:
        _, results = told({})
        rows = {row["arm"]: row for row in results["arms"]["ablations"]}
        assert {arm: row["reference"] for arm, row in rows.items()} == {
            "raw": "ffn",
            "linear": "ffn",
            "slots-4": "reflection",
            "detached": "ffn",
        }
        assert rows["slots-4"]["changes"] == {"retain": ["two slots", "four slots"]}
        assert {arm: row["group"] for arm, row in rows.items()} == {
            "raw": "change",
            "linear": "change",
            "slots-4": "retain",
            "detached": "train",
        }
        assert rows["slots-4"]["point"] == pytest.approx(0.03, abs=1e-3)
        assert rows["raw"]["point"] == pytest.approx(-0.04, abs=1e-3)

    def test_the_verdict_names_what_is_shown(self) -> None:
        text, _ = told({})
        line = next(line for line in text.splitlines() if line.startswith("Ablations, by Holm's p"))
        assert "over all 4: shown to be better: slots-4 over reflection (+0.0" in line
        assert "shown to be worse: raw over ffn (-0.04" in line
        assert "no difference is shown for 1 of 4." in line

    def test_the_table_is_in_groups_with_the_others_beside_it(self) -> None:
        _, results = told({})
        text = render({**results, "figures": []}).split("## Ablations")[1].split("##")[0]
        firsts = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
        assert firsts == [
            "arm",
            "**retain**",
            "slots-4",
            "**change**",
            "raw",
            "linear",
            "**train**",
            "detached",
            "**beside them**, uncorrected",
            "none",
            "LRT",
        ]
        assert "| linear | ffn | FFN | linear map | +0.0" in text
        assert "## Declared family" not in render({**results, "figures": []})

    def test_what_changes_several_choices_is_a_group_of_its_own(self) -> None:
        words = {name: dict(told) for name, told in synthetic.WORDS.items()}
        words["raw"]["train"] = "two passes"
        _, results = told({}, groups={"axis": "arm", "values": words})
        assert results["arms"]["ablations"][0]["group"] == arms.OTHER

    def test_shared_parts_of_two_descriptions_are_left_out(self) -> None:
        assert apart("two slots, shared queries", "one slot, shared queries") == (
            "two slots",
            "one slot",
        )
        for told in (("reflection", "reflection, table"), ("FFN", "none")):
            assert apart(*told) == told

    def test_without_ablations_there_is_no_table_of_them(self) -> None:
        text, results = told({}, family=[], contrasts={})
        assert results["arms"]["ablations"] == results["family"] == []
        assert "## Ablations" not in render({**results, "figures": []})
        assert "Ablations" not in text


def test_outcomes_are_pass_4_the_mean_to_16_and_the_recurrence() -> None:
    _, results = told({})
    found = results["arms"]["outcomes"]
    assert [one["name"] for one in found] == [
        "pass 4",
        "mean of passes 4 to 16",
        "token recurrence",
    ]
    gains = {
        one["name"]: {row["cell"]: row["gain"] and row["gain"]["point"] for row in one["rows"]}
        for one in found
    }
    for by_cell in gains.values():
        assert set(by_cell) == set(GAINS)
        assert by_cell["ffn"] is None
        # Curves of two routed arms are proportional, so their difference is the same everywhere.
        assert by_cell["reflection"] == pytest.approx(gains["token recurrence"]["reflection"])
    short = math.log(1 + 0.1 / 8)
    assert gains["pass 4"]["none"] == pytest.approx(gains["token recurrence"]["none"] + short)
    text = render({**results, "figures": []}).split("## Outcomes")[1].split("##")[0]
    assert "scored on the curve's slice of 32,768 bytes, the token recurrence on the whole" in text


def test_without_curves_the_recurrence_is_the_only_outcome() -> None:
    plan = synthetic.arms()
    losses = synthetic.losses(plan, dict.fromkeys(GAINS, 2.0))
    records = []
    for item in plan["cells"]:
        record = {**final(item, losses[item["folder"]]), "curve": None}
        records.append(record_of(item, plan, {"DONE": True, "final.json": record}.get))
    found = summarise(design_of(plan), records)
    assert [one["name"] for one in found["arms"]["outcomes"]] == ["token recurrence"]
    assert "By pass" not in "".join(verdict(found))


def test_costs_are_told_beside_the_baseline() -> None:
    text, results = told({})
    rows = {row["cell"]: row for row in results["arms"]["costs"]}
    assert rows["raw"]["dense"] == KINDS["dense"]
    assert rows["LRT"]["train_flops"] == 2 * rows["ffn"]["train_flops"]
    page = render({**results, "figures": []})
    assert "| LRT | +0 | 2.00 | 1,234 | 1.00 |" in page.split("## Costs")[1]
    assert "| 269,000 | 200,000 | 500 | 16,448 |" in page.split("## Cells")[1]
    assert "Training FLOPs as a multiple of ffn's: reflection 1.00 and none 1.00." in text


def test_without_ablations_there_is_one_figure_over_passes() -> None:
    _, results = told({}, family=[], contrasts={})
    with style.style():
        assert figures.by_pass(results, [], Look(results)) is None
        assert passes.passes(results, [], Look(results)) is not None
        assert "reflection 1.00, 2.00" in figures.slots(results, [], Look(results)).alt


def test_tuning_seeds_say_what_the_default_would_have_shown() -> None:
    results = TestDefaultRate.results((), {})
    assert results["rates"]["gain"] == {
        "best": pytest.approx(0.03, abs=1e-9),
        "default": pytest.approx(-0.01, abs=1e-9),
    }
    said = (
        "the gain of reflection over ffn is +0.0300 at the best rates and -0.0100 with the default"
    )
    assert said in render({**results, "figures": []})


def test_a_diverged_run_is_scored_in_a_line_of_its_own() -> None:
    _, results = told({}, seeds=6, lost=("reflection/2",))
    found = results["arms"]
    assert (found["primary"]["n"], found["sensitivity"]["n"]) == (5, 6)
    assert found["sensitivity"]["point"] < found["primary"]["point"]
    page = render({**results, "figures": []})
    assert "With diverged runs scored at their last finite loss: " in page


class TestDefaultRate:
    """The primary contrast at the default of the tuned key."""

    @staticmethod
    def results(defaults: tuple[str, ...], same: dict[str, str]) -> dict[str, Any]:
        plan = synthetic.arms()
        for arm in defaults:
            for seed in range(1, 6):
                item = synthetic.item_of(f"{arm}@default", {"arm": arm}, None, seed)
                plan["cells"].append({**item, "at_default": True})
        plan["same"] = same

        def chosen(arm: str) -> dict[str, Any]:
            """The reflection is best at 2 x, .03 better than the others, and .01 worse at 1 x."""
            own = {"1": 0.01, "2": -0.03} if arm == "reflection" else {"1": 0.0, "2": 0.2}
            factor = 2 if arm == "reflection" else 1
            losses = {f: [2 * math.exp(y)] * 2 for f, y in {"0.5": 0.3, **own, "4": 0.4}.items()}
            return {"factor": factor, "inside": True, "losses": losses}

        plan["tuning"] = {
            "key": "lr",
            "seeds": [101, 102],
            "outcome": "exact",
            "inputs": "",
            "cells": {arm: chosen(arm) for arm in GAINS},
        }
        means = {arm: 2.2 * math.exp(-gain) for arm, gain in GAINS.items()}
        means |= {f"{arm}@default": 1.01 * means[arm] for arm in defaults}
        losses = synthetic.losses(plan, means, run_sd=1e-5)
        records = [
            record_of(
                item,
                plan,
                {"DONE": True, "final.json": final(item, losses[item["folder"]])}.get,
            )
            for item in plan["cells"]
        ]
        return summarise(design_of(plan), records)

    def test_a_cell_tuned_to_the_default_stands_for_itself(self) -> None:
        results = self.results(("reflection",), {"ffn@default": "ffn"})
        found = results["arms"]["at_default"]
        assert found["cells"] == ["ffn", "reflection@default"]
        assert found["point"] == pytest.approx(0.03 - math.log(1.01), abs=1e-4)
        page = render({**results, "figures": []})
        assert "reflection over ffn, at the default learning rate" in page
        assert "Tuning chose the default for `ffn`: they are not run again at it" in page

    @pytest.mark.parametrize(
        ("defaults", "same"),
        [((), {}), ((), {"ffn@default": "ffn", "reflection@default": "reflection"})],
        ids=["never-run", "tuned-to-the-default"],
    )
    def test_there_may_be_nothing_else_to_compare(self, defaults, same) -> None:
        assert self.results(defaults, same)["arms"]["at_default"] is None


class TestRefusedBeforeRuns:
    def test_a_primary_contrast_that_is_none(self) -> None:
        plan = synthetic.arms()
        plan["statistics"]["primary"] = "rotation"
        with pytest.raises(UserError, match=r"primary is 'rotation', which is no contrast"):
            arms.require(design_of(plan))

    def test_a_scale_without_what_the_baseline_must_beat(self) -> None:
        plan = synthetic.arms()
        plan["cells"] = [item for item in plan["cells"] if item["cell"] != "none"]
        with pytest.raises(UserError, match="compares the baseline with none, which scale cpu"):
            arms.require(design_of(plan))

    def test_what_is_right_passes(self) -> None:
        arms.require(design_of(synthetic.arms()))
        arms.require(design_of(synthetic.plan()))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Path]:
    root = tmp_path_factory.mktemp("arms")
    plan = synthetic.arms()
    means = {arm: 2.2 * math.exp(-gain) for arm, gain in GAINS.items()}
    losses = synthetic.losses(plan, means)
    folder = synthetic.write_runs(plan, root / "runs", losses, points=4)
    for item in plan["cells"]:
        path = folder / item["folder"] / "final.json"
        path.write_text(json.dumps(final(item, losses[item["folder"]])))
    suite_report.write(plan, root / "runs", root / "report")
    return root, plan, root / "report"


def test_what_is_carried_is_said_by_cell(written) -> None:
    _, _, report = written
    text = (report / "report.md").read_text().split("## What is carried")[1].split("##")[0]
    assert (
        "| ffn | 7.5 of 64 | 0.10 | 1.00; 2.00 | embedding .50, slot 0 .30; unit 0 .80, "
        "embedding .10 |" in text
    )
    assert "| LRT | 7.5 of 64 | 0.10 | 1.00 | - |" in text
    assert "| none |" not in text


def test_a_report_rebuilt_from_the_same_records_is_byte_identical(written, tmp_path: Path) -> None:
    root, plan, report = written
    suite_report.write(plan, root / "runs", tmp_path / "again")
    files = sorted(p.relative_to(report) for p in report.rglob("*") if p.is_file())
    assert files
    for file in files:
        assert (report / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file


def test_the_figures_are_written_and_say_their_numbers(written) -> None:
    _, _, report = written
    results = json.loads((report / "results.json").read_text())
    alts = {figure["name"]: figure["alt"] for figure in results["figures"]}
    for name, words in {
        "ablations": "retain: slots-4 over reflection +0.03",
        "by-pass": "exact",
        "slots": "slots-4 1.00, 2.00, 3.00, 4.00",
        "sources": "ffn, slot 1: unit 0 .80, embedding .10",
        "rank": "raw 7.5",
    }.items():
        assert words in alts[name]
        assert all((report / "figures" / f"{name}.{kind}").is_file() for kind in ("svg", "png"))
    # The forest of one baseline's gains and the curves of all cells would say it again.
    assert not {"variants", "passes"} & set(alts)
    assert "raw" not in alts["loss-tokens"] and "LRT" in alts["loss-tokens"]


def test_panels_are_the_main_arms_and_each_group_behind_its_reference(written) -> None:
    _, _, report = written
    assert figures.grouped(json.loads((report / "results.json").read_text())) == {
        figures.MAIN: ["ffn", "reflection", "none", "LRT"],
        "retain, from reflection": ["reflection", "slots-4"],
        "change, from ffn": ["ffn", "raw", "linear"],
        "train, from ffn": ["ffn", "detached"],
    }
