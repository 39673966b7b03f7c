"""The list of reports: as the folders have it, in the repository too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lrt_lab.report import index
from lrt_lab.store import read_json

ROOT = Path(__file__).parents[2]
LIST = "# Reports\n\n<!-- reports of toy more -->\nold\n<!-- end of the list -->\nafter\n"


def report(folder: Path, digest: str, missing: int = 0) -> None:
    folder.mkdir(parents=True)
    results = {
        "registration": {
            "suite_hash": digest,
            "frozen": {"commit": "c" * 40},
            "runs": {"planned": 30, "missing": missing},
        },
        "budgets": {"tokens": {"reading": "reversed"}},
    }
    (folder / "results.json").write_text(json.dumps(results))


def test_complete_reports_are_listed_and_nothing_else_changes(tmp_path: Path) -> None:
    report(tmp_path / "toy" / "quick", "a" * 64)
    report(tmp_path / "toy" / "quick-bbbbbbbbbb", "b" * 64)
    report(tmp_path / "toy" / "cpu", "d" * 64, missing=1)
    report(tmp_path / "more" / "cpu", "e" * 64)
    readme = tmp_path / "toy" / "README.md"
    readme.write_text(LIST)
    assert index.update(tmp_path) == [readme]
    lines = readme.read_text().splitlines()
    assert lines[:2] == ["# Reports", ""] and lines[-1] == "after"
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| [")] == [
        "[toy/quick](../toy/quick/report.md)",
        "[toy/quick-bbbbbbbbbb](../toy/quick-bbbbbbbbbb/report.md)",
        "[more/cpu](../more/cpu/report.md)",
    ]
    assert f"`{'b' * 64}` | `cccccccccc` | 30 | reversed |" in "\n".join(lines)
    assert index.update(tmp_path) == []


@pytest.mark.parametrize("text", ["# No list\n", "<!-- reports of toy -->\nnever closed\n"])
def test_other_readmes_are_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "README.md").write_text(text)
    assert index.update(tmp_path) == []


#: The suites that each README lists, and the hashes of all complete runs so far: rows are added
#: here, never taken away.
LISTS = {
    "h1": (
        ("h1", "h1-swaps"),
        (
            "48dc824e24607109f67a3f718fb0fb4254c48a897a49191e9accb5b03923c96e",
            "08a6dfb9ec90ff0f2d5ac3e4c3e8b2ae1be71c9d04898106dd6945b489de1383",
            "3b1adc83ff0d12bdb15f837ed51a60ec1ffa925f430da1a3a01a8563ab1a8cd4",
        ),
    ),
    "h2": (
        ("h2", "h2-swaps"),
        (
            "e1a4fe869794dd531c0341225b3474ce68cc46d99ed17e4b3a1e847863c48e7e",
            "d059e5f0ed7d8a1f274cfc250cd84480f0489a20ffe0fd62772153f152aea65e",
        ),
    ),
    "h3": (("h3",), ("8723b984fbc68650a2744cccc404155adbd538849da9b2b33f2f97726cb2fc4a",)),
}


@pytest.mark.parametrize("home", LISTS)
def test_every_complete_report_that_is_here_is_listed(home: str) -> None:
    readme = ROOT / "reports" / home / "README.md"
    text = readme.read_text()
    suites, _ = LISTS[home]
    assert f"<!-- reports of {' '.join(suites)} -->" in text
    assert index.relisted(text, ROOT / "reports", readme.parent) == text, (
        "the list is not what the folders hold: lrt_lab.report.index.update writes it"
    )
    for suite in suites:
        for path in (ROOT / "reports" / suite).glob("*/results.json"):
            results = read_json(path)
            assert index.complete(results), f"{path.parent} lacks runs"
            assert results["registration"]["suite_hash"] in text


@pytest.mark.parametrize("home", LISTS)
def test_no_report_is_lost(home: str) -> None:
    text = (ROOT / "reports" / home / "README.md").read_text()
    for digest in LISTS[home][1]:
        assert digest in text


def test_the_reading_of_arms_names_them() -> None:
    arms = {"arm": "reflection", "reference": "ffn", "primary": {"reading": "not solid"}}
    assert index.reading({"arms": arms}) == "reflection over ffn: not solid"
