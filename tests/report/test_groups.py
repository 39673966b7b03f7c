"""An axis described by words: gains by value and by word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lrt_lab.report import suite_report
from tests.report import synthetic

WORDS = {
    "LRT": {"retain": "a block", "read": "injection"},
    "Two": {"retain": "a block", "read": "source"},
    "Three": {"retain": "the bank", "read": "source"},
}
GAINS = {"none": 0.0, "LRT": 0.02, "Two": 0.04, "Three": 0.10}


@pytest.fixture
def found(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    plan = synthetic.plan(groups={"axis": "route", "values": WORDS})
    plan["cells"], means = [], {}
    for b, backbone in enumerate(("PreNorm", "AttentionResiduals")):
        for route, gain in GAINS.items():
            cell, axes = f"{backbone}+{route}", {"backbone": backbone, "route": route}
            means[cell] = (2.2 - 0.1 * b) * 2.718281828459045 ** -(gain * (1 + b))
            plan["cells"] += [synthetic.item_of(cell, axes, None, s) for s in range(1, 6)]
            if route == "none":
                twin = {"match": "train_flops", "of": cell, "as": f"{backbone}+LRT"}
                means[f"{cell}@flops"] = 1.0
                plan["cells"] += [
                    synthetic.item_of(f"{cell}@flops", axes, twin, s) for s in range(1, 6)
                ]
    losses = synthetic.losses(plan, means, run_sd=1e-6)
    synthetic.write_runs(plan, tmp_path / "runs", losses, points=4)
    results, _ = suite_report.gather(plan, tmp_path / "runs")
    path = suite_report.publish(results, tmp_path / "report")
    return path.read_text(), results["groups"]


def test_every_value_has_its_words_and_gains(found) -> None:
    _, groups = found
    assert [row["value"] for row in groups["rows"]] == ["LRT", "Two", "Three"]
    assert groups["places"] == ["PreNorm", "AttentionResiduals"]
    for row in groups["rows"]:
        assert row["words"] == WORDS[row["value"]]
        for place, factor in (("PreNorm", 1), ("AttentionResiduals", 2)):
            gain = row["gains"][place]
            # A twin is no place of its own, and no cell to compare with.
            assert gain["point"] == pytest.approx(factor * GAINS[row["value"]], abs=1e-5)
            assert gain["low"] < gain["point"] < gain["high"]
    assert [row["flops"] for row in groups["rows"]] == [2, 1, 1]


def test_a_word_gains_the_mean_of_all_that_share_it(found) -> None:
    _, groups = found
    by_word = {(row["choice"], row["word"]): row for row in groups["words"]}
    assert list(by_word) == [
        ("retain", "a block"),
        ("retain", "the bank"),
        ("read", "injection"),
        ("read", "source"),
    ]
    assert by_word["read", "source"]["members"] == ["Two", "Three"]
    assert by_word["read", "source"]["gains"]["PreNorm"]["point"] == pytest.approx(0.07, abs=1e-5)


def test_the_section(found) -> None:
    text, _ = found
    assert "## By retain and read" in text
    assert "| Two | a block | source | 1.00 | +0.04" in text
    assert "| retain: a block | LRT, Two | +0.03" in text


def test_a_report_without_groups_has_no_such_section(tmp_path: Path) -> None:
    plan = synthetic.plan()
    synthetic.write_runs(plan, tmp_path / "runs", synthetic.losses(plan), points=2)
    results, _ = suite_report.gather(plan, tmp_path / "runs")
    assert results["groups"] is None
    assert "## By " not in suite_report.publish(results, tmp_path / "report").read_text()
