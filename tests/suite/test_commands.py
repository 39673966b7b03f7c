"""The commands: torch-free, `--dry-run`, `status` and `report` on a half-finished suite."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.store import RunFolder, read_json, write_json
from lrt_lab.suite import commands, pricing
from lrt_lab.suite.commands import report, run, status
from lrt_lab.suite.declaration import load
from lrt_lab.suite.reports import clear_unfinished, set_aside, write_report
from lrt_lab.suite.workers import default_jobs, visible_gpus
from tests.report import synthetic

from .conftest import Lab, replace_report

ROOT = Path(__file__).resolve().parents[2]


def test_the_parent_imports_nothing_heavy() -> None:
    code = (
        "import sys, pkgutil, importlib, lrt_lab.store, lrt_lab.suite\n"
        "for part in pkgutil.iter_modules(lrt_lab.suite.__path__):\n"
        "    importlib.import_module(f'lrt_lab.suite.{part.name}')\n"
        "import lrt_lab.training.config\n"
        "heavy = {'torch', 'lightning', 'litdata', 'numpy', 'scipy', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_status_and_a_finished_run_import_nothing_heavy(
    lab: Lab, written_reports: list[tuple[Path, Path]]
) -> None:
    assert lab.run() == 0
    code = (
        "import sys; from lrt_lab.suite.commands import status\n"
        f"status({str(lab.suite)!r}, runs={str(lab.home / 'runs')!r})\n"
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_a_dry_run_prices_every_cell_and_writes_nothing(
    lab: Lab, capsys: pytest.CaptureFixture[str], scale: str
) -> None:
    before = sorted(lab.home.rglob("*"))
    assert lab.run(scale=scale, dry_run=True) == 0
    calls = lab.home / "calls"
    assert sorted(path for path in lab.home.rglob("*") if path != calls) == before
    # Other seeds cost the same.
    assert len(calls.read_text().splitlines()) == 6
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    if scale == "quick":
        assert ["PreNorm+LRT", "1.15", "k", "5", "50", "1.05", "k", "0.0", "s"] in rows
        assert ["PreNorm+none@flops", "1.13", "k", "10", "100", "1.00", "k", "0.0", "s"] in rows
        tail = ["2.30", "k", "512", "4.10", "k", "8.10", "k"]
        assert ["PreNorm+LRT", "2", "21", *tail] in rows
        assert ["all,", "2", "seeds", "80", "800", "11.7", "k", "0.0", "s"] in rows
    else:
        # 210 GFLOP at half of the 1 MFLOP/s that the backend measures.
        assert ["PreNorm+LRT", "4.9", "days"] in [row[:1] + row[-2:] for row in rows]


@pytest.mark.parametrize(
    ("scale", "jobs", "line"),
    [
        ("quick", 1, "about 0.0 s on this machine's CPU; with 2 jobs, as `make` has it"),
        ("quick", 2, "12 runs with 2 jobs: about 0.0 s on this machine's CPU\n"),
        ("paper", 2, "about 14 days on this machine's CPU; this scale is meant for a GPU\n"),
    ],
)
def test_a_dry_run_says_what_its_total_is_for(
    lab: Lab, capsys: pytest.CaptureFixture[str], scale: str, jobs: int, line: str
) -> None:
    visible_gpus.cache_clear()
    assert lab.run(scale=scale, jobs=jobs, dry_run=True) == 0
    out = capsys.readouterr().out
    assert line in out
    assert " time on this CPU" in out
    told = out.splitlines()
    assert told.index("pricing 6 cells ...") < told.index("measuring the speed of this machine ...")


def test_a_dry_run_for_a_card_says_its_gpu_hours(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.tree["scales"]["quick"]["gpu"] = {"card": "H200", "flops": 5000}
    lab.save()
    assert lab.run(dry_run=True) == 0
    # 11.7 kFLOP at 5,000 a second.
    assert "GPU-hours: 0.00065 of one H200 at an assumed 5.00 kFLOP/s; training only" in (
        capsys.readouterr().out
    )
    lab.tree["scales"]["quick"]["gpu"] = {"card": "H200", "flops": -1}
    with pytest.raises(UserError, match=r"scales.quick.gpu.flops is -1.0"):
        load(lab.save())


def test_slow_pricing_says_how_far_it_is(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "_LINE_EVERY", 0.0)
    assert lab.run(dry_run=True) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("priced")]
    assert lines == [f"priced {number} of 6 cells" for number in range(1, 6)]


def test_a_dry_run_says_where_its_times_come_from(
    lab: Lab, written_reports: list[tuple[Path, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    lab.run(dry_run=True)
    assert "time: from 0.001 GFLOP/s just measured here" in capsys.readouterr().out
    assert lab.run(only=["PreNorm+none"]) == 0
    capsys.readouterr()
    lab.run(dry_run=True)
    out = capsys.readouterr().out
    assert "time: from finished runs of this scale, evaluation included" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["PreNorm+none", "1.13", "k", "5", "50", "500", "1.2", "s"] in rows
    # 2.1 times the FLOPs.
    assert ["PreNorm+LRT", "1.15", "k", "5", "50", "1.05", "k", "2.6", "s"] in rows


def test_status_tells_every_state(
    lab: Lab, written_reports: list[tuple[Path, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    lab.mood("raise")
    assert lab.run(only=["PreNorm+none", "PreNorm+LRT"]) == 1
    entry = next(
        one
        for one in read_json(lab.runs / "plan.json")["cells"]
        if (one["cell"], one["seed"]) == ("AttentionResiduals+none", 1)
    )
    folder = RunFolder(lab.runs / entry["folder"])
    folder.checkpoint.parent.mkdir(parents=True)
    folder.checkpoint.touch()
    (folder.path / "metrics.jsonl").write_text('{"step": 3}\n')
    capsys.readouterr()
    assert status(str(lab.suite), runs=str(lab.home / "runs")) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["PreNorm+none", "done", "2.0100", "done", "2.0200"] in rows
    assert ["PreNorm+LRT", "failed", "failed"] in rows
    assert ["AttentionResiduals+none", "resumable", "3/5", "pending"] in rows
    assert "failed: PreNorm+LRT seed 1: RuntimeError: the device fell over" in out
    assert "2 of 12 runs done" in out
    assert "overhead: " in out


def test_run_and_status_tell_one_overhead(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(plan: dict[str, Any], runs_dir: Path, out_dir: Path) -> Path:
        time.sleep(1.0)
        return out_dir / "report.md"

    replace_report(monkeypatch, write)
    assert lab.run() == 0
    (told,) = re.findall(r"suite overhead (\S+) of training", capsys.readouterr().out)
    assert status(str(lab.suite), runs=str(lab.home / "runs")) == 0
    (shown,) = re.findall(r"overhead: (\S+) of training", capsys.readouterr().out)
    assert told == shown
    # Nothing to run is no session.
    assert lab.run() == 0
    assert status(str(lab.suite), runs=str(lab.home / "runs")) == 0
    assert f"overhead: {told} of training" in capsys.readouterr().out


def test_the_report_keeps_the_overhead(tmp_path: Path) -> None:
    plan = synthetic.plan(seeds=(1, 2), twins=False)
    runs = synthetic.write_runs(plan, tmp_path / "runs", points=2)
    # Training: four runs of 50 s and four of 25 s; evaluation: eight of 3 s.
    (runs / "sessions.jsonl").write_text('{"session": "x", "jobs": 2, "seconds": 180.0}\n')
    path = write_report(plan, runs, tmp_path / "reports", tmp_path / "h1.yaml")
    cost = read_json(path.with_name("results.json"))["wall_clock"]["overhead"]
    assert cost == {
        "ratio": pytest.approx(36 / 300),
        "slot_seconds": 360,
        "training_seconds": 300,
        "evaluation_seconds": 24,
        "sessions": 1,
    }
    line = "suite overhead: 12.0% of training = (360 s of jobs x wall - 300 s training - 24 s eval"
    assert line in path.read_text()


def test_report_works_on_a_half_finished_suite(
    lab: Lab, written_reports: list[tuple[Path, Path]]
) -> None:
    assert lab.run(only=["PreNorm+none"]) == 0
    assert written_reports == []
    where = {"runs": str(lab.home / "runs"), "reports": str(lab.home / "reports")}
    assert report(str(lab.suite), **where) == 0
    assert written_reports == [(lab.runs, lab.home / "reports" / "toy" / "quick")]


def test_a_report_of_a_changed_suite_says_so(
    lab: Lab, written_reports: list[tuple[Path, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.run() == 0
    lab.save(title="Another")
    assert report(str(lab.suite), runs=str(lab.home / "runs")) == 0
    assert "has changed since these runs were planned" in capsys.readouterr().out


def test_the_report_file_of_a_changed_suite_says_so(tmp_path: Path) -> None:
    suite_file = tmp_path / "h1.yaml"
    suite_file.write_text("suite: h1\n")
    digest = hashlib.sha256(suite_file.read_bytes()).hexdigest()
    plan = synthetic.plan(seeds=(1, 2), twins=False) | {"suite_hash": digest}
    runs = synthetic.write_runs(plan, tmp_path / "runs", points=2)

    def built() -> tuple[str, str, dict[str, Any]]:
        path = write_report(plan, runs, tmp_path / "reports", suite_file)
        results = path.with_name("results.json")
        return path.read_text(), results.read_text(), read_json(results)["registration"]

    before = built()
    assert "did not change after runs existed" in before[0]
    assert before[2]["suite_hash_now"] is None
    suite_file.write_text("suite: h1\ntitle: another\n")
    now = hashlib.sha256(suite_file.read_bytes()).hexdigest()
    text, raw, registration = built()
    assert "**The suite file changed after these runs were planned**" in text
    assert now in text
    assert "did not change" not in text
    assert (registration["suite_hash"], registration["suite_hash_now"]) == (digest, now)
    assert built()[:2] == (text, raw)
    suite_file.write_text("suite: h1\n")
    assert built() == before


@pytest.mark.parametrize("command", [status, report])
def test_nothing_was_run_yet(lab: Lab, command: Any) -> None:
    with pytest.raises(UserError, match="No runs of toy at scale quick.*start them with"):
        command(str(lab.suite), runs=str(lab.home / "runs"))


@pytest.mark.parametrize("command", [status, report])
def test_scales_that_have_runs_are_named(
    lab: Lab, command: Any, written_reports: list[tuple[Path, Path]]
) -> None:
    assert lab.run(only=["PreNorm+none"]) == 0
    with pytest.raises(UserError, match=r"No runs of toy at scale paper.*have runs there: quick\."):
        command(str(lab.suite), scale="paper", runs=str(lab.home / "runs"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The `results.json` of a complete suite, as the report writes it."""
    from lrt_lab.report import suite_report

    folder = tmp_path_factory.mktemp("written")
    plan = synthetic.plan(seeds=(1, 2), twins=False)
    runs = synthetic.write_runs(plan, folder / "runs", points=2)
    suite_report.write(plan, runs, folder / "report")
    return read_json(folder / "report" / "results.json")


