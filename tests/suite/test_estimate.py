"""Time estimates: measured on finished runs where there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lrt_lab.store import write_json
from lrt_lab.suite.estimate import estimate


def entry(cell: str, seed: int, flops: float) -> dict[str, Any]:
    return {"cell": cell, "seed": seed, "train_flops": flops, "folder": f"{cell}/{seed}"}


ENTRIES = [entry("a", 1, 100.0), entry("a", 2, 100.0), entry("b", 1, 250.0), entry("c", 1, 50.0)]


def finish(folder: Path, name: str, seconds: float, status: str = "finished") -> None:
    record = {"status": status, "train_seconds": seconds - 1, "eval_seconds": 1.0}
    write_json(folder / name / "final.json", record)
    (folder / name / "DONE").touch()


def test_without_finished_runs_a_rate_is_measured(tmp_path: Path) -> None:
    seconds, source = estimate(ENTRIES, tmp_path, lambda: 20.0)
    assert seconds == pytest.approx([10, 10, 25, 5])
    assert "training only" in source


def test_finished_runs_speak_for_their_cell_and_for_flops(tmp_path: Path) -> None:
    finish(tmp_path, "a/1", 4.0)
    finish(tmp_path, "b/1", 17.0)
    # A diverged run stops early and says nothing about time.
    finish(tmp_path, "c/1", 0.1, status="diverged")
    seconds, source = estimate(ENTRIES, tmp_path, lambda: pytest.fail("not needed"))
    assert seconds == pytest.approx([4, 4, 17, 3])
    assert "finished runs" in source
