"""H1's panel as its suite file declares it, with runs of known accuracies, up to its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lrt_lab.errors import UserError
from lrt_lab.report import index, suite_report
from lrt_lab.report.words import verdict
from lrt_lab.suite import plan as plans
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import cells, runs
from lrt_lab.suite.tuned import Tuned
from tests.report import synthetic

SUITE = Path(__file__).parents[2] / "experiments" / "h1-swaps.yaml"
P, A = "PreNorm", "AttentionResiduals"
#: Accuracy at the last position: the gain is .3 on PreNorm, .4 on AttentionResiduals.
LEVELS = {"none": 0.15, "LRT": 0.45, "LRT-jacobi": 0.40, "LRT-shift": 0.20, "LRT-self": 0.44}
MORE = {f"{A}+LRT": 0.10, f"{P}+none@flops": 0.20, f"{A}+none@flops": 0.20}
#: What the exact recurrence loses to the last training pass.
GAP = 0.02


def share(cell: str, seed: int) -> float:
    route = cell.partition("@")[0].split("+")[1]
    noise = 0.01 * synthetic.stream(seed, f"panel {cell}").standard_normal()
    return LEVELS[route] + MORE.get(cell, 0.0) + noise


def scored(accuracy: float) -> dict[str, float]:
    return {
        "loss": 4.0 - accuracy,
        "accuracy": accuracy / 2,
        "last_accuracy": accuracy,
        "exact_match": 0.0,
    }


def record(item: dict[str, Any]) -> dict[str, Any]:
    exact = share(item["cell"], item["seed"])
    routed = item["axes"]["route"] != "none"
    test = {
        "rows": 1024,
        "tokens": 8192,
        "sha256": "f" * 64,
        "exact": scored(exact),
        "last_pass": scored(exact + GAP * routed),
        "longer": {"rows": 64, "exact": scored(0.01), "last_pass": scored(0.01)},
    }
    strength = {"backbone": item["axes"]["backbone"], "vector": "a vector", "log_ratio": [-1.0]}
    found = synthetic.final(item, 3.0)
    return {**found, "curve": None, "test": test, "injection": strength if routed else None}


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A folder of reports, the panel's numbers, and its text."""
    home = tmp_path_factory.mktemp("panel")
    suite = load(SUITE)
    scale = suite.scale("cpu")
    items = []
    for run in runs(suite, scale):
        cell = run.cell
        twin = None if cell.twin is None else cell.twin.record()
        item = synthetic.item_of(cell.name, cell.axes, twin, run.seed)
        items.append({**item, "times": cell.times, "at_default": False})
    tried = {
        cell.name: {
            "axes": cell.axes,
            "steps": 240,
            "factor": 2.0,
            "inside": True,
            "losses": {"1": [3.5, 3.6], "2": [3.0, 3.1], "4": [3.2, None]},
        }
        for cell in cells(suite, scale)
    }
    choices = {
        "inputs": "b" * 64,
        "key": "model.optimizer.init_args.lr",
        "seeds": [101, 102],
        "outcome": "exact",
        "cells": tried,
    }
    plan = plans.build(suite, scale, items, Tuned(choices))
    plan["frozen"] = {"commit": "c" * 40, "date": "2026-01-01"}
    folder = home / "runs" / "h1-swaps" / "cpu"
    for item in items:
        path = folder / item["folder"]
        path.mkdir(parents=True)
        (path / "metrics.jsonl").write_text("")
        (path / "final.json").write_text(json.dumps(record(item)))
        (path / "meta.json").write_text(json.dumps(synthetic.meta(item, plan)))
        (path / "DONE").write_text("")
    (folder / "plan.json").write_text(json.dumps(plan))
    out = suite_report.write(plan, home / "runs", home / "reports" / "h1-swaps" / "cpu")
    return home / "reports", json.loads((out.parent / "results.json").read_text()), out.read_text()


def shares(cell: str) -> np.ndarray:
    return np.array([share(cell, seed) for seed in (1, 2, 3, 4, 5)])


