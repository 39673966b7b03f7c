"""A suite from end to end on a fake backend: what finishes, fails, is cut, goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lrt_lab.errors import UserError
from lrt_lab.store import RunFolder, read_json, read_jsonl
from lrt_lab.suite import plan as plans
from lrt_lab.suite.commands import execute

from .conftest import Lab

pytestmark = pytest.mark.usefixtures("written_reports")


def states(lab: Lab) -> dict[str, str]:
    plan = read_json(lab.runs / "plan.json")
    return {
        f"{run['cell']} {run['seed']}": RunFolder(lab.runs / run["folder"]).state()
        for run in plan["cells"]
    }


def only_folder(lab: Lab, cell: str, seed: int = 1) -> RunFolder:
    (path,) = (lab.runs / cell).glob(f"seed-{seed}-*")
    return RunFolder(path)


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def step_of(lab: Lab, cell: str) -> int:
    found = [path for path in (lab.runs / cell).glob("seed-1-*/checkpoints/last.ckpt")]
    return int(found[0].read_text()) if found else 0


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_all_runs_finish_and_the_report_follows(
    lab: Lab, written_reports: list[tuple[Path, Path]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert lab.run() == 0
    assert set(states(lab).values()) == {"done"}
    assert written_reports == [(lab.runs, lab.home / "reports" / "toy" / "quick")]
    out, err = capfd.readouterr()
    assert "toy at scale quick: 12 runs, 0 finished before, 2 jobs" in out
    assert "(12/12 runs done)" in out
    assert "report: " in out
    # What libraries print belongs to the run that was worked on, and never reaches the protocol.
    assert "from Python" not in out + err
    run = only_folder(lab, "PreNorm+LRT")
    assert run.stdout.read_text().splitlines() == ["from Python", "from another program"]
    meta = run.meta()
    assert meta is not None
    assert {key: meta[key] for key in ("suite", "scale", "cell", "seed")} == {
        "suite": "toy",
        "scale": "quick",
        "cell": "PreNorm+LRT",
        "seed": 1,
    }


def test_workers_are_reused(lab: Lab) -> None:
    assert lab.run(jobs=2) == 0
    metas = [read_json(path) for path in lab.runs.glob("*/*/meta.json")]
    assert len({meta["pid"] for meta in metas}) == 2


def test_finished_runs_are_skipped(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run(only=["PreNorm+none"]) == 0
    assert "10 runs not finished, so no report yet" in capsys.readouterr().out
    before = (only_folder(lab, "PreNorm+none").path / "DONE").stat().st_mtime_ns
    assert lab.run() == 0
    assert "12 runs, 2 finished before" in capsys.readouterr().out
    assert (only_folder(lab, "PreNorm+none").path / "DONE").stat().st_mtime_ns == before


def test_an_unknown_cell(lab: Lab) -> None:
    with pytest.raises(
        UserError, match=r"unknown cell 'PreNorm\+LTR'. Did you mean 'PreNorm\+LRT'"
    ):
        lab.run(only=["PreNorm+LTR"])


def test_no_jobs(lab: Lab) -> None:
    with pytest.raises(UserError, match="--jobs is 0"):
        lab.run(jobs=0)


@pytest.mark.parametrize(
    ("mood", "line"),
    [
        ("crash", "its worker was killed by SIGKILL; out of memory?"),
        ("raise", "RuntimeError: the device fell over"),
    ],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_cell_does_not_stop_the_others(
    lab: Lab,
    written_reports: list[tuple[Path, Path]],
    capsys: pytest.CaptureFixture[str],
    mood: str,
    line: str,
    jobs: int,
) -> None:
    lab.mood(mood)
    assert lab.run(jobs=jobs) == 1
    found = states(lab)
    assert {name for name, state in found.items() if state == "failed"} == {
        f"{backbone}+LRT {seed}"
        for backbone in ("PreNorm", "AttentionResiduals")
        for seed in (1, 2)
    }
    assert sorted(found.values()) == ["done"] * 8 + ["failed"] * 4
    run = only_folder(lab, "PreNorm+LRT")
    assert run.failure() == line
    assert written_reports == []
    out = capsys.readouterr().out
    assert f"failed: PreNorm+LRT seed 1: {line} (more in " in out
    assert "4 runs not finished" in out

    # Mended, the same command tries them again, from their checkpoints.
    (lab.home / "heal").touch()
    assert lab.run(jobs=jobs) == 0
    assert set(states(lab).values()) == {"done"}
    meta = run.meta()
    assert meta is not None
    assert meta["first_step"] == 2
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5]
    assert len(written_reports) == 1
    assert "resume PreNorm+LRT seed 1" in capsys.readouterr().out


def test_what_the_user_must_mend_is_said_once(lab: Lab) -> None:
    lab.tree["axes"]["backbone"] = {
        name: {**keys, "model.mood": "user_error"}
        for name, keys in lab.tree["axes"]["backbone"].items()
    }
    lab.save()
    with pytest.raises(UserError, match="corpus 'x' is not prepared"):
        lab.run(jobs=1)
    assert sorted(states(lab).values()) == ["failed"] * 2 + ["pending"] * 10


def test_a_user_error_of_one_cell_is_that_cells_failure(lab: Lab) -> None:
    lab.tree["axes"]["backbone"]["PreNorm"]["model.mood"] = "user_error"
    lab.save()
    assert lab.run(jobs=1) == 1
    assert sorted(states(lab).values()) == ["done"] * 6 + ["failed"] * 6


def test_a_diverged_run_is_a_result(lab: Lab) -> None:
    lab.mood("diverge")
    assert lab.run() == 0
    assert set(states(lab).values()) == {"done"}


def test_a_worker_killed_from_outside(lab: Lab) -> None:
    lab.config("base", {"model": {"width": 8, "step_seconds": 0.05}})
    suite = lab.start(jobs=2)
    assert suite.stdout is not None
    wait_for(lambda: step_of(lab, "AttentionResiduals+LRT") >= 2)
    meta = only_folder(lab, "AttentionResiduals+LRT").meta()
    assert meta is not None
    os.kill(meta["pid"], signal.SIGKILL)
    out, _ = suite.communicate(timeout=60)
    assert suite.returncode == 1
    assert "failed AttentionResiduals+LRT seed 1: its worker was killed by SIGKILL" in out
    assert sorted(states(lab).values()) == ["done"] * 11 + ["failed"]
    assert lab.run() == 0
    meta = only_folder(lab, "AttentionResiduals+LRT").meta()
    assert meta is not None
    assert meta["first_step"] >= 2


def test_a_parent_killed_takes_its_workers_along_and_its_runs_go_on(lab: Lab) -> None:
    lab.mood("hang")
    suite = lab.start(jobs=2)
    wait_for(lambda: step_of(lab, "AttentionResiduals+LRT") == 2)
    wait_for(lambda: step_of(lab, "PreNorm+LRT") == 2)
    pids = [
        read_json(only_folder(lab, cell).path / "meta.json")["pid"]
        for cell in ("AttentionResiduals+LRT", "PreNorm+LRT")
    ]
    assert states(lab)["PreNorm+LRT 1"] == "running"
    assert all(alive(pid) for pid in pids)
    suite.kill()
    suite.communicate(timeout=60)
    wait_for(lambda: not any(alive(pid) for pid in pids), seconds=10)
    assert states(lab)["PreNorm+LRT 1"] == "resumable"
    # Its time is on record all the same.
    assert read_jsonl(lab.runs / "sessions.jsonl")

    (lab.home / "heal").touch()
    assert lab.run() == 0
    run = only_folder(lab, "PreNorm+LRT")
    meta = run.meta()
    assert meta is not None
    assert meta["first_step"] == 2
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5]
    assert len({line["session"] for line in read_jsonl(lab.runs / "sessions.jsonl")}) == 2


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_an_interrupted_suite_says_how_to_go_on(lab: Lab, number: int, code: int) -> None:
    lab.mood("hang")
    suite = lab.start(jobs=2)
    wait_for(lambda: step_of(lab, "AttentionResiduals+LRT") == 2)
    wait_for(lambda: step_of(lab, "PreNorm+LRT") == 2)
    pid = read_json(only_folder(lab, "PreNorm+LRT").path / "meta.json")["pid"]
    suite.send_signal(number)
    out, _ = suite.communicate(timeout=60)
    assert suite.returncode == code
    last = out.splitlines()[-1]
    assert last.startswith(f"stopped by {signal.Signals(number).name} with ")
    assert last.endswith("2 of them with a checkpoint; the same command goes on from here")
    assert "Traceback" not in out
    assert not alive(pid)
    assert "failed" not in states(lab).values()
    (lab.home / "heal").touch()
    assert lab.run() == 0


def test_a_stopped_dry_run_has_nothing_to_go_on_from(lab: Lab) -> None:
    lab.tree["axes"]["route"]["LRT"]["model.price_seconds"] = 60
    lab.save()
    suite = lab.start(dry_run=True)
    wait_for((lab.home / "calls").exists)
    suite.send_signal(signal.SIGINT)
    out, _ = suite.communicate(timeout=60)
    assert suite.returncode == 130
    assert out.splitlines() == [
        "pricing 6 cells ...",
        "stopped by SIGINT; a dry run leaves nothing behind",
    ]
    assert not lab.runs.exists()


def test_a_run_that_another_process_holds_is_waited_for(lab: Lab) -> None:
    lab.config("base", {"model": {"width": 8, "step_seconds": 0.02}})
    one, two = lab.start(jobs=1), lab.start(jobs=1)
    for suite in (one, two):
        out, _ = suite.communicate(timeout=120)
        assert suite.returncode == 0, out
    metas = [read_json(path) for path in lab.runs.glob("*/*/meta.json")]
    assert len(metas) == 12
    assert all(meta["first_step"] == 0 for meta in metas)
    assert {len(read_jsonl(path)) for path in lab.runs.glob("*/*/metrics.jsonl")} == {5, 10}


def test_a_config_that_changes_under_way_is_not_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = plans.config_of

    def edited(*arguments: object, **options: object) -> dict[str, object]:
        config = original(*arguments, **options)  # type: ignore[arg-type]
        planned = (lab.runs / "plan.json").exists()
        return {**config, "model": {**config["model"], "width": 9}} if planned else config

    monkeypatch.setattr(plans, "config_of", edited)
    with pytest.raises(UserError) as error:
        lab.run(only=["PreNorm+none"], jobs=1)
    assert "no longer the one that was planned" in str(error.value)
    assert not list(lab.runs.glob("*/*/DONE"))


def test_workers_that_cannot_start_end_the_suite(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute(str(lab.suite), "quick", 1, runs="runs", reports="reports", backend="no.such")
    assert code == 1
    out = capsys.readouterr().out
    assert "suite stopped: a worker cannot start: ModuleNotFoundError: No module named 'no'" in out


def test_no_process_is_left_behind(lab: Lab) -> None:
    assert lab.run() == 0
    pids = {read_json(path)["pid"] for path in lab.runs.glob("*/*/meta.json")}
    assert not any(alive(pid) for pid in pids)
