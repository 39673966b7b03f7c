"""The benchmark's own arithmetic."""

from __future__ import annotations

import copy

import pytest

from tests.benchmarks import passes
from tests.benchmarks.passes import BACKBONES, PASSES, slower


def test_a_measurement_has_every_backbone_and_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name, value in (("WIDTH", 16), ("ROWS", 1), ("LENGTH", 8), ("BLOCKS", 1)):
        monkeypatch.setattr(passes, name, value)
    found = passes.measure(0.0)
    assert list(found) == list(BACKBONES)
    assert all(list(by) == [str(count) for count in PASSES] for by in found.values())
    passes.report(found)
    assert "AttentionResiduals    4" in capsys.readouterr().out
    assert slower(found, found) == []
    worse = copy.deepcopy(found)
    worse["PreNorm"]["2"]["median"] = 2 * found["PreNorm"]["2"]["high"]
    assert [line.split(":")[0] for line in slower(worse, found)] == ["PreNorm, 2 passes"]
