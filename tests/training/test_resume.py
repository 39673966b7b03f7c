"""The same seed gives the same losses, and a run that was cut gives them too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lrt_lab.store import read_json, read_jsonl
from tests.training import tiny

TIMES = ("seconds", "train_seconds", "tokens_per_second", "eval_seconds", "throughput")


def run(corpus: Path, folder: Path, kill_at: int = 0) -> int:
    script = Path(tiny.__file__)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LRT_DATA": str(corpus.parent / "data")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(script), str(corpus), str(folder), str(kill_at)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr[-2000:]
    return done.returncode


def numbers(folder: Path) -> tuple[list[dict], dict]:
    """Everything that a run measured, wall-clock aside.

    Floats in full, since JSON keeps their repr.
    """
    rows = read_jsonl(folder / "metrics.jsonl")
    final = read_json(folder / "final.json")
    return (
        [{k: v for k, v in row.items() if k not in TIMES} for row in rows],
        {k: v for k, v in final.items() if k not in TIMES},
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume") / "corpus"
    tiny.write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def whole(corpus: Path) -> Path:
    """A run that was never cut."""
    folder = corpus.parent / "whole"
    assert run(corpus, folder) == 0
    return folder


def test_the_run_is_what_the_others_are_compared_with(whole: Path) -> None:
    rows, final = numbers(whole)
    steps = [row["step"] for row in rows if "train/loss" in row]
    assert steps == list(range(1, tiny.STEPS + 1))
    assert [row["step"] for row in rows if "val/loss" in row] == [
        *range(0, tiny.STEPS, 4),
        tiny.STEPS,
    ]
    assert len({row["train/loss"] for row in rows if "train/loss" in row}) == tiny.STEPS
    assert final["status"] == "finished" and (whole / "DONE").exists()
    card = json.loads(next((whole.parent / "data").rglob("card.json")).read_text())
    assert card["splits"]["train"]["windows"] == tiny.EPOCH * tiny.BATCH


def test_two_fits_with_one_seed_are_bit_identical(corpus: Path, whole: Path) -> None:
    again = corpus.parent / "again"
    assert run(corpus, again) == 0
    assert numbers(again) == numbers(whole)


@pytest.mark.parametrize(
    "kill_at",
    [
        pytest.param(3, id="before-the-first-checkpoint"),
        pytest.param(7, id="mid-epoch"),
        pytest.param(12, id="at-an-epochs-end"),
        pytest.param(13, id="after-an-epochs-end"),
        pytest.param(25, id="second-epochs-end"),
    ],
)
def test_a_killed_fit_goes_on_bit_identically(corpus: Path, whole: Path, kill_at: int) -> None:
    folder = corpus.parent / f"killed-{kill_at}"
    assert run(corpus, folder, kill_at) == -9
    assert not (folder / "DONE").exists()
    assert run(corpus, folder) == 0
    assert numbers(folder) == numbers(whole)


def test_a_finished_run_is_left_alone(corpus: Path, whole: Path) -> None:
    before = (whole / "metrics.jsonl").stat().st_mtime_ns
    assert run(corpus, whole) == 0
    assert (whole / "metrics.jsonl").stat().st_mtime_ns == before
