"""Hypothesis 1 at its smallest scale, for real: killed and started again, it ends the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lrt_lab.store import read_json

ROOT = Path(__file__).parent.parent.parent


def start(folder: Path) -> subprocess.Popen[str]:
    """`suite run` in a process group of its own."""
    words = ["suite", "run", "experiments/h1.yaml", "--scale", "smoke", "--jobs", "2"]
    words += ["--runs", str(folder / "runs"), "--reports", str(folder / "reports")]
    return subprocess.Popen(
        [sys.executable, "-m", "lrt_lab.cli", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["kernels", *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def results(folder: Path) -> dict:
    """Everything but the clock's numbers, and the commit, which says nothing of the runs."""
    found = read_json(folder / "reports/h1/smoke/results.json")
    assert found.pop("wall_clock")
    assert found["registration"].pop("commits")
    return found


def kill(folder: Path, when: Callable[[subprocess.Popen[str]], bool]) -> None:
    """Start the suite; kill it and its workers as soon as `when` says so."""
    suite = start(folder)
    while not when(suite):
        assert suite.poll() is None, suite.communicate()[0]
        time.sleep(0.01)
    # The workers are not in its group: they must notice by themselves.
    os.killpg(suite.pid, signal.SIGKILL)
    suite.communicate()


def workers_of(suite: subprocess.Popen[str]) -> int:
    """How many processes it has started that are now Python workers."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            words = (stat.parent / "cmdline").read_text()
            found += parent == suite.pid and "lrt_lab.suite.worker" in words
    return found


def files(folder: Path) -> list[str]:
    """Names of all that a report consists of."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_suite_comes_to_the_same_results(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole")
    out, _ = whole.communicate()
    assert whole.returncode == 0, out

    runs, report = tmp_path / "cut/runs/h1/smoke", tmp_path / "cut/reports/h1/smoke"

    # While its workers price the runs: nothing is written yet.
    kill(tmp_path / "cut", lambda suite: workers_of(suite) == 2)
    assert not runs.exists()

    # Once some run is finished and others are in the middle, twice.
    for finished in (2, 7):
        kill(tmp_path / "cut", lambda _, n=finished: len(list(runs.rglob("DONE"))) >= n)
        assert not report.exists()

    # In the middle of writing the report: figures come first, the report itself last.
    kill(tmp_path / "cut", lambda _: any((report / "figures").glob(".*.svg")))
    done = len(list(runs.rglob("DONE")))
    assert done == len(read_json(runs / "plan.json")["cells"])
    assert not (report / "report.md").exists()

    again = start(tmp_path / "cut")
    out, _ = again.communicate()
    assert again.returncode == 0, out
    assert f"{done} finished before" in out
    assert results(tmp_path / "cut") == results(tmp_path / "whole")
    assert files(report) == files(tmp_path / "whole/reports/h1/smoke")
