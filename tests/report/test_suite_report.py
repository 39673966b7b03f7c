"""The suite's report, from run folders to Markdown: finished, unfinished, diverged, changed, and
rebuilt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrt_lab.errors import UserError
from lrt_lab.report.figures import drawn, passes, style
from lrt_lab.report.markdown import render
from lrt_lab.report.suite_report import gather, write
from tests.report import synthetic

CELLS = list(synthetic.CELLS)


def report(tmp_path: Path, plan: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Text and numbers, without the time that figures take."""
    results = json.loads(json.dumps(gather(plan, tmp_path / "runs")[0]))
    return render(results), results


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """A finished suite with its report."""
    folder = tmp_path_factory.mktemp("whole")
    plan = synthetic.plan()
    synthetic.write_runs(plan, folder / "runs")
    path = write(plan, folder / "runs", folder / "report")
    return folder, path.read_text(), json.loads((folder / "report" / "results.json").read_text())


def folder_of(plan: dict[str, Any], tmp_path: Path, cell: str, seed: int) -> Path:
    item = next(i for i in plan["cells"] if (i["cell"], i["seed"]) == (cell, seed))
    return tmp_path / "runs" / plan["suite"] / plan["scale"] / item["folder"]


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_parameters_by_kind_where_runs_say_them(tmp_path: Path) -> None:
    plan = synthetic.plan()
    kinds = {"dense": 200_001, "queries": 50_002, "tables": 9_003}
    for item in plan["cells"]:
        item["parameters"] |= kinds
    synthetic.write_runs(plan, tmp_path / "runs")
    text, results = report(tmp_path, {**plan, "matched": {"route": "none"}})
    assert all(cell["kinds"] == kinds for cell in results["cells"])
    assert "| dense | queries, biases, gains | lookup tables |" in text
    assert "| 200,001 | 50,002 | 9,003 |" in text
    assert "All cells have the dense parameters of none, to one column" in text


class TestFinished:
    def test_the_verdict_comes_first_and_its_first_sentence_is_about_flops(self, whole) -> None:
        _, text, _ = whole
        opening = text.split("## Planned and run")[0]
        assert opening.splitlines()[2] == "## Verdict"
        first = opening.splitlines()[4]
        assert first.startswith(
            "At 269,000 parameters and 512,000 bytes: at matched training FLOPs the gain of LRT is "
            "not positive on PreNorm"
        )
        assert opening.rstrip().endswith("This says nothing about larger models.")
        assert "substitution or ceiling: cannot tell at this scale" in opening.lower()

    def test_the_numbers_are_those_of_the_runs(self, whole) -> None:
        _, _, results = whole
        plan = synthetic.plan()
        losses = synthetic.losses(plan)
        by_cell = {
            cell: np.log([losses[i["folder"]] for i in plan["cells"] if i["cell"] == cell])
            for cell in CELLS
        }
        interaction = by_cell[CELLS[2]] - by_cell[CELLS[3]] - by_cell[CELLS[0]] + by_cell[CELLS[1]]
        found = results["budgets"]["tokens"]["interaction"]
        np.testing.assert_allclose(found["per_seed"], interaction, rtol=1e-12)
        np.testing.assert_allclose(found["point"], interaction.mean(), rtol=1e-12)
        half = 2.7764451051977987 * interaction.std(ddof=1) / 5**0.5
        np.testing.assert_allclose(found["high"] - found["point"], half, rtol=1e-9)

    def test_the_markdown_is_a_function_of_results_json(self, whole) -> None:
        _, text, results = whole
        assert render(results) == text

    def test_what_was_planned_is_printed(self, whole) -> None:
        _, text, _ = whole
        assert "a" * 64 in text
        assert f"frozen by commit `{'c' * 40}` of 2026-01-01" in text
        assert "5 planned, 5 here (1, 2, 3, 4, 5), 5 complete" in text
        assert "The suite file did not change after runs existed" in text
        assert "Evaluated on 65,536 bytes" in text

    def test_the_table_of_cells(self, whole) -> None:
        _, text, _ = whole
        row = next(line for line in text.splitlines() if line.startswith("| PreNorm+LRT |"))
        assert "| 5 | 269,000 | 512,000 | 2.000e+12 | 10,240 |" in row

    def test_twins_stand_in_for_the_no_route_cells(self, whole) -> None:
        _, _, results = whole
        flops = results["budgets"]["train_flops"]
        assert flops["cells"] == [
            "PreNorm+none@flops",
            CELLS[1],
            "AttentionResiduals+none@flops",
            CELLS[3],
        ]
        assert flops["mismatch"] == 0

    def test_figures_are_named_in_the_text_and_described(self, whole) -> None:
        folder, text, results = whole
        figures = drawn(results)
        names = {figure["name"] for figure in figures}
        wanted = {"loss-tokens", "loss-flops", "loss-seconds", "gains", "interaction", "passes"}
        assert wanted | {"interaction-seeds", "multipliers"} == names
        for figure in figures:
            assert f"![{figure['alt']}](figures/{figure['name']}.svg)" in text
            assert len(figure["alt"]) > 40
            for suffix in ("svg", "png"):
                assert (
                    folder / "report" / "figures" / f"{figure['name']}.{suffix}"
                ).stat().st_size > 3000


