"""A curriculum that was cut around a stage's start goes on bit for bit, its optimizer new there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lrt_lab.store import CHECKPOINT, METRICS, read_jsonl
from lrt_lab.training.run import train
from tests.training import tiny

ABOUT = {"cell": "stages", "seed": 1}
#: Steps of a stage; the second stage starts with an optimizer that has seen nothing.
STAGE, STEPS = 3, 7


def config(restarts: int = 1) -> dict[str, Any]:
    stages = {"stages": 1, "steps_per_stage": STAGE, "silent_per_step": 1}
    return {
        "model": {
            "width": 8,
            "blocks": 1,
            "route": "Coconut",
            "schedule": {
                "class_path": "Curriculum",
                "init_args": {**stages, "random_stage": 0.3, "restarts_per_stage": restarts},
            },
            "mixer": {"class_path": "Attention", "init_args": {"heads": 2}},
            "optimizer": "MuonAdamW",
        },
        "data": {
            "class_path": "Reachability",
            "init_args": {"hops": 2, "length": 18, "batch_size": 4, "test_rows": 4},
        },
        "trainer": {"max_steps": STEPS, "accelerator": "cpu"},
        "evaluation": {"validate_every": 0},
        "recording": {"log_every": 1, "checkpoint_every": 1, "tensorboard": False},
    }


def losses(folder: Path) -> list[float]:
    return [row["train/loss"] for row in read_jsonl(folder / METRICS) if "train/loss" in row]


def end(folder: Path) -> dict[str, Any]:
    """Weights and the optimizer's moments after the last step."""
    state = torch.load(folder / CHECKPOINT, weights_only=False)
    assert state["global_step"] == STEPS
    (optimizer,) = state["optimizer_states"]
    moments = [member["state"] for member in optimizer["members"]]
    assert len(moments) == 2 and all(moments)
    return {"weights": state["state_dict"], "moments": moments}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never cut."""
    folder = tmp_path_factory.mktemp("stages") / "whole"
    train(config(), folder, ABOUT)
    return folder


def test_the_restart_shows_after_the_stages_first_step(whole: Path, tmp_path: Path) -> None:
    train(config(restarts=0), tmp_path, ABOUT)
    ours, other = losses(whole), losses(tmp_path)
    assert len(ours) == STEPS
    # The step that is taken with the new optimizer shows in the loss of the next one.
    assert ours[: STAGE + 1] == other[: STAGE + 1]
    assert ours[STAGE + 1] != other[STAGE + 1]


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(STAGE - 1, id="before-the-stages-end"),
        pytest.param(STAGE, id="at-the-stages-start"),
        pytest.param(STAGE + 1, id="after-its-first-step"),
    ],
)
def test_a_cut_run_goes_on_bit_identically(whole: Path, tmp_path: Path, last: int) -> None:
    """``last`` is the step of the checkpoint from which it goes on."""
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(config(), tmp_path, ABOUT, callbacks=(tiny.Cut(last + 1),))
    assert torch.load(tmp_path / CHECKPOINT, weights_only=False)["global_step"] == last
    train(config(), tmp_path, ABOUT)
    assert losses(tmp_path) == losses(whole)
    torch.testing.assert_close(end(tmp_path), end(whole), rtol=0, atol=0)
