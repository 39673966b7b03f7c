"""The mixers' benchmark at a size of no interest: every table is filled, and judged."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import lrt_lab.mixers.deltanet
from tests.benchmarks import mixers
from tests.benchmarks.mixers import DECODERS, MIXERS, RECURRENT
from tests.benchmarks.timing import tokens


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WIDTH", 16), ("TOKENS", 8), ("PREFIXES", (6, 40)), ("DECODED", 5)):
        monkeypatch.setattr(mixers, name, value)
    monkeypatch.setattr(mixers, "WINDOWS", (4, 2))


def test_a_measurement_fills_every_table(capsys: pytest.CaptureFixture) -> None:
    found = {
        "shape": "tiny",
        "lengths": {"4": mixers.training(4, 0.0)},
        "decoding": {mixer: mixers.decoding(mixer, 0.0) for mixer in DECODERS},
        "aims": [{"what": "one beside another", "aim": 2.0, "reached": 1.5}],
        "memory": {"saved": 1.0},
    }
    assert list(found["lengths"]["4"]) == list(MIXERS)
    mixers.report(found)
    said = capsys.readouterr().out
    assert "one beside another: 1.50 x, aim 2 x: short" in said and "saved 1.0 MiB" in said
    assert mixers.grown(found) == []
    larger = copy.deepcopy(found)
    larger["decoding"]["DeltaNet"]["state_kib"]["40"] += 1
    assert mixers.grown(larger) == ["DeltaNet"]
    states = {mixer: row["state_kib"] for mixer, row in found["decoding"].items()}
    assert states["Attention"]["40"] > states["Attention"]["6"]


def test_aims_compare_seconds() -> None:
    rows = {name: {"seconds": 2.0} for name in MIXERS}
    rows[RECURRENT] = {"seconds": 9.0}
    (aim,) = mixers.aims({"lengths": {"1024": rows}})
    assert aim == {"what": f"GatedDeltaNet beside {RECURRENT} at 1024", "aim": 3.0, "reached": 4.5}


@torch.no_grad()
def test_a_prefix_is_decoded_on() -> None:
    model = mixers.decoder("hybrid 3:1")
    cache = mixers.prefilled(model, 6)
    assert cache.length == 6 and mixers.decode(model, cache).length == 11


def test_the_recurrent_form_is_the_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        lrt_lab.mixers.deltanet, "delta_rule", lambda *inputs, **options: calls.append("chunkwise")
    )
    model = mixers.decoder(RECURRENT)
    mixers.train(RECURRENT, model, tokens(1, 5, mixers.VOCAB))
    assert not calls and lrt_lab.mixers.deltanet.delta_rule is not mixers.delta_rule_recurrent


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixers, "MEMORY_LENGTH", 256)
    found = mixers.memory()
    assert found["scores of one head"] == 0.0 and found["saved"] > 0 and found["peak"] >= 0