def test_a_report_rebuilt_from_the_same_records_is_byte_identical(whole, tmp_path: Path) -> None:
    folder, _, _ = whole
    write(synthetic.plan(), folder / "runs" / "h1" / "quick", tmp_path / "again")
    ours = sorted((folder / "report").rglob("*.*"))
    assert len(ours) == 18
    for path in ours:
        other = tmp_path / "again" / path.relative_to(folder / "report")
        assert other.read_bytes() == path.read_bytes(), path.name


def test_another_execution_differs_only_in_what_the_clock_said(whole, tmp_path: Path) -> None:
    _, _, one = whole
    plan = synthetic.plan()
    synthetic.write_runs(plan, tmp_path / "runs", clock=1.7)
    write(plan, tmp_path / "runs", tmp_path / "report")
    other = json.loads((tmp_path / "report" / "results.json").read_text())
    one = dict(one)
    clocks = one.pop("wall_clock"), other.pop("wall_clock")
    assert one == other
    assert clocks[0] != clocks[1]


class TestUnfinished:
    def test_nothing_ran(self, tmp_path: Path) -> None:
        text, results = report(tmp_path, synthetic.plan())
        assert "Verdict withheld: 0 of 5 planned pair blocks are complete." in text
        assert "30 planned, 0 finished, 0 diverged, 30 missing" in text
        assert results["budgets"]["tokens"]["reading"] == "withheld"

    def test_one_block_gives_points_and_no_verdict(self, tmp_path: Path) -> None:
        plan = synthetic.plan()
        folder = synthetic.write_runs(plan, tmp_path / "runs")
        for item in plan["cells"]:
            if item["seed"] != 1:
                (folder / item["folder"] / "DONE").unlink()
        text, _ = report(tmp_path, plan)
        assert "Verdict withheld: 1 of 5 planned pair blocks is complete" in text
        assert "So far I = " in text
        assert "- PreNorm+none: seed 2, 3, 4, 5" in text

    def test_three_blocks_are_a_pilot_on_complete_blocks(self, tmp_path: Path) -> None:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        for cell, seed in ((CELLS[1], 2), (CELLS[3], 4)):
            (folder_of(plan, tmp_path, cell, seed) / "DONE").unlink()
        text, results = report(tmp_path, plan)
        assert results["budgets"]["tokens"]["seeds"] == [1, 3, 5]
        assert (
            "Pilot, no verdict: 3 pair blocks, fewer than 5. The intervals so far would read:"
            in text
        )
        assert "**Not finished.**" in text

    def test_a_failed_run_is_told_from_a_missing_one(self, tmp_path: Path) -> None:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        run = folder_of(plan, tmp_path, CELLS[0], 3)
        (run / "DONE").unlink()
        (run / "failed.json").write_text('{"error": "out of memory"}')
        text, _ = report(tmp_path, plan)
        assert "- PreNorm+none: seed 3 (failed)" in text

    def test_twins_may_lag_behind(self, tmp_path: Path) -> None:
        plan = synthetic.plan()
        folder = synthetic.write_runs(plan, tmp_path / "runs")
        for item in plan["cells"]:
            if item["twin"]:
                (folder / item["folder"] / "DONE").unlink()
        text, results = report(tmp_path, plan)
        assert results["budgets"]["tokens"]["n"] == 5
        assert "At matched training FLOPs: verdict withheld: 0 of 5 planned pair blocks" in text

    def test_a_suite_without_twins_says_what_it_cannot_say(self, tmp_path: Path) -> None:
        plan = synthetic.plan(twins=False)
        synthetic.write_runs(plan, tmp_path / "runs")
        text, _ = report(tmp_path, plan)
        assert (
            "Nothing here is a statement at equal training FLOPs: PreNorm+none was trained at 1 "
            "budget" in text
        )


