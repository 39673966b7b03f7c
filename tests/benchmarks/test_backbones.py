"""The benchmark's own arithmetic, and that a compiled sweep is one graph."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks import backbones
from tests.benchmarks.backbones import BASELINE, VARIANTS, graphs


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
