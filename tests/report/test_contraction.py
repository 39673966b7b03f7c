"""The report's part about contraction: from the runs' last rows, and only where there are any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrt_lab.report.contraction import at_trained, entry, reach, said
from lrt_lab.report.figures import contraction, style
from lrt_lab.report.figures.style import Look
from lrt_lab.report.markdown import render
from lrt_lab.report.suite_report import gather
from tests.report import synthetic

PASSES = 6


def row(a: float, verdict: str = "contracts", beyond: int | None = None) -> dict[str, Any]:
    """A diagnosis whose changes shrink by a."""
    change = [None, *(a**k for k in range(1, PASSES))]
    return {
        "step": 250,
        "trained": 2.0,
        "loss": 2.0,
        "passes": {
            "loss": [2.5, *(2.0 + a**k for k in range(1, PASSES))],
            "change": change,
            "size": change,
            "ratio": [None, None, *[a] * (PASSES - 2)],
            "rate": a,
        },
        "radius": {"mean": a, "largest": 1.5 * a, "samples": 8},
        "state": {},
        "directions": {"cosine": 0.1, "rank": 7.5, "width": 64},
        "gradient": {"embedding": [], "memory": [a**k for k in range(10)]},
        "verdict": verdict,
        "beyond": beyond,
    }


def test_what_slots_gather_is_the_mean_of_the_runs() -> None:
    made = [
        {
            "sources": ["embedding", "unit 0"],
            "weights": [[x, 1 - x]],
            "position": [0],
            "size": [[x]],
        }
        for x in (0.25, 0.75)
    ]
    found = entry("cell", [{**row(0.5), "slots": one} for one in made])["slots"]
    assert found["sources"] == ["embedding", "unit 0"]
    assert np.allclose(found["weights"], [[0.5, 0.5]]) and np.allclose(found["size"], 0.5)
    # Rows of runs that recorded nothing of the kind.
    assert "slots" not in entry("cell", [{**row(0.5), "slots": made[0]}, row(0.5)])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plan, root = synthetic.plan(), tmp_path_factory.mktemp("contraction")
    folder = synthetic.write_runs(plan, root)
    for item in plan["cells"]:
        if item["axes"]["route"] == "LRT":
            rows = [row(0.9), row(0.5 + 0.01 * item["seed"])]
            text = "".join(json.dumps(r) + "\n" for r in rows)
        else:
            text = json.dumps({**row(0.5), "passes": None}) + "\n"
        (folder / item["folder"] / "contraction.jsonl").write_text(text)
    return gather(plan, root)[0]


def test_the_last_row_of_every_run_counts(results: dict[str, Any]) -> None:
    found = results["contraction"]
    assert [item["cell"] for item in found] == ["PreNorm+LRT", "AttentionResiduals+LRT"]
    assert found[0]["rate"] == pytest.approx([0.51, 0.52, 0.53, 0.54, 0.55])
    growth = [0.51 ** (PASSES - 1) - 0.51, 0.55 ** (PASSES - 1) - 0.55]
    assert [found[0]["growth"][seed][-1] for seed in (0, 4)] == pytest.approx(growth)
    json.dumps(found, allow_nan=False)


def test_the_table(results: dict[str, Any]) -> None:
    text = render({**results, "figures": []}).split("## Contraction")[1]
    line = next(line for line in text.splitlines() if line.startswith("| PreNorm+LRT |"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[2:7] == ["contracts", "0.530", "0.530", "0.795", "2"]
    assert cells[7] == str(PASSES)
    assert "7.5 of 64" in cells


def test_the_figures(results: dict[str, Any]) -> None:
    with style.style():
        look = Look(results)
        growth = contraction.growth(results, [], look)
        reached = contraction.reach(results, [], look)
    left, right = growth.canvas.axes
    thick = [line for line in left.get_lines() if line.get_label() == "PreNorm+LRT"]
    np.testing.assert_allclose(thick[0].get_ydata()[1], 0.0)
    assert right.get_yscale() == reached.canvas.axes[0].get_yscale() == "log"
    assert "PreNorm+LRT contracts" in growth.alt and "at lag 1" in reached.alt
    for drawing in (growth, reached):
        assert drawing.canvas.get_size_inches()[0] <= 6.5


def test_without_diagnoses_the_report_says_nothing_of_it(tmp_path: Path) -> None:
    plan = synthetic.plan()
    synthetic.write_runs(plan, tmp_path)
    found = gather(plan, tmp_path)[0]
    assert "contraction" not in found
    assert "## Contraction" not in render({**found, "figures": []})


def test_words_of_several_seeds() -> None:
    rows = [row(0.5), row(1.2, "diverges", 3), row(1.2, "diverges", 3)]
    assert said(entry("x", rows)) == "contracts (1 of 3), diverges beyond pass 3 (2 of 3)"
    assert said(entry("x", rows[1:])) == "diverges beyond pass 3"


def test_numbers_that_are_not_there() -> None:
    broken = row(1.5, "diverges", 2)
    broken["passes"]["loss"][0] = 2.4
    broken["passes"]["loss"][2:] = [None] * (PASSES - 2)
    item = entry("x", [broken])
    assert item["best"] == [1]
    assert item["growth"][0][-1] is None
    assert at_trained(item) == pytest.approx([3.5])
    assert reach([0.0] * 10) is None and reach([1.0]) is None
    assert reach([2.0, *[0.0] * 6, 1.0]) == 0.5
