"""The data is chosen by class; without one it is text; the vocabulary follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.training.config import merge_configs
from lrt_lab.training.run import Run

STEPS = "--trainer.max_steps=1"
ROOT = Path(__file__).parents[2]


def data(run: Run) -> dict[str, Any]:
    chosen = run.config["data"]
    return {"class": chosen["class_path"].rpartition(".")[2], **chosen["init_args"]}


def test_text_is_what_data_is_if_nothing_else_is_said() -> None:
    flat = Run({"data": {"length": 32}, "trainer": {"max_steps": 1}})
    named = Run(
        {
            "data": {"class_path": "TextData", "init_args": {"length": 32}},
            "trainer": {"max_steps": 1},
        }
    )
    assert flat.hash == named.hash == Run(["--data.length=32", STEPS]).hash
    assert data(flat)["corpus"] == "shakespeare" and data(flat)["length"] == 32
    assert flat.config["model"]["vocab"] == 257


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--data", "SwapsS5"], id="flag"),
        pytest.param(["--config", "configs/base.yaml", "--data=SwapsS5"], id="flag-over-a-file"),
    ],
)
def test_a_class_brings_its_own_defaults(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run = Run([*words, "--data.batch_size=4", STEPS])
    assert data(run) == {
        "class": "SwapsS5",
        "length": 16,
        "batch_size": 4,
        "test_rows": 512,
        "validation_rows": 256,
    }
    assert run.config["model"]["vocab"] == 124
    assert run.tokens_per_step == 64


def test_options_without_a_class_are_those_of_the_class_in_force(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("data: {class_path: Parity, init_args: {length: 8, test_rows: 3}}\n")
    two.write_text("data: {length: 4}\n")
    merged = merge_configs([one, two], {"data.batch_size": 2})
    assert merged["data"]["init_args"] == {"length": 4, "test_rows": 3, "batch_size": 2}
    assert merge_configs([two, one])["data"]["init_args"] == {"length": 8, "test_rows": 3}


def test_a_vocabulary_that_is_too_small_is_refused() -> None:
    assert Run(["--data=Parity", "--model.vocab=9", STEPS]).config["model"]["vocab"] == 9
    with pytest.raises(UserError, match=r"model\.vocab=100: SwapsS5 has 124 token ids"):
        Run(["--data=SwapsS5", "--model.vocab=100", STEPS])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--data=SwapS5"], "unknown data 'SwapS5' (nearest: SwapsS5)", id="class"),
        pytest.param(["--data=Task"], "Task", id="abstract"),
        pytest.param(
            ["--data=Parity", "--data.lenth=3"], "Parity has no option 'lenth'", id="option"
        ),
        pytest.param(["--data.corpus=shakspeare"], "'shakespeare'", id="corpus"),
        pytest.param(["--data=Parity", "--data.length=x"], "Parity option length", id="type"),
    ],
)
def test_what_cannot_be_chosen(words: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        Run([*words, STEPS])
    assert says in str(error.value) and "\n" not in str(error.value)