def leave(written: dict[str, Any], folder: Path, suite_hash: str, whole: bool = True) -> None:
    """That report in a folder, of another suite file; or of one with a run missing."""
    missing = [] if whole else [{"cell": "PreNorm+none", "seed": 1, "status": "missing"}]
    assert written["registration"].keys() >= {"suite_hash", "missing"}
    found = {**written["registration"], "suite_hash": suite_hash, "missing": missing}
    write_json(folder / "results.json", {**written, "registration": found})


def test_a_complete_report_of_another_suite_file_moves_aside(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, written: dict[str, Any]
) -> None:
    target = lab.home / "reports" / "toy" / "quick"
    leave(written, target, "a" * 64)

    def write(plan: dict[str, Any], runs_dir: Path, out_dir: Path) -> Path:
        leave(written, out_dir, plan["suite_hash"])
        return out_dir / "report.md"

    replace_report(monkeypatch, write)
    assert lab.run() == 0
    lab.save(title="Another")
    assert lab.run() == 0
    names = sorted(path.name for path in target.parent.iterdir())
    assert len(names) == 3
    assert f"quick-{'a' * 10}" in names
    # The same suite file writes over its own report.
    assert lab.run() == 0
    assert sorted(path.name for path in target.parent.iterdir()) == names


def test_set_aside_keeps_what_it_must(tmp_path: Path, written: dict[str, Any]) -> None:
    target = tmp_path / "quick"
    assert set_aside(target, "b" * 64) is None
    leave(written, target, "a" * 64, whole=False)
    assert set_aside(target, "b" * 64) is None
    leave(written, target, "a" * 64)
    assert set_aside(target, "a" * 64) is None
    assert set_aside(target, "b" * 64) == tmp_path / "quick-aaaaaaaaaa"
    leave(written, target, "a" * 64)
    assert set_aside(target, "b" * 64) == tmp_path / "quick-aaaaaaaaaa-2"


