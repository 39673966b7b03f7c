"""The commands as they are called, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import jsonargparse
import pytest

from lrt_lab.cli import main
from lrt_lab.errors import UserError
from lrt_lab.report import commands, figures
from tests.report import synthetic
from tests.report.test_csv import rows, save


def call(function, *args: str):
    return jsonargparse.auto_cli(function, args=list(args))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    return lambda: capsys.readouterr().out


def test_report_of_a_run_folder(tmp_path: Path, monkeypatch, said) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "draw", lambda *_: None)
    synthetic.write_runs(synthetic.plan(), tmp_path / "runs")
    call(commands.report, "runs/h1/quick")
    text = said()
    lines = text.splitlines()
    size = "At 269,000 parameters and 512,000 bytes: "
    assert lines[0].startswith(f"{size}at matched training FLOPs the gain of LRT is not positive")
    assert lines[1].startswith("Substitution or ceiling") and len(lines) == 3
    assert lines[2] == "report: reports/h1/quick/report.md"
    assert json.loads(Path("reports/h1/quick/results.json").read_text())["suite"]["name"] == "h1"


def test_report_of_a_table(tmp_path: Path, monkeypatch, said) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "mine.csv", rows())
    call(
        commands.report,
        "mine.csv",
        "--baseline",
        "A,none",
        "--improved",
        "P,R",
        "--margin",
        "0.002",
    )
    text = said()
    assert text.startswith("The hypothesis refuted (reversed)")
    assert text.endswith("\nreport: reports/mine/report.md\n")
    found = json.loads(Path("reports/mine/results.json").read_text())
    assert found["square"]["base"] == "A"
    assert found["suite"]["margin"] == 0.002


def test_options_of_a_table_are_refused_for_a_suite(tmp_path: Path) -> None:
    folder = synthetic.write_runs(synthetic.plan(), tmp_path / "runs")
    with pytest.raises(
        UserError, match="its suite file declares everything, so --flops, --margin cannot"
    ):
        commands.report(str(folder), margin=0.5, flops="cost")


@pytest.mark.parametrize(
    ("source", "says"),
    [("nowhere.csv", "nowhere.csv is not there"), (".", "holds no plan.json")],
    ids=["absent", "no-plan"],
)
def test_a_source_that_is_none(tmp_path: Path, monkeypatch, source: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        commands.report(source)


def test_power_of_an_assumed_deviation(said) -> None:
    call(commands.power, "--sd", "0.0004", "--seeds", "[5,8]")
    text = said()
    assert "| 5 | 0.000951 | 0.00135 |" in text
    assert "| 0.001 | 8 |" in text
    assert "| 5 | +0 | 0.013 | 0.012 | 0.025 | 0.504 | 0.446 |" in text


def test_power_from_a_suites_own_runs(tmp_path: Path, said) -> None:
    folder = synthetic.write_runs(synthetic.plan(), tmp_path / "runs")
    call(commands.power, "--source", str(folder))
    text = said()
    assert "from 5 pair blocks of h1/quick; margin 0.01, level 0.05, power 0.8" in text
    assert "in brackets: at the ends of the sd's interval" in text


@pytest.mark.parametrize("named", [True, False], ids=["named", "bare"])
def test_power_takes_its_folder_as_report_does(tmp_path: Path, said, named: bool) -> None:
    folder = str(synthetic.write_runs(synthetic.plan(), tmp_path / "runs"))
    assert main(["power", *(["--source"] if named else []), folder]) == 0
    assert "from 5 pair blocks of h1/quick" in said()


def test_a_table_in_another_encoding_exits_with_two(tmp_path: Path, capsys) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("backbone,route,seed,loss\n", encoding="utf-16")
    assert main(["report", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"lrt-lab: {path} is not UTF-8 text; save it as CSV in UTF-8 and try again\n"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give either a run folder or --sd"),
        ({"sd": 1e-3, "source": "runs"}, "give either a run folder or --sd"),
        ({"sd": -1.0}, "--sd must be above 0"),
        ({"sd": 1e-3, "correlation": 1.0}, r"--correlation in \[-1, 1\)"),
        ({"sd": 1e-3, "seeds": 1}, "--seeds are whole numbers from 2"),
        ({"sd": 1e-3, "chance": 1.0}, "--chance lies between 0 and 1"),
    ],
    ids=str,
)
def test_power_refuses(options, says: str) -> None:
    with pytest.raises(UserError, match=says):
        commands.power(**options)


def test_power_needs_two_blocks(tmp_path: Path) -> None:
    plan = synthetic.plan(seeds=[1])
    folder = synthetic.write_runs(plan, tmp_path / "runs")
    with pytest.raises(UserError, match="has 1 complete pair blocks; two are needed"):
        commands.power(str(folder))


def test_selfcheck_exits_with_zero(said) -> None:
    assert call(commands.selfcheck, "--simulations", "400") == 0
    assert "All as expected." in said()


def test_selfcheck_refuses_a_handful() -> None:
    with pytest.raises(UserError, match="below 100 nothing can be told"):
        commands.selfcheck(simulations=10)