class TestDiverged:
    @pytest.fixture
    def found(self, tmp_path: Path) -> tuple[str, dict[str, Any]]:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        final = folder_of(plan, tmp_path, CELLS[3], 2) / "final.json"
        edit(final, status="diverged", test=None, curve=None, last_finite_loss=4.1)
        return report(tmp_path, plan)

    def test_its_rate_has_an_interval(self, found) -> None:
        text, _ = found
        assert "AttentionResiduals+LRT: 1 of 5 runs diverged, rate 0.20 [0.01, 0.72]" in text

    def test_its_whole_block_leaves_the_primary_analysis(self, found) -> None:
        _, results = found
        assert results["budgets"]["tokens"]["seeds"] == [1, 3, 4, 5]
        assert results["cells"][0]["n"] == 5

    def test_a_sensitivity_line_scores_it(self, found) -> None:
        text, results = found
        line = results["budgets"]["tokens"]["sensitivity"]
        assert line["n"] == 5
        assert line["interaction"]["point"] < results["budgets"]["tokens"]["interaction"]["point"]
        assert "## Sensitivity to diverged runs" in text

    def test_it_is_not_counted_as_missing(self, found) -> None:
        text, _ = found
        assert "29 finished, 1 diverged, 0 missing" in text


class TestHonesty:
    def test_a_changed_suite_file_is_called_out(self, tmp_path: Path) -> None:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        edit(folder_of(plan, tmp_path, CELLS[0], 1) / "meta.json", suite_hash="0" * 64)
        text, results = report(tmp_path, plan)
        assert "**The suite file changed after runs existed**" in text
        assert "0" * 64 in text
        assert results["registration"]["changed_after_runs"]

    @pytest.mark.parametrize(
        "git",
        [{"commit": "e" * 40, "dirty": False}, {"commit": "d" * 40, "dirty": True}],
        ids=["commit", "dirty"],
    )
    def test_mixed_code_is_marked(self, tmp_path: Path, git: dict[str, Any]) -> None:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        edit(folder_of(plan, tmp_path, CELLS[0], 1) / "meta.json", git=git)
        text, _ = report(tmp_path, plan)
        assert "**Mixed code versions**" in text

    def test_more_seeds_than_planned_are_called_out(self, tmp_path: Path) -> None:
        plan = synthetic.plan(seeds=range(1, 8))
        synthetic.write_runs(plan, tmp_path / "runs")
        text, _ = report(tmp_path, plan)
        assert "5 planned, 7 here" in text
        assert "**Planned and run differ.**" in text

    def test_an_unfrozen_suite_is_called_that(self, tmp_path: Path) -> None:
        plan = {**synthetic.plan(), "frozen": None}
        synthetic.write_runs(plan, tmp_path / "runs")
        assert "not frozen by a commit" in report(tmp_path, plan)[0]

    def test_runs_of_other_configurations_are_named_and_not_used(self, tmp_path: Path) -> None:
        plan = synthetic.plan()
        folder = synthetic.write_runs(plan, tmp_path / "runs")
        other = folder / CELLS[0] / "seed-1-older00000"
        other.mkdir()
        (other / "DONE").touch()
        text, results = report(tmp_path, plan)
        assert f"not used: `{CELLS[0]}/seed-1-older00000`" in text
        assert results["registration"]["runs"]["finished"] == 30

    def test_twins_that_do_not_match_are_marked(self, tmp_path: Path) -> None:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        for seed in range(1, 6):
            edit(
                folder_of(plan, tmp_path, "PreNorm+none@flops", seed) / "final.json",
                train_flops=1.9e12,
            )
        assert (
            "**on each backbone the matched costs agree within 5.3%**" in report(tmp_path, plan)[0]
        )


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"test": {"exact": {"loss": None}}}, "the run is finished but its loss is None"),
            (
                {"test": {"exact": {"loss": float("nan")}}},
                "the run is finished but its loss is nan",
            ),
            (
                {"test": {"bytes": 100, "tokens": 100, "exact": {"loss": 2.0, "bpb": 2.0}}},
                "mixed units: 2.0 nats per token are 2.8854 bits per byte",
            ),
            (
                {"test": {"sha256": "7" * 64, "exact": {"loss": 2.0, "bpb": 2.9}}},
                "evaluated on different bytes",
            ),
        ],
        ids=["no-loss", "nan", "units", "bytes"],
    )
    def test_a_loss_that_cannot_be_used(self, tmp_path: Path, changes, says: str) -> None:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        edit(folder_of(plan, tmp_path, CELLS[1], 4) / "final.json", **changes)
        with pytest.raises(UserError, match=says) as error:
            report(tmp_path, plan)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("name", ["final.json", "meta.json"])
    def test_a_damaged_file_is_named(self, tmp_path: Path, name: str) -> None:
        plan = synthetic.plan()
        synthetic.write_runs(plan, tmp_path / "runs")
        (folder_of(plan, tmp_path, CELLS[1], 4) / name).write_text("{")
        with pytest.raises(UserError, match=rf"{name} is not JSON"):
            report(tmp_path, plan)

    def test_a_cell_that_the_contrast_needs_is_missing(self, tmp_path: Path) -> None:
        plan = synthetic.plan(twins=False)
        plan["cells"] = [item for item in plan["cells"] if item["cell"] != CELLS[3]]
        with pytest.raises(UserError, match="missing cell"):
            report(tmp_path, plan)

    def test_an_unknown_contrast_names_its_neighbour(self, tmp_path: Path) -> None:
        plan = synthetic.plan(family=["gain_bse", "interaction"])
        with pytest.raises(UserError, match="no contrast 'gain_bse'; did you mean 'gain_base'"):
            report(tmp_path, plan)


