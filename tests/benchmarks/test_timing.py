"""The benchmarks' own arithmetic."""

from __future__ import annotations

import copy

import pytest

from tests.benchmarks.timing import beside, interleaved, judge, spread


def found(median: float = 0.7) -> dict:
    rows = {v: {"median": median, "low": 0.6, "high": 0.8} for v in ("PreNorm", "MHC")}
    return {"processor": "one", "depths": {"8": rows}}


def test_spread_is_the_range_of_the_repetitions() -> None:
    assert spread([0.5, 0.9, 0.6]) == {"median": 0.6, "low": 0.5, "high": 0.9, "repetitions": 3}


def test_ratios_are_those_of_one_repetition() -> None:
    rows = beside({"one": [1.0, 3.0], "other": [2.0, 3.0]}, "one")
    assert rows["other"] == {**spread([0.5, 1.0]), "seconds": 2.5}
    assert rows["one"]["low"] == rows["one"]["high"] == 1.0


def test_repetitions_take_turns(capsys: pytest.CaptureFixture) -> None:
    calls: list[str] = []
    times = interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, 0.0)
    assert calls == ["a", "b", "a", "b"] and [len(t) for t in times.values()] == [2, 2]


def test_a_median_below_the_committed_spread_is_flagged(capsys: pytest.CaptureFixture) -> None:
    assert judge(found(0.65), found(), "depths") == 0
    slow = copy.deepcopy(found())
    slow["depths"]["8"]["MHC"]["median"] = 0.55
    assert judge(slow, found(), "depths") == 1
    assert "MHC, depths 8: 0.550; was 0.600 to 0.800" in capsys.readouterr().out
    slow["processor"] = "another"
    assert judge(slow, found(), "depths") == 0
    assert judge(slow, None, "depths") == 0
