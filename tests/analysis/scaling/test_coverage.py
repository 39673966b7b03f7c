"""The recorded simulation holds what is promised, and the code still gives that record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.analysis.scaling.coverage import (
    LEVEL,
    RECORD,
    REPEATS,
    RESAMPLES,
    SEED,
    SETTINGS,
    coverage,
    study,
)

# studies of each setting that are done again
AGAIN = 5


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found = json.loads(RECORD.read_text())
    assert (found["seed"], found["resamples"], found["level"]) == (SEED, RESAMPLES, LEVEL)
    return found["settings"]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_recorded_coverage_is_that_of_its_studies(record, name: str) -> None:
    assert len(record[name]["studies"]) == REPEATS
    assert record[name]["coverage"] == pytest.approx(coverage(name, record[name]["studies"]))


@pytest.mark.parametrize("name", SETTINGS)
def test_intervals_cover(record, name: str) -> None:
    assert record[name]["coverage"]["phi"] >= 0.80
    assert record[name]["coverage"]["crossing"] >= 0.80


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("phi .46", "crosses"),
        ("phi .46, noisy", "crosses"),
        ("phi 0", "never"),
        ("phi .02", "never in window"),
    ],
    ids=["crosses", "crosses, noisy", "never", "never in window"],
)
def test_the_answer_is_right_every_time(record, name: str, word: str) -> None:
    assert {s["word"] for s in record[name]["studies"]} == {word}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_code_still_gives_that_record(record, name: str) -> None:
    for repeat, old in enumerate(record[name]["studies"][:AGAIN]):
        new = study(name, repeat)
        assert new["word"] == old["word"]
        assert new["phi"] == pytest.approx(old["phi"], abs=2e-4)
        for end, before in zip(new["crossing"], old["crossing"], strict=True):
            assert end == (before if before == "none" else pytest.approx(before, rel=2e-3))
