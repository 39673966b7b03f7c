"""Where a step's time goes: the phases add up, validation is none of them, peaks are looked up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from lrt_lab.backbones import PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT, Householder, NoRoute, Route
from lrt_lab.training.callbacks import Throughput
from lrt_lab.training.callbacks.throughput import PHASES, peak
from lrt_lab.training.clock import use_speed
from lrt_lab.training.run import train
from tests.training.tiny import config, register, write_corpus


def test_a_run_records_its_throughput(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRT_DATA", str(tmp_path / "data"))
    write_corpus(tmp_path / "corpus")
    register(tmp_path / "corpus")
    train(config(), tmp_path / "run", {"cell": "tiny", "seed": 5})
    final = json.loads((tmp_path / "run/final.json").read_text())
    found = final["throughput"]
    assert set(found["step_seconds"]) == set(PHASES)
    assert min(found["step_seconds"].values()) >= 0
    # The whole includes the first step and what is between steps.
    assert 30 * sum(found["step_seconds"].values()) <= final["train_seconds"] * 30 / 29 + 0.01
    assert found["tokens_per_second"] > 0
    assert found["mfu"] is None
    assert found["prefill_tokens_per_second"] > 0 and found["decode_tokens_per_second"] > 0
    assert found["peak_memory_bytes"] > 1e7
    assert final["cost"]["passes"] == 2


@pytest.mark.parametrize("route", [NoRoute(), LRT(), Householder()], ids=lambda r: type(r).__name__)
def test_use_is_timed_without_changing_the_model(route: Route) -> None:
    model = Decoder(16, 2, 11, PreNorm(), route, Attention(2, 1)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = use_speed(model, 3, 6)
    assert set(found) == {"prefill_tokens_per_second", "decode_tokens_per_second"}
    assert min(found.values()) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Past:
    """A record in which validation has taken half a second."""

    validation_seconds = 0.0


def test_marks_are_phases_and_validation_is_none() -> None:
    record = Past()
    watch = Throughput(1, record, 1.0)
    watch.mark("optimizer")
    record.validation_seconds = 0.02
    time.sleep(0.03)
    watch.mark("data")
    watch.mark("forward")
    time.sleep(0.02)
    watch.mark("backward")
    watch.settle()
    assert watch.seconds["data"] >= 0.01
    assert watch.seconds["forward"] < watch.seconds["backward"]
    assert watch.seconds["backward"] >= 0.02
    assert len(watch.marks) == 1


@pytest.mark.parametrize(
    ("device", "precision", "flops"),
    [
        ("NVIDIA H200", "bf16-mixed", 989e12),
        ("NVIDIA L40S", "16-mixed", 362e12),
        ("NVIDIA H200", "32-true", None),
        ("unheard of", "bf16-mixed", None),
    ],
)
def test_peaks(device: str, precision: str, flops: float | None) -> None:
    assert peak(device, precision) == flops
