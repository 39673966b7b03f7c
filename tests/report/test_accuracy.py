"""The accuracy section: tables by cell, and gains as plain paired differences on each task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lrt_lab.analysis.square import Square
from lrt_lab.errors import UserError
from lrt_lab.report.accuracy import section, verdict
from lrt_lab.report.markdown import render
from lrt_lab.report.records import Design, Record
from lrt_lab.report.results import summarise
from lrt_lab.report.suite_runs import require_one_evaluation
from lrt_lab.report.words import verdict as opening
from lrt_lab.suite.declaration import load

ROOT = Path(__file__).parents[2]
SEEDS = (1, 2, 3, 4)
ARMS = ("plain", "LRT")
TASKS = ("s5", "parity")
#: Last accuracy by cell and seed; LRT gains .4 on s5 and nothing on parity.
SHARES = {
    "s5+plain": [0.10, 0.12, 0.00, 0.11],
    "s5+LRT": [0.50, 0.53, 0.47, 0.52],
    "parity+plain": [0.90, 0.80, 0.85, 0.88],
    "parity+LRT": [0.85, 0.86, 0.84, 0.87],
}


def scored(share: float) -> dict[str, float]:
    return {"loss": 1 - share, "accuracy": share, "last_accuracy": share, "exact_match": share / 2}


def record(cell: str, seed: int, share: float) -> Record:
    task = cell.split("+")[0]
    low = scored(share / 10)
    test: dict[str, Any] = {
        "rows": 8,
        "tokens": 128,
        "sha256": task * 20,
        "exact": scored(share),
        "last_pass": scored(share - 0.05),
        "longer": {"rows": 8, "exact": low, "last_pass": low},
    }
    return Record(cell, seed, loss=1 - share, final={"test": test}, meta={"data": {"task": task}})


def records() -> list[Record]:
    return [
        record(cell, seed, share)
        for cell, shares in SHARES.items()
        for seed, share in zip(SEEDS, shares, strict=True)
    ]


def design(**options: Any) -> Design:
    given = {
        "name": "tasks",
        "axes": {"arm": ARMS, "task": TASKS},
        "cells": {f"{task}+{arm}": {"task": task, "arm": arm} for task in TASKS for arm in ARMS},
        "square": None,
        "square_axes": ("arm",),
        "baseline": "s5+plain",
        "seeds": SEEDS,
        "margin": 0.05,
        "metric": "last_accuracy",
    }
    return Design(**{**given, **options})


def test_gains_are_paired_differences_within_a_task() -> None:
    results = summarise(design(), records())
    gains = results["accuracy"]["gains"]
    assert [(row["place"], row["name"]) for row in gains] == [
        ("s5", "s5+LRT"),
        ("parity", "parity+LRT"),
    ]
    for row in gains:
        d = np.subtract(SHARES[row["name"]], SHARES[row["place"] + "+plain"])
        expected = stats.ttest_1samp(d, 0)
        assert row["point"] == pytest.approx(d.mean())
        assert row["p"] == pytest.approx(expected.pvalue)
        interval = expected.confidence_interval()
        assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
    assert gains[0]["p_holm"] == pytest.approx(2 * gains[0]["p"])
    # No effect in ln loss is told beside them.
    assert results["family"] == [] and results["square"] is None


def test_the_section_shows_every_reading_and_every_seed() -> None:
    results = summarise(design(), records())
    text = "\n".join(section(results))
    assert "bits" not in text
    row = next(line for line in text.splitlines() if line.startswith("| s5+LRT | 0.505"))
    assert "| 0.455 [" in row and "| 0.051 [" in row and row.endswith("| 0.500 0.530 0.470 0.520 |")
    for words in ("last position", "over all positions", "rows right at every position"):
        assert words in text.lower()
    said = verdict(results)
    words = "last position, exact recurrence, over plain where no other is named, 95% intervals"
    assert words in said[0]
    assert said[1].startswith("**s5**: gain shown: s5+LRT (+0.42")
    assert said[2].startswith("**parity**: neither shown: parity+LRT (")
    assert opening(results) == said


def test_a_square_gives_gains_and_their_interaction() -> None:
    cells = tuple(SHARES)
    square = Square("s5", "parity", "plain", "LRT", cells)
    found = design(square=square, square_axes=("task", "arm"), baseline=None)
    gains = {row["name"]: row for row in summarise(found, records())["accuracy"]["gains"]}
    d = {task: np.subtract(SHARES[f"{task}+LRT"], SHARES[f"{task}+plain"]) for task in TASKS}
    assert gains["gain_base"]["point"] == pytest.approx(d["s5"].mean())
    assert gains["gain_improved"]["point"] == pytest.approx(d["parity"].mean())
    assert gains["interaction"]["point"] == pytest.approx((d["parity"] - d["s5"]).mean())


def test_by_loss_the_tables_are_shown_and_no_gain() -> None:
    results = summarise(design(metric="loss"), records())
    assert results["accuracy"]["gains"] == [] and results["family"]
    assert "### Gains" not in "\n".join(section(results))
    assert "No 2x2" in opening(results)[0]


def test_a_difference_of_nothing_is_not_shown() -> None:
    same = [record(cell, seed, 0.0) for cell in SHARES for seed in SEEDS]
    results = summarise(design(), same)
    assert results["accuracy"]["gains"][0]["p_holm"] is None
    assert "neither shown: s5+LRT" in verdict(results)[1]


def test_text_has_no_accuracy() -> None:
    plain = [Record("s5+plain", 1, loss=1.0, final={"test": {"bytes": 9, "exact": {"loss": 1.0}}})]
    results = summarise(design(metric="loss"), plain)
    assert results["accuracy"] is None and section(results) == []


def test_several_tasks_are_no_mixed_data() -> None:
    assert "Mixed data" not in render(summarise(design(), records()))


def test_each_task_has_one_slice() -> None:
    found = records()
    require_one_evaluation(found)
    found[0].final["test"]["sha256"] = "other"
    with pytest.raises(UserError, match="different bytes"):
        require_one_evaluation(found)


def test_a_suite_says_what_it_compares(tmp_path: Path) -> None:
    suite = load(ROOT / "experiments" / "tasks.yaml")
    assert suite.statistics.metric == "last_accuracy"
    assert load(ROOT / "experiments" / "h1.yaml").statistics.metric == "loss"
    wrong = (ROOT / "experiments" / "tasks.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(wrong.replace("last_accuracy", "lost_accuracy"))
    with pytest.raises(UserError, match="lost_accuracy"):
        load(tmp_path / "wrong.yaml")


def test_a_primary_contrast_that_the_family_leaves_out_stands_alone() -> None:
    """Three arms on one task: LRT is asked first, the copy of it belongs to the family."""
    shares = {"plain": SHARES["s5+plain"], "LRT": SHARES["s5+LRT"], "copy": SHARES["s5+LRT"]}
    runs = [
        record(cell, seed, share)
        for cell, found in shares.items()
        for seed, share in zip(SEEDS, found, strict=True)
    ]
    cells = {cell: {"arm": cell} for cell in shares}
    made = design(axes={"arm": list(cells)}, cells=cells, baseline="plain", primary="LRT")
    together = summarise(made, runs)
    assert not together["accuracy"]["alone"]
    alone = summarise(replace(made, family=("copy",)), runs)
    assert alone["accuracy"]["alone"]
    found = {row["name"]: row for row in alone["accuracy"]["gains"]}
    assert found["LRT"]["p_holm"] == found["LRT"]["p"] == found["copy"]["p_holm"]
    doubled = {row["name"]: row for row in together["accuracy"]["gains"]}["LRT"]
    assert doubled["p_holm"] == pytest.approx(2 * doubled["p"])
    said = verdict(alone)
    assert said[0].startswith("LRT over plain: gain shown (+0.4")
    assert said[0].endswith("in accuracy at the last position).")
    assert ", over plain where no other is named, 95% intervals over seeds;" in said[1]
    assert said[1].endswith("is below 0.05; the primary contrast stands alone.")
