"""The benchmark's own arithmetic, and that a compiled sweep is one graph."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.benchmarks import backbones
from tests.benchmarks.backbones import BASELINE, VARIANTS, graphs, judge, spread


def found(median: float = 0.7) -> dict:
    rows = {v: {"median": median, "low": 0.6, "high": 0.8, "saved_mib": 1.0} for v in VARIANTS}
    return {"processor": "one", "depths": {"8": rows}, "graphs": {}}


def test_spread_is_the_range_of_the_repetitions() -> None:
    assert spread([0.5, 0.9, 0.6]) == {"median": 0.6, "low": 0.5, "high": 0.9, "repetitions": 3}


def test_a_median_below_the_committed_spread_is_flagged(capsys: pytest.CaptureFixture) -> None:
    assert judge(found(0.65), found()) == 0
    slow = copy.deepcopy(found())
    slow["depths"]["8"]["MHC"]["median"] = 0.55
    assert judge(slow, found()) == 1
    assert "MHC, 8 blocks: 0.550; was 0.600 to 0.800" in capsys.readouterr().out
    slow["processor"] = "another"
    assert judge(slow, found()) == 0
    assert judge(slow, None) == 0


@pytest.mark.parametrize("variant", [BASELINE, "AttentionResiduals"])
def test_a_compiled_sweep_is_one_graph(variant: str) -> None:
    assert graphs(variant, 2) == 1


def test_a_measurement_has_every_variant_and_is_relative_to_the_baseline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name, value in (("WIDTH", 16), ("ROWS", 1), ("LENGTH", 8)):
        monkeypatch.setattr(backbones, name, value)
    threads = torch.get_num_threads()
    rows = backbones.measure(2, 0.0, "cpu")
    assert list(rows) == list(VARIANTS) and torch.get_num_threads() == threads
    base = rows[BASELINE]
    assert base["median"] == base["low"] == base["high"] == 1.0 and base["repetitions"] == 2
    assert all(row["saved_mib"] >= 0 and row["seconds"] > 0 for row in rows.values())
    backbones.report({"depths": {"2": rows}, "graphs": {}, "shape": "tiny"}, "cpu")
    assert "PreNorm" in capsys.readouterr().out
