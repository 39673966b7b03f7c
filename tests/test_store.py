"""The run store: identity, whole files, locks, and states that files alone decide."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lrt_lab.store import (
    RunFolder,
    RunLocked,
    canonical,
    config_hash,
    folder_name,
    read_json,
    read_jsonl,
    write_json,
)


def test_canonical_does_not_depend_on_the_order_of_keys() -> None:
    assert (
        canonical({"b": [1, 2.5], "a": {"d": None, "c": "é"}})
        == '{"a":{"c":"é","d":null},"b":[1,2.5]}'
    )
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})


def test_hash_is_stable() -> None:
    # A changed value here would orphan every finished run.
    assert config_hash({"seed": 1, "lr": 3e-3}).startswith("cad0aacf12")
    assert folder_name(7, "0123456789abcdef") == "seed-7-0123456789"


def test_canonical_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"lr": float("nan")})


def test_write_json_replaces_whole_files_and_leaves_no_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "final.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert read_json(path) == {"a": 2}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("inf")})
    assert read_json(path) == {"a": 2}
    assert [file.name for file in path.parent.iterdir()] == ["final.json"]


def test_absent_files_read_as_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "none")
    assert (run.final(), run.meta(), run.failure(), run.metrics()) == (None, None, None, [])
    assert run.state() == "pending"
    assert not run.path.exists()


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


def test_states_follow_from_files(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert run.state() == "pending"
    with run.lock():
        assert run.state() == "running"
    assert run.state() == "pending"
    run.checkpoint.parent.mkdir()
    run.checkpoint.touch()
    assert run.state() == "resumable"
    run.fail("no luck")
    assert (run.state(), run.failure()) == ("failed", "no luck")
    run.clear_failure()
    assert run.state() == "resumable"
    (run.path / "DONE").touch()
    assert run.state() == "done"


def test_a_second_lock_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with run.lock(), pytest.raises(RunLocked), run.lock(wait=0.05):
        pass


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    code = (
        "import sys, time; from pathlib import Path; from lrt_lab.store import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[1],
    )
    assert holder.stdout is not None
    with holder.stdout as output:
        assert output.readline() == b"held\n"
        assert run.state() == "running"
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    deadline = time.monotonic() + 5
    while run.held() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert run.state() == "pending"


@pytest.mark.parametrize("name", ["DONE", "final.json", "metrics.jsonl", "checkpoints/last.ckpt"])
def test_results_are_whatever_could_be_lost(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path)
    for harmless in ("lock", "stdout.log", "failed.json"):
        (tmp_path / harmless).touch()
    assert not run.holds_results()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert run.holds_results()