def test_named_contrasts_and_floors_of_the_suite_file(tmp_path: Path) -> None:
    own = {"LRT against the other improvement": {CELLS[2]: 1, CELLS[1]: -1}}
    plan = synthetic.plan(contrasts=own, floor=[0.5, 1.0, 9.0])
    synthetic.write_runs(plan, tmp_path / "runs")
    text, results = report(tmp_path, plan)
    assert "## Further declared contrasts" in text
    assert [row["name"] for row in results["contrasts"]] == list(own)
    assert "log excess over E = 0.5" in text
    assert "The entropy floor E = 9 is not below every loss" in text


def test_loss_by_position_is_drawn_where_it_was_recorded(tmp_path: Path) -> None:
    plan = synthetic.plan()
    folder = synthetic.write_runs(plan, tmp_path / "runs")
    for item in plan["cells"]:
        curve = {"position": [0, 32, 64, 96], "loss": [3.0, 2.4, 2.2, 2.1]}
        edit(folder / item["folder"] / "final.json", by_position=curve)
    _, results = report(tmp_path, plan)
    assert len(results["positions"]) == 6
    with style.style():
        drawing = passes.positions(results, [], style.Look(results))
    assert drawing is not None
    assert "PreNorm+LRT from 3.000 to 2.100" in drawing.alt


@pytest.mark.parametrize("named", [False, True], ids=["positions", "named"])
def test_right_answers_by_what_a_position_stands_for(tmp_path: Path, named: bool) -> None:
    plan = synthetic.plan(positions={"name": "pairs held", "unit": 4.0} if named else None)
    folder = synthetic.write_runs(plan, tmp_path / "runs")
    for item in plan["cells"]:
        # Nothing is asked in the second bin.
        curve = {"position": [2, 6, 10], "loss": [0.1, None, 0.3], "accuracy": [1.0, None, 0.25]}
        edit(folder / item["folder"] / "final.json", by_position=curve)
    _, results = report(tmp_path, plan)
    with style.style():
        drawing = passes.accuracies(results, [], style.Look(results))
    (ax,) = drawing.canvas.axes
    assert "PreNorm+LRT from 1.000 to 0.250" in drawing.alt
    assert ax.get_xlabel() == ("pairs held" if named else "position in the row")
    assert list(ax.get_lines()[0].get_xdata()) == ([0.5, 2.5] if named else [2, 10])


