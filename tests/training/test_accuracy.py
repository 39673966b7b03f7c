"""Accuracy: which predictions are right, by which pass, at and beyond the trained length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lrt_lab.data.batch import ANSWER, IGNORED, QUESTION, framed
from lrt_lab.data.slices import EvaluationSlice
from lrt_lab.data.tasks import SwapsS5
from lrt_lab.mixers import Mixer
from lrt_lab.schedules import Curriculum, Interleaved, Jacobi, Serial, SinglePass
from lrt_lab.training.evaluate import evaluate, score
from lrt_lab.training.metrics import Accuracy, Nats
from lrt_lab.training.run import train
from tests.support.models import small_decoder
from tests.support.registry import BACKBONES, MIXERS, RECURRENT, ROUTES, Case, plain
from tests.training import tiny


def test_shares_of_right_answers_over_what_is_predicted() -> None:
    accuracy = Accuracy(5)
    targets = torch.tensor([[1, IGNORED, 2, IGNORED], [3, 4, IGNORED, 0]])
    accuracy.update(torch.tensor([[1, 0, 2, 0], [3, 1, 4, 1]]), targets)
    assert accuracy.record() == {
        "accuracy": 0.6000000238418579,
        "last_accuracy": 0.5,
        "exact_match": 0.5,
    }


def test_loss_counts_what_is_predicted() -> None:
    metric = Nats()
    metric.update(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([4, IGNORED, 9]))
    assert metric.loss == float(metric.compute()) == 2.0


def test_rows_are_scored_against_plain_arithmetic() -> None:
    decoder, part = small_decoder(vocab=124), SwapsS5(length=6, test_rows=40).slices("test", None)
    frame, targets = framed(part.batch)
    right = decoder.logits(decoder.sweep(frame, frame.positions).hidden).argmax(-1) == targets
    scored = score(decoder.eval(), SinglePass(), part, tokens=48)
    assert scored.accuracy is not None and scored.right is not None
    assert scored.accuracy.record() == pytest.approx(
        {
            "accuracy": float(right.double().mean()),
            "last_accuracy": float(right[:, -1].double().mean()),
            "exact_match": float(right.all(1).double().mean()),
        }
    )
    assert torch.equal(scored.right, right.double().mean(0))
    assert scored.binned()["accuracy"] == scored.right.tolist()
    assert "bpb" not in scored.record()


def test_positions_that_no_row_predicts_have_no_loss() -> None:
    tokens = torch.randint(0, 9, (6, 5), generator=torch.Generator().manual_seed(1))
    targets = tokens.clone()
    targets[:, 2] = IGNORED
    scored = score(
        small_decoder(),
        SinglePass(),
        EvaluationSlice({"tokens": tokens, "targets": targets}, 0, ""),
    )
    bins = scored.binned()
    assert [loss is None for loss in bins["loss"]] == [False, False, True, False, False]
    assert int(scored.metric.tokens) == 24


def test_the_record_of_a_task() -> None:
    data = SwapsS5(length=4, test_rows=8)
    decoder = small_decoder(route=RECURRENT[0](), vocab=124)
    test = evaluate(
        decoder, Interleaved(), data.slices("test", None), None, 1, longer=data.longer("test")
    )
    assert test["curve"] is None
    test = test["test"]
    shares = {"loss", "accuracy", "last_accuracy", "exact_match"}
    assert set(test) == {"rows", "tokens", "sha256", "exact", "last_pass", "longer"}
    for found, length in ((test, 4), (test["longer"], 8)):
        assert (found["rows"], found["tokens"]) == (8, 8 * length)
        assert set(found["exact"]) == set(found["last_pass"]) == shares
        assert found["exact"]["loss"] != found["last_pass"]["loss"]


PARTS = [
    *(("backbone", case) for case in BACKBONES if plain(case)),
    *(("route", case) for case in ROUTES if plain(case)),
    *(("mixer", case) for case in MIXERS if plain(case)),
]


@pytest.mark.parametrize(("kind", "part"), PARTS, ids=lambda value: str(value))
def test_every_part_is_judged_beyond_the_trained_length(kind: str, part: Case) -> None:
    data = SwapsS5(length=5, test_rows=4)
    built: Mixer | Any = part()
    decoder = small_decoder(**{kind: built}, vocab=124)
    schedule = Jacobi(2) if decoder.route.traits.recurrent else SinglePass()
    found = evaluate(
        decoder, schedule, data.slices("test", None), None, 1, longer=data.longer("test")
    )
    longer = found["test"]["longer"]
    assert longer["tokens"] == 4 * 10 and longer["exact"]["loss"] > 0
    assert len(longer["by_position"]["accuracy"]) == 10


def test_silent_positions_are_judged_after_the_last_stage() -> None:
    """Rows of two steps, read with as many silent positions; only the answer is scored."""
    coconut = next(case for case in ROUTES if case.name == "Coconut")
    decoder = small_decoder(route=coconut())
    tokens = torch.randint(0, 9, (6, 7), generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([QUESTION, QUESTION, QUESTION, 1, 2, 2, ANSWER]).expand(6, 7)
    part = EvaluationSlice({"tokens": tokens, "labels": labels}, 0, "")
    schedule = Curriculum(stages=2, silent_per_step=1, random_stage=1.0)
    frame, targets = schedule.judged(part.batch)
    assert frame.silent is not None and frame.silent.sum() == 12
    assert (targets != IGNORED).sum() == 6
    found = evaluate(decoder, schedule, part, None, 1)["test"]
    assert found["tokens"] == 6
    assert found["exact"]["loss"] == pytest.approx(found["last_pass"]["loss"], rel=1e-5)
    whole = score(decoder, Serial(), part)
    assert whole.loss != pytest.approx(found["exact"]["loss"])


def test_coconut_learns_reachability_through_the_command(tmp_path: Path) -> None:
    """From explicit steps to silent positions, at a size that shows nothing."""
    config = {
        "model": {
            "width": 8,
            "blocks": 1,
            "route": "Coconut",
            "schedule": {
                "class_path": "Curriculum",
                "init_args": {
                    "stages": 2,
                    "steps_per_stage": 2,
                    "silent_per_step": 1,
                    "restarts_per_stage": 1,
                },
            },
            "mixer": {"class_path": "Attention", "init_args": {"heads": 2}},
        },
        "data": {
            "class_path": "Reachability",
            "init_args": {"hops": 2, "length": 18, "batch_size": 4, "test_rows": 8},
        },
        "trainer": {"max_steps": 4, "accelerator": "cpu"},
        "evaluation": {"validate_every": 0},
        "recording": {"log_every": 1, "tensorboard": False},
    }
    train(config, tmp_path, {"cell": "coconut", "seed": 1})
    test = json.loads((tmp_path / "final.json").read_text())["test"]
    assert test["tokens"] == test["rows"] == 8
    assert test["exact"]["loss"] == pytest.approx(test["last_pass"]["loss"], rel=1e-4)


def test_a_task_is_trained_killed_and_resumed(tmp_path: Path) -> None:
    """The same record, whether a run was cut or not."""
    config = {
        "model": {
            "width": 8,
            "blocks": 1,
            "route": "LRT",
            "mixer": {"class_path": "Attention", "init_args": {"heads": 2}},
        },
        "data": {
            "class_path": "SwapsS5",
            "init_args": {"length": 4, "batch_size": 8, "test_rows": 8, "validation_rows": 8},
        },
        "trainer": {"max_steps": 7, "accelerator": "cpu"},
        "evaluation": {"validate_every": 3},
        "recording": {"log_every": 1, "checkpoint_every": 3, "tensorboard": False},
    }
    about = {"cell": "task", "seed": 1}
    train(config, tmp_path / "whole", about)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(config, tmp_path / "cut", about, callbacks=(tiny.Cut(5),))
    train(config, tmp_path / "cut", about)
    whole, resumed = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    )
    assert [without(row) for row in whole] == [without(row) for row in resumed]
    assert [row["step"] for row in whole if "val/last_accuracy" in row] == [0, 3, 6, 7]
    tests = [
        json.loads((tmp_path / n / "final.json").read_text())["test"] for n in ("whole", "cut")
    ]
    assert tests[0] == tests[1] and "longer" in tests[0]


def without(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "seconds"}
