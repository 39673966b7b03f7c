"""Overhead: (jobs x wall - training - evaluation) / training, killed sessions included."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lrt_lab.store import read_jsonl, write_json
from lrt_lab.suite.sessions import Session, overhead


def finished(
    folder: Path, name: str, train: float, evaluate: float, done: bool = True
) -> dict[str, Any]:
    write_json(folder / name / "final.json", {"train_seconds": train, "eval_seconds": evaluate})
    if done:
        (folder / name / "DONE").touch()
    return {"folder": name}


def test_overhead_is_what_the_formula_says(tmp_path: Path) -> None:
    plan = {
        "cells": [
            finished(tmp_path, "a", 40, 5),
            finished(tmp_path, "b", 60, 5),
            finished(tmp_path, "c", 99, 9, done=False),
        ]
    }
    (tmp_path / "sessions.jsonl").write_text(
        '{"session": "x", "jobs": 2, "seconds": 1.0}\n'
        '{"session": "x", "jobs": 2, "seconds": 40.0}\n'
        '{"session": "y", "jobs": 1, "seconds": 38.0}\n'
        '{"session": "y", "jobs": 1, "sec'
    )
    cost = overhead(plan, tmp_path)
    assert cost is not None
    assert (cost.slots, cost.training, cost.evaluation, cost.sessions) == (118, 100, 10, 2)
    assert cost.ratio == pytest.approx(0.08)


def test_there_is_none_before_anything_finished(tmp_path: Path) -> None:
    assert overhead({"cells": [{"folder": "a"}]}, tmp_path) is None


def test_a_session_writes_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text('{"session": "old", "jobs": 1, "seconds": 2.0}\n{"session": "cut')
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    session = Session(tmp_path, jobs=2, began=now - 1)
    for _ in range(40):
        now += 0.25
        session.beat()
    session.end()
    lines = [(line["jobs"], line["seconds"]) for line in read_jsonl(path)]
    assert lines == [(1, 2.0), (2, 1.0), (2, 6.0), (2, 11.0), (2, 11.0)]
