"""A suite that declares `scaling`: its report is the law, with crossings in FLOPs and in seconds,
and the law of the interaction.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import law, runs
from lrt_lab.analysis.scaling.laws import Centre
from lrt_lab.report import index, suite_report
from lrt_lab.report.scaling import suite
from lrt_lab.report.scaling.question import Question
from lrt_lab.report.words import opening
from lrt_lab.store import write_json, write_text
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import cells
from lrt_lab.suite.plan import build

ROOT = Path(__file__).parents[3]
TRUTH = {"A": 60.0, "B": 400.0, "E": 1.0, "alpha": 0.35, "beta": 0.37, "phi": 0.2}
WORTH = {"m_N 1": 1.5, "m_D 1": 1.0, "m_N 2": 0.9, "m_D 2": 1.0, "m_N 3": 1.25, "m_D 3": 1.0}
WIDTHS = {"w16": 16096, "w24": 32592, "w32": 54720}


def simulated(folder: Path, corpus: float = 14.5e6) -> dict[str, Any]:
    """The cpu scale of H3 with losses of a known law in the place of training; its plan."""
    declared = load(ROOT / "experiments/h3.yaml")
    scale = declared.scale("cpu")
    names = tuple(declared.axes["model"])
    found, centre = law("iso-recurrence", 4), Centre(np.log(3e4), np.log(4e5))
    theta = found.theta({**TRUTH, **WORTH}, centre)
    noise = generator(1, "simulated suite")
    items = []
    for cell in cells(declared, scale):
        model, k = cell.axes["model"], int(cell.axes["passes"][1])
        routed = model.endswith("Householder")
        n = WIDTHS[cell.axes["size"]] * (1.07 if routed else 1.0)
        d = cell.times * 4.0 * WIDTHS[cell.axes["size"]]
        run = runs(n, d, 1.0, passes=k, model=names.index(model))
        ln_loss = found.log_loss(theta, run, centre)[0][0] + 0.002 * noise.standard_normal()
        item = {
            "cell": cell.name,
            "axes": cell.axes,
            "twin": None,
            "times": cell.times,
            "seed": 1,
            "folder": f"{cell.name}/seed-1",
            "parameters": {"total": n + 5000, "matmul": n},
            "tokens": d,
        }
        cost = {
            "passes": k,
            "decode_bytes_per_token": 4 * n,
            **{f"{use}_pointwise_per_token": n / 10 for use in ("train", "prefill", "decode")},
            "train_flops_per_token": 6 * n * k,
            "prefill_flops_per_token": 2 * n,
            "decode_flops_per_token": 2 * n,
        }
        speed = 2e9 / n
        final = {
            "status": "finished",
            "tokens": d,
            "train_flops": 6 * n * k * d,
            "train_seconds": d * k / speed,
            "test": {"exact": {"loss": float(np.exp(ln_loss)), "sha256": "same"}},
            "parameters": item["parameters"],
            "cost": cost,
            "throughput": {
                "tokens_per_second": speed / k,
                "prefill_tokens_per_second": 3 * speed,
                "decode_tokens_per_second": 3 * speed,
            },
        }
        write_json(folder / item["folder"] / "final.json", final)
        write_json(folder / item["folder"] / "meta.json", {"data": {"training_tokens": corpus}})
        write_text(folder / item["folder"] / "DONE", "")
        items.append(item)
    plan = build(declared, scale, items)
    write_json(folder / "plan.json", plan)
    # As a report reads it.
    return json.loads((folder / "plan.json").read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a whole report, with `report` beside them."""
    folder = tmp_path_factory.mktemp("h3")
    with pytest.MonkeyPatch.context() as patch:
        quick = partial(Question, law="iso-recurrence", resamples=100)
        patch.setattr(suite, "Question", quick)
        path = suite_report.write(simulated(folder), folder, folder / "report")
    found = json.loads(path.with_name("results.json").read_text())
    return {**found, "report": path.read_text(), "folder": path.parent}


def test_every_sentence_of_the_verdict_is_a_pilots(results: dict[str, Any]) -> None:
    said = opening(results)
    assert len(said) >= 8
    assert all(line.startswith("pilot: machinery only. ") for line in said)
    words = results["report"].split("## Planned and run")[0]
    # The primary comparison at every ratio, each with its window and how far it is extrapolated.
    assert words.count("in the window 1.00e+05 to 1.00e+12 output tokens") == 4
    assert "against PreNorm in FLOPs, by prompt tokens per output token" in words
    assert "against AttentionResiduals in seconds" in words


