"""Simulated truths, through the whole loader, each with its own words."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from lrt_lab.report.numbers import decimals, interval, p, signed
from lrt_lab.report.results import summarise
from lrt_lab.report.suite_runs import design_of, record_of
from lrt_lab.report.words import verdict
from tests.report import synthetic

CELLS = list(synthetic.CELLS)
QUIET = {"seed_sd": 0.004, "run_sd": 2e-4}


def opening(
    means: tuple[float, float, float, float],
    flops: tuple[float, float] = (0.005, 0.005),
    seeds: int = 5,
    scale: str = "gpu",
    **statistics: Any,
) -> tuple[str, dict[str, Any]]:
    """The verdict of a suite whose ln losses are P0, P1, A0, A1; twins: the gain of training
    longer.
    """
    plan = synthetic.plan(seeds=range(1, seeds + 1), margin=0.002, **statistics)
    plan["scale"] = scale
    levels = dict(zip(CELLS, means, strict=True))
    for base, gain in zip((CELLS[0], CELLS[2]), flops, strict=True):
        levels[f"{base}@flops"] = levels[base] - gain
    losses = synthetic.losses(
        plan, {cell: 2.2 * math.exp(y) for cell, y in levels.items()}, **QUIET
    )
    records = []
    for item in plan["cells"]:
        files = {
            "DONE": True,
            "final.json": synthetic.final(item, losses[item["folder"]]),
            "meta.json": synthetic.meta(item, plan),
        }
        records.append(record_of(item, plan, files.get))
    results = summarise(design_of(plan), records)
    return "\n".join(verdict(results)), results


TRUTHS = {
    "both gain and I > 0": (
        (0, -0.01, -0.03, -0.06),
        "H1 supported on the primary scale: LRT gains on both backbones, and the two improvements "
        "more than multiply",
    ),
    "one gain and I > 0": (
        (0, 0.0, -0.03, -0.06),
        "Qualitative interaction, H1 not shown: LRT gains on AttentionResiduals only, and I is "
        "above 0",
    ),
    "a gain and a harm, I > 0": (
        (0, 0.02, -0.03, -0.06),
        "Qualitative interaction, H1 not shown: LRT gains on AttentionResiduals and harms PreNorm",
    ),
    "both harmful and I > 0": (
        (0, 0.03, -0.03, -0.01),
        "Qualitative interaction, H1 not shown: LRT harms both backbones, AttentionResiduals less",
    ),
    "A0 = P1 = A1": (
        (0, -0.03, -0.03, -0.03),
        "Substitution or ceiling: cannot tell at this scale. AttentionResiduals and LRT each "
        "alone reach what both "
        "together reach, within the margin of 0.002",
    ),
    "both gain and I = 0": (
        (0, -0.02, -0.03, -0.05),
        "H1 refuted (equivalent): the two improvements multiply, I is 0 within the margin of 0.002",
    ),
    "both gain and I < 0": (
        (0, -0.03, -0.03, -0.045),
        "H1 refuted (reversed): the relative gain of LRT is smaller on AttentionResiduals than on "
        "PreNorm",
    ),
    "both gain and I > 0 but tiny": (
        (0, -0.02, -0.03, -0.0509),
        "Real but negligible: the relative gain of LRT is larger on AttentionResiduals than on "
        "PreNorm, but by less",
    ),
}


class TestBetterAloneThanTogether:
    def test_beyond_the_margin_it_is_reversed_and_says_what_the_other_costs(self) -> None:
        text, results = opening((0, -0.0685, -0.024, -0.034))
        assert results["budgets"]["tokens"]["reading"] == "reversed"
        assert "ubstitution" not in text
        said = r"LRT alone does better than both together by 0\.03\d+ \[0\.03\d+, 0\.03\d+\] in ln "
        assert re.search(said + "loss: adding AttentionResiduals to it costs\\.", text)

    def test_within_the_margin_it_is_substitution(self) -> None:
        text, _ = opening((0, -0.03, -0.02, -0.029))
        assert (
            "cannot tell at this scale. LRT alone reaches what both together reach, within" in text
        )
        assert "costs" not in text

    def test_where_the_interval_straddles_the_margin_both_are_left_open(self) -> None:
        text, results = opening((0, -0.03, -0.02, -0.028))
        assert results["budgets"]["tokens"]["reading"] == "substitution"
        assert (
            "LRT alone reaches what both together reach; whether more, by above the margin of "
            "0.002, cannot be told" in text
        )

    def test_at_matched_flops_too(self) -> None:
        text, results = opening((0, -0.05, -0.03, -0.08), flops=(0.005, 0.06))
        flops = results["budgets"]["train_flops"]
        assert (flops["reading"], flops["better_alone"]["improvement"]) == ("reversed", True)
        last = text.splitlines()[-1]
        assert last.startswith("At matched training FLOPs: H1 refuted (reversed)")
        assert "AttentionResiduals alone does better than both together by 0.01" in last
        assert "adding LRT to it costs." in last


@pytest.mark.parametrize(("means", "words"), TRUTHS.values(), ids=TRUTHS.keys())
def test_each_truth_has_its_own_words(means, words: str) -> None:
    text, _ = opening(means)
    assert words in text


def test_every_truth_is_told_apart() -> None:
    assert len({words for _, words in TRUTHS.values()}) == len(TRUTHS)


class TestMatchedFlops:
    def test_gains_that_hold_are_not_put_first(self) -> None:
        text, _ = opening((0, -0.01, -0.03, -0.06), flops=(0.002, 0.002))
        assert text.startswith("H1 supported")
        assert "At matched training FLOPs: H1 supported" in text
        assert "At matched training FLOPs: the gain of LRT, relative, is shown on PreNorm" in text

    @pytest.mark.parametrize(
        ("flops", "words"),
        [
            ((0.03, 0.002), "is negative on PreNorm ("),
            ((0.03, 0.05), "is negative on PreNorm ("),
            ((0.01, 0.01), "on PreNorm ("),
        ],
        ids=["one-negative", "both-negative", "nil"],
    )
    def test_gains_that_vanish_are_the_first_sentence(self, flops, words: str) -> None:
        text, _ = opening((0, -0.01, -0.03, -0.06), flops=flops)
        first = text.splitlines()[0]
        assert first.startswith("At matched training FLOPs the gain of LRT is ")
        assert words in first
        assert ("on AttentionResiduals (" in first) is (flops[1] > 0.03)


@pytest.mark.parametrize(("seeds", "pilot"), [(3, True), (4, True), (5, False)])
def test_fewer_than_five_blocks_are_a_pilot(seeds: int, pilot: bool) -> None:
    text, _ = opening((0, -0.01, -0.03, -0.06), seeds=seeds)
    assert text.startswith("Pilot, no verdict") is pilot


def test_noise_is_inconclusive_and_asks_for_seeds() -> None:
    plan = synthetic.plan(margin=0.002)
    means = {**synthetic.PILOT, CELLS[3]: 2.2 * math.exp(-0.0371 - 0.0347)}
    losses = synthetic.losses(plan, means, run_sd=0.004, seed=3)
    records = [
        record_of(i, plan, {"DONE": 1, "final.json": synthetic.final(i, losses[i["folder"]])}.get)
        for i in plan["cells"]
    ]
    text = "\n".join(verdict(summarise(design_of(plan), records)))
    assert "inconclusive: the runs neither show an interaction nor exclude one" in text.lower()
    assert "further seeds would show an interaction of that size with 80% chance" in text


@pytest.mark.parametrize(("seeds", "asked"), [(2, False), (3, True)])
def test_two_seeds_say_nothing_about_further_ones(seeds: int, asked: bool) -> None:
    plan = synthetic.plan(seeds=range(1, seeds + 1), margin=0.002)
    means = {**synthetic.PILOT, CELLS[3]: 2.2 * math.exp(-0.0371 - 0.0347)}
    losses = synthetic.losses(plan, means, run_sd=0.004, seed=3)
    records = [
        record_of(i, plan, {"DONE": 1, "final.json": synthetic.final(i, losses[i["folder"]])}.get)
        for i in plan["cells"]
    ]
    results = summarise(design_of(plan), records)
    assert results["budgets"]["tokens"]["reading"] == "inconclusive"
    assert ("further seed" in "\n".join(verdict(results))) is asked


def test_support_on_every_scale_needs_four_scales_that_agree(tmp_path: Path) -> None:
    """A third budget gives the compute multiplier, a floor the log excess: then, and only then, all
    four.
    """
    means = (0, -0.01, -0.03, -0.06)
    text, results = opening(means, floor=[0.5])
    assert "supported on the primary scale:" in text
    assert list(results["budgets"]["tokens"]["interaction"]["scales"]) == [
        "ln loss",
        "absolute",
        "log excess over E = 0.5",
    ]


@pytest.mark.parametrize("scale", ["smoke", "quick", "cpu", "gpu", "paper"])
def test_a_small_scale_says_its_size_first_and_its_reach_last(scale: str) -> None:
    lines = opening((0, -0.01, -0.03, -0.06), flops=(0.002, 0.002), scale=scale)[0].splitlines()
    size = "At 269,000 parameters and 512,000 bytes: H1 supported"
    small = scale in ("smoke", "quick", "cpu")
    assert lines[0].startswith(size) is small
    assert lines[-1].endswith("This says nothing about larger models.") is small
    assert sum("larger models" in line for line in lines) == small


def test_a_suite_of_another_name_speaks_of_the_hypothesis() -> None:
    plan = {**synthetic.plan(), "suite": "widths"}
    losses = synthetic.losses(plan)
    records = [
        record_of(i, plan, {"DONE": 1, "final.json": synthetic.final(i, losses[i["folder"]])}.get)
        for i in plan["cells"]
    ]
    text = "\n".join(verdict(summarise(design_of(plan), records)))
    assert "H1" not in text
    assert "the hypothesis refuted" in text.lower()


@pytest.mark.parametrize(
    ("half", "expected"),
    [(0.0098, 4), (0.012, 3), (0.5, 2), (30.0, 2), (1e-9, 7), (None, 4), (0.0, 4)],
)
def test_as_many_decimals_as_the_interval_deserves(half: float | None, expected: int) -> None:
    assert decimals(half) == expected


def test_how_numbers_are_printed() -> None:
    assert interval({"point": 0.0347, "low": 0.0247, "high": 0.0447}) == "+0.035 [+0.025, +0.045]"
    assert interval({"point": 0.01, "low": None, "high": None}) == "+0.010000"
    assert signed(-0.00001, 3) == "+0.000"
    assert (p(0.0625), p(0.5), p(1e-9), p(None)) == ("0.0625", "0.500", "< 0.0001", "-")