def test_the_family_is_in_accuracy_and_has_its_own_holm(panel) -> None:
    _, results, _ = panel
    assert results["accuracy"]["metric"] == "last_accuracy" and results["square"] is None
    rows = {row["name"]: row for row in results["accuracy"]["gains"]}
    family, others = list(rows)[:3], list(rows)[3:]
    assert family == ["gain_base", "gain_improved", "interaction"]
    assert others == list(load(SUITE).statistics.contrasts)
    gains = {b: shares(f"{b}+LRT") - shares(f"{b}+none") for b in (P, A)}
    wanted = {
        "gain_base": gains[P],
        "gain_improved": gains[A],
        "interaction": gains[A] - gains[P],
        "recurrent over shift on PreNorm": shares(f"{P}+LRT") - shares(f"{P}+LRT-shift"),
    }
    for name, differences in wanted.items():
        test = stats.ttest_1samp(differences, 0)
        assert rows[name]["point"] == pytest.approx(differences.mean())
        assert rows[name]["p"] == pytest.approx(test.pvalue)
    for part in (family, others):
        p = sorted(rows[name]["p"] for name in part)
        assert min(rows[name]["p_holm"] for name in part) == pytest.approx(len(part) * p[0])


def test_the_verdict_has_the_scale_words_and_equal_flops(panel) -> None:
    _, results, text = panel
    said = verdict(results)
    assert said[0].startswith(
        "At 269,000 parameters and 512,000 positions: differences in accuracy"
    )
    assert said[-1].endswith("This says nothing about larger models.")
    assert said[1].startswith("gain shown: gain_base: LRT on PreNorm (+0.3")
    assert "neither shown: recurrent over self on PreNorm (" in said[1]
    (flops,) = [one for one in said if one.startswith("At matched training FLOPs")]
    at = {b: shares(f"{b}+LRT") - shares(f"{b}+none@flops") for b in (P, A)}
    assert f"LRT on PreNorm +{at[P].mean():.3f} [" in flops
    assert f"interaction +{(at[A] - at[P]).mean():.3f} [" in flops
    assert "Primary contrast: interaction on accuracy at the last position" in text


def test_every_square_is_in_accuracy(panel) -> None:
    _, results, text = panel
    rows = {row["name"]: row for row in results["accuracy"]["square"]["squares"]}
    assert list(rows) == ["as run", "matched training FLOPs", "Jacobi with 1 to 3 passes"]
    jacobi = rows["Jacobi with 1 to 3 passes"]
    assert jacobi["cells"][1] == f"{P}+LRT-jacobi"
    wanted = (shares(f"{P}+LRT-jacobi") - shares(f"{P}+none")).mean()
    assert jacobi["gain_base"]["point"] == pytest.approx(wanted)
    assert "- matched training FLOPs: `PreNorm+none@flops`, `AttentionResiduals+none@flops`" in text


def test_the_gap_is_what_the_exact_recurrence_loses(panel) -> None:
    _, results, _ = panel
    found = results["accuracy"]["square"]["exposure"]
    assert [one["name"] for one in found] == ["LRT", "Jacobi with 1 to 3 passes"]
    for one in found:
        for effect in ("gain_base", "gain_improved", "interaction"):
            exact, last, gap = (
                one[part][effect]["point"] for part in ("exact", "last_pass", "gap")
            )
            assert exact == pytest.approx(last - gap, abs=1e-12)
        assert one["gap"]["gain_base"]["point"] == pytest.approx(GAP)
        assert one["gap"]["interaction"]["point"] == pytest.approx(0, abs=1e-12)


def test_tuning_and_ports_are_in_the_report(panel) -> None:
    reports, results, text = panel
    heads = [line.strip("# ") for line in text.splitlines() if line.startswith("#")]
    wanted = [
        "Verdict",
        "Learning rates",
        "Ports",
        "Accuracy",
        "The square, and with other cells",
        "Last training pass and exact recurrence",
    ]
    assert [head for head in heads if head in wanted] == wanted
    assert "| PreNorm+LRT-self | 3.5500 | **3.0500** | diverged | 2 x |" in text
    assert "ln loss" not in "\n".join(verdict(results))
    assert (reports / "h1-swaps" / "cpu" / "figures" / "rates.svg").is_file()


def test_the_list_says_what_the_panel_was_read_as(panel) -> None:
    reports, _, _ = panel
    (row,) = index.listed(reports / "h1-swaps", reports / "h1")
    assert row[0] == "[h1-swaps/cpu](../h1-swaps/cpu/report.md)"
    assert row[-2:] == ["60", "interaction, in accuracy: gain shown"]


def test_a_family_of_unknown_contrasts_is_refused(panel, tmp_path: Path) -> None:
    reports, _, _ = panel
    runs_folder = reports.parent / "runs"
    plan = json.loads((runs_folder / "h1-swaps" / "cpu" / "plan.json").read_text())
    plan["statistics"]["family"] = ["gain_bas"]
    with pytest.raises(UserError, match="did you mean 'gain_base'"):
        suite_report.write(plan, runs_folder, tmp_path)