def test_what_a_killed_report_left_is_cleared(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine, gone = os.getpid(), dead.pid
    (tmp_path / "figures").mkdir()
    names = [f".results.json.{gone}.tmp", f"figures/.gains.{gone}.svg", f".report.md.{mine}.tmp"]
    for name in [*names, "figures/gains.svg", ".notes"]:
        (tmp_path / name).touch()
    clear_unfinished(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert left == [".notes", f".report.md.{mine}.tmp", "figures/gains.svg"]


def test_jobs_default_to_the_number_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, gpus, jobs in (("", [], 1), ("-1", [], 1), ("2,5", ["2", "5"], 2)):
        visible_gpus.cache_clear()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert (visible_gpus(), default_jobs()) == (gpus, jobs)
    visible_gpus.cache_clear()


@pytest.mark.parametrize("command", [run, status, report])
def test_the_help_says_a_line_on_every_option(command: Any) -> None:
    import inspect

    import docstring_parser

    style = docstring_parser.DocstringStyle.GOOGLE
    told = {one.arg_name for one in docstring_parser.parse(command.__doc__, style=style).params}
    assert told == set(inspect.signature(command).parameters)


def test_cells_may_be_given_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(commands, "execute", lambda *given: asked.append(given[-1]) or 0)
    run("h1.yaml", only="PreNorm+none,PreNorm+LRT")
    run("h1.yaml", only=["PreNorm+none"])
    run("h1.yaml")
    assert asked == [["PreNorm+none", "PreNorm+LRT"], ["PreNorm+none"], None]
