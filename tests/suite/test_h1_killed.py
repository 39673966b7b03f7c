"""Hypothesis 1 at its smallest scale, for real: killed and started again, it ends the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lrt_lab.store import read_json

ROOT = Path(__file__).parent.parent.parent


def start(folder: Path) -> subprocess.Popen[str]:
    """`suite run` in a process group of its own, so that everything can be killed at once."""
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_suite_comes_to_the_same_results(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole")
    out, _ = whole.communicate()
    assert whole.returncode == 0, out

    # Kills it once some run is finished and others are in the middle, twice.
    for finished in (2, 7):
        cut = start(tmp_path / "cut")
        while len(list((tmp_path / "cut").rglob("DONE"))) < finished:
            assert cut.poll() is None, cut.communicate()[0]
            time.sleep(0.05)
        os.killpg(cut.pid, signal.SIGKILL)
        cut.communicate()
        assert not (tmp_path / "cut/reports").exists()
    again = start(tmp_path / "cut")
    out, _ = again.communicate()
    assert again.returncode == 0, out
    assert "7 finished before" in out or "8 finished before" in out or "9 finished before" in out

    assert results(tmp_path / "cut") == results(tmp_path / "whole")