def test_a_cut_last_line_of_metrics_is_left_out(tmp_path: Path) -> None:
    plan = synthetic.plan()
    synthetic.write_runs(plan, tmp_path / "runs")
    path = folder_of(plan, tmp_path, CELLS[0], 1) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 260, "tok')
    report(tmp_path, plan)


def test_a_report_of_200_runs_takes_seconds(tmp_path: Path) -> None:
    plan = synthetic.plan(seeds=range(1, 35))
    synthetic.write_runs(plan, tmp_path / "runs", points=60)
    assert len(plan["cells"]) == 204
    # Work, not waiting: a busy machine takes no more of the processor.
    began = time.process_time()
    write(plan, tmp_path / "runs", tmp_path / "report")
    spent = time.process_time() - began
    assert spent < 15, spent


def test_neither_torch_nor_matplotlib_is_needed_to_import() -> None:
    code = (
        "import sys, lrt_lab.report.suite_report, lrt_lab.report.commands, "
        "lrt_lab.report.selfcheck\n"
        "print(sorted({'torch', 'matplotlib', 'lightning', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class TestLargerFactorials:
    """Three backbones, two routes; every no-route cell has one twin per route."""

    @pytest.fixture
    def found(self, tmp_path: Path) -> tuple[str, dict[str, Any]]:
        plan = synthetic.plan()
        plan["cells"] = []
        means = {}
        for b, backbone in enumerate(("MUDD", "PreNorm", "AttentionResiduals")):
            for r, route in enumerate(("none", "T2MLR", "LRT")):
                cell, axes = f"{backbone}+{route}", {"backbone": backbone, "route": route}
                means[cell] = 2.2 - 0.05 * b - 0.03 * r
                plan["cells"] += [synthetic.item_of(cell, axes, None, s) for s in range(1, 6)]
                if route != "none":
                    base, plain = f"{backbone}+none", {"backbone": backbone, "route": "none"}
                    twin = {"match": "train_flops", "of": base, "as": cell}
                    means[f"{base}@{route}"] = 2.19 - 0.05 * b - 0.01 * r
                    plan["cells"] += [
                        synthetic.item_of(f"{base}@{route}", plain, twin, s) for s in range(1, 6)
                    ]
        losses = synthetic.losses(plan, means, run_sd=1e-4)
        synthetic.write_runs(plan, tmp_path / "runs", losses, points=4)
        return report(tmp_path, plan)

    def test_every_pair_has_its_row(self, found) -> None:
        text, results = found
        assert [row["name"] for row in results["pairs"]] == [
            "AttentionResiduals x LRT",
            "AttentionResiduals x T2MLR",
            "MUDD x LRT",
            "MUDD x T2MLR",
        ]
        assert "## All pairs" in text
        assert "I at matched training FLOPs" in text

    def test_each_route_meets_its_own_twins(self, found) -> None:
        _, results = found
        assert results["budgets"]["train_flops"]["cells"] == [
            "PreNorm+none@LRT",
            "PreNorm+LRT",
            "AttentionResiduals+none@LRT",
            "AttentionResiduals+LRT",
        ]
        by_name = {row["name"]: row["at_flops"]["point"] for row in results["pairs"]}
        flops = results["budgets"]["train_flops"]["interaction"]["point"]
        assert by_name["AttentionResiduals x LRT"] == pytest.approx(flops, rel=1e-12)
        assert by_name["AttentionResiduals x T2MLR"] != pytest.approx(flops, rel=1e-6)

    def test_cells_stand_in_the_order_of_their_axes(self, found) -> None:
        _, results = found
        first = [cell["cell"] for cell in results["cells"]][:4]
        assert first == ["PreNorm+none", "PreNorm+none@LRT", "PreNorm+none@T2MLR", "PreNorm+LRT"]


def test_costs_that_differ_between_backbones_are_said(tmp_path: Path) -> None:
    plan = synthetic.plan()
    for item in plan["cells"]:
        if item["axes"]["backbone"] != "PreNorm":
            item["train_flops"] *= 1.011
    synthetic.write_runs(plan, tmp_path / "runs")
    text = report(tmp_path, plan)[0]
    assert "; on each backbone the matched costs agree within 0%." in text
    assert "Between backbones they differ by up to 1.1%: the rows that compare" in text


def test_costs_that_agree_everywhere_need_no_second_sentence(whole) -> None:
    assert "Between backbones they differ" not in whole[1]


@pytest.mark.parametrize(
    ("word", "title"),
    [
        ("wall_clock", "matched wall-clock"),
        ("parameters", "matched parameters"),
        ("decode_flops", "matched FLOPs per decoded token"),
    ],
)
def test_twins_of_every_budget_have_a_section(tmp_path: Path, word: str, title: str) -> None:
    plan = synthetic.plan()
    for item in plan["cells"]:
        costly = item["twin"] is not None or item["axes"]["route"] == "LRT"
        item["decode_flops_per_token"] = 1100 if costly else 1000
        if item["twin"] is not None:
            item["twin"] = {**item["twin"], "match": word}
            # Half a percent less than what it is matched to.
            item["decode_flops_per_token"] *= 0.995
            item["parameters"] = {"total": 269_000 * 0.995, "matmul": 240_000}
    synthetic.write_runs(plan, tmp_path / "runs")
    text, results = report(tmp_path, plan)
    found = {**results["budgets"], **results["wall_clock"]["budgets"]}
    budget = found["train_seconds" if word == "wall_clock" else word]
    assert budget["label"] == title
    assert budget["cells"] == [
        *("PreNorm+none@flops", "PreNorm+LRT"),
        *("AttentionResiduals+none@flops", "AttentionResiduals+LRT"),
    ]
    off = 0 if word == "wall_clock" else 1 / 0.995 - 1
    assert budget["mismatch"] == pytest.approx(off, abs=1e-12)
    # Known means of the twin, 2.2 exp(-0.0400), and of LRT, 2.2 exp(-0.0347).
    gain = budget["gains"]["PreNorm"]["log"]
    assert gain["low"] < 0.0347 - 0.0400 < gain["high"]
    section = text.partition(f"## Effects at {title}\n")[2].partition("\n## ")[0]
    assert "Cells: `PreNorm+none@flops`, `PreNorm+LRT`" in section
    assert "Not available" not in section


def test_without_twins_of_decoding_there_is_no_section_on_it(whole) -> None:
    assert "per decoded token" not in whole[1]


def test_without_parameter_twins_the_extra_parameters_are_named(whole) -> None:
    _, text, _ = whole
    assert "(LRT changes their number by +3.5% on PreNorm and +3.5% on AttentionResiduals)" in text


def test_a_suite_of_variants_compares_each_with_the_baseline(tmp_path: Path) -> None:
    names = ("gather", "householder", "rotation")
    ends = {"transform": {"baseline": "gather", "improved": "householder"}}
    plan = synthetic.plan(axes=ends, family=["householder", "rotation"], primary="householder")
    plan["cells"] = [
        synthetic.item_of(name, {"transform": name, "route": "x"}, None, seed)
        for name in names
        for seed in range(1, 6)
    ]
    means = dict(zip(names, (2.2, 2.1, 2.2), strict=True))
    synthetic.write_runs(plan, tmp_path / "runs", synthetic.losses(plan, means), points=4)
    text, results = report(tmp_path, plan)
    assert {row["name"]: row["p_holm"] < 0.05 for row in results["family"]} == {
        "householder": True,
        "rotation": False,
    }
    assert "H1 supported: householder is better than gather (gain +0.0" in text
    # One of a family that is corrected together, as this suite declares it.
    assert "Primary contrast: householder over gather on ln loss (exact evaluation); margin" in text
    assert "## Declared family" in text and "## Ablations" not in text


class TestSweep:
    """Two variants of a baseline at three rates, each with a best rate of its own."""

    @pytest.fixture
    def plan(self) -> dict[str, Any]:
        ends = {"backbone": {"baseline": "PreNorm", "improved": "MHC"}}
        sweep = {"axis": "rate", "default": "x1"}
        plan = synthetic.plan(axes=ends, family=[], primary="MHC+x1", sweep=sweep)
        plan["cells"] = [
            synthetic.item_of(
                f"{backbone}+{rate}",
                {"backbone": backbone, "rate": rate, "route": "none"},
                None,
                seed,
            )
            for backbone in ("MHC", "MUDD", "PreNorm")
            for rate in ("x0.5", "x1", "x2")
            for seed in range(1, 6)
        ]
        return plan

    @staticmethod
    def means() -> dict[str, float]:
        rows = {"PreNorm": (2.3, 2.2, 2.1), "MHC": (2.2, 2.0, 2.1), "MUDD": (2.1, 2.2, 2.3)}
        rates = ("x0.5", "x1", "x2")
        return {f"{b}+{r}": row[i] for b, row in rows.items() for i, r in enumerate(rates)}

    def test_default_and_best_are_reported_apart(self, plan, tmp_path: Path) -> None:
        losses = synthetic.losses(plan, self.means(), run_sd=1e-4)
        synthetic.write_runs(plan, tmp_path / "runs", losses, points=4)
        text, results = report(tmp_path, plan)
        assert results["suite"]["baseline"] == "PreNorm+x1"
        assert [row["name"] for row in results["family"]] == ["MHC+x1", "MUDD+x1"]
        rows = {row["variant"].removesuffix("+none"): row for row in results["sweep"]["rows"]}
        assert {v: row["best"]["value"] for v, row in rows.items()} == {
            "PreNorm": "x2",
            "MHC": "x1",
            "MUDD": "x0.5",
        }
        assert {v for v, row in rows.items() if row["at_the_edge"]} == {"PreNorm", "MUDD"}
        gains = {v: rows[v]["best"]["gain"]["point"] for v in ("MHC", "MUDD")}
        assert gains["MHC"] == pytest.approx(np.log(2.1 / 2.0), abs=1e-3)
        assert gains["MUDD"] == pytest.approx(0.0, abs=1e-3)
        assert rows["MUDD"]["default"]["gain"]["point"] == pytest.approx(0.0, abs=1e-3)
        assert rows["MHC"]["default"]["gain"]["point"] == pytest.approx(np.log(2.2 / 2.0), abs=1e-3)
        assert rows["PreNorm"]["best"]["gain"] is None
        assert "## Best of the sweep" in text and "x0.5\\*" not in text and "x0.5*" in text

    def test_the_choice_is_the_validation_losss(self, plan, tmp_path: Path) -> None:
        losses = synthetic.losses(plan, self.means(), run_sd=1e-4)
        folder = synthetic.write_runs(plan, tmp_path / "runs", losses, points=4)
        # MHC's x2 does best on validation text and worse in the test.
        for item in plan["cells"]:
            if item["cell"] == "MHC+x2":
                path = folder / item["folder"] / "metrics.jsonl"
                rows = [json.loads(line) for line in path.read_text().splitlines()]
                for row in rows:
                    row.update({k: 1.0 for k in row if k == "val/loss"})
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        _, results = report(tmp_path, plan)
        row = next(r for r in results["sweep"]["rows"] if r["variant"] == "MHC+none")
        assert row["best"]["value"] == "x2"
        assert row["best"]["loss"] == pytest.approx(2.1, rel=0.02)

    def test_a_cell_with_a_lost_run_is_not_chosen(self, plan, tmp_path: Path) -> None:
        losses = synthetic.losses(plan, self.means(), run_sd=1e-4)
        folder = synthetic.write_runs(plan, tmp_path / "runs", losses, points=4)
        lost = next(item for item in plan["cells"] if item["cell"] == "MHC+x1")
        path = folder / lost["folder"] / "final.json"
        final = {**json.loads(path.read_text()), "status": "diverged", "test": None}
        path.write_text(json.dumps(final))
        _, results = report(tmp_path, plan)
        row = next(r for r in results["sweep"]["rows"] if r["variant"] == "MHC+none")
        assert row["best"]["value"] == "x2"

    def test_before_any_run(self, plan, tmp_path: Path) -> None:
        text, results = report(tmp_path, plan)
        assert all(row["best"] is None for row in results["sweep"]["rows"])
        assert "## Best of the sweep" in text