def test_both_baselines_cross_in_flops_and_seconds(results: dict[str, Any]) -> None:
    flops, seconds = results["scaling"]["crossings"], results["wall_clock"]["scaling"]["crossings"]
    for found, unit in ((flops, "FLOPs"), (seconds, "seconds")):
        assert {c["unit"] for c in found} == {unit}
        assert [(c["baseline"], c["ratio"]) for c in found] == [
            (baseline, ratio)
            for baseline in ("AttentionResiduals", "PreNorm")
            for ratio in (0, 1, 10, 100)
        ]
    # Half as many parameters again for a token that costs 1.07 of the same: use pays.
    assert flops[0]["word"] == "crosses"
    assert flops[0]["moved"] == pytest.approx(0.7, abs=0.15)


def test_the_law_finds_what_the_runs_were_made_from(results: dict[str, Any]) -> None:
    found = results["scaling"]
    assert found["phi"]["low"] < TRUTH["phi"] < found["phi"]["high"]
    assert found["runs"]["fitted"] == 54 and found["runs"]["passes"] == [1, 2, 3, 4]
    assert found["runs"]["epochs"] == "no run saw its corpus more than 4 times"
    assert "no run saw its corpus more than 4 times" in results["report"]


def test_the_interaction_is_that_of_the_four_losses(results: dict[str, Any]) -> None:
    found = results["scaling"]["interaction"]
    assert found["n"] == 9 and found["passes"] == [3]
    loss = {cell["cell"]: cell["loss"]["mean"] for cell in results["cells"]}
    by_place = {}
    for size in WIDTHS:
        for again in ("", "@r8", "@r20"):
            p, p1, a, a1 = (
                np.log(loss[f"{size}+{model}+{passes}{again}"])
                for model, passes in (
                    ("PreNorm", "k1"),
                    ("PreNorm-Householder", "k3"),
                    ("AttentionResiduals", "k1"),
                    ("AttentionResiduals-Householder", "k3"),
                )
            )
            by_place[size, again] = (a - a1) - (p - p1)
    assert sorted(found["entries"]["value"]) == pytest.approx(sorted(by_place.values()))
    assert found["middle"]["point"] == pytest.approx(np.mean(list(by_place.values())))
    assert found["middle"]["low"] < found["middle"]["point"] < found["middle"]["high"]
    assert "## The law of the interaction" in results["report"]


def test_its_figures_are_those_of_the_law(results: dict[str, Any]) -> None:
    names = {f["name"] for f in results["scaling"]["figures"]}
    names |= {f["name"] for f in results["wall_clock"]["scaling"]["figures"]}
    assert names >= {"isoflop", "fitted", "residuals", "passes", "cost-ratio", "interaction"}
    assert "cost-ratio-seconds" in names
    for name in names:
        assert f"figures/{name}.svg" in results["report"]
        assert (results["folder"] / "figures" / f"{name}.svg").exists()


def test_the_list_of_reports_has_its_words(results: dict[str, Any]) -> None:
    said = index.reading(results)
    assert said.startswith("pilot: machinery only. crosses at 0")
    assert said.endswith("prompt tokens per output token")
    law = {**results["scaling"]["law"], "flags": ["its search did not converge"]}
    unsound = {**results, "scaling": {**results["scaling"], "law": law}}
    assert index.reading(unsound) == "pilot: machinery only. undefined: the fit is not sound"


def test_an_unfinished_suite_says_what_a_law_lacks(tmp_path: Path) -> None:
    plan = simulated(tmp_path)
    for item in plan["cells"][3:]:
        (tmp_path / item["folder"] / "DONE").unlink()
    report = suite_report.write(plan, tmp_path, tmp_path / "report").read_text()
    assert "pilot: machinery only. No law can be fitted yet: " in report
    assert "## Planned and run" in report and "## Where they cross" not in report


def test_a_corpus_seen_too_often_is_said_and_refused(tmp_path: Path) -> None:
    from lrt_lab.analysis.scaling import admit
    from lrt_lab.report.scaling.records import read_folder

    simulated(tmp_path, corpus=1e5)
    given = read_folder(tmp_path).table.runs
    kept = admit(given)
    assert kept.said.endswith("of 54 runs saw their corpus more than 4 times: refused")
    assert len(kept.runs) == (given.tokens <= 4e5).sum() < 54
