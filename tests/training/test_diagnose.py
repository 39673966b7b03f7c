"""`lrt-lab diagnose`, and the callback that records the same while a run trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lrt_lab.cli import main
from lrt_lab.data.corpora import CORPORA
from lrt_lab.store import read_json, read_jsonl
from lrt_lab.training.run import train
from tests.training import tiny

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    root = tmp_path_factory.mktemp("contraction")
    tiny.write_corpus(root / "corpus")
    tiny.register(root / "corpus")
    base = tiny.config()

    def trained(name: str, every: int, **model: object) -> Path:
        config = tiny.config(
            model={**base["model"], **model},
            trainer={**base["trainer"], "max_steps": 8},
            evaluation={"validate_every": 0, "curve_bytes": 0},
            recording={**base["recording"], "contraction_every": every},
        )
        train(config, root / name, {"cell": name, "seed": 5})
        return root / name

    yield trained
    del CORPORA["tiny"]


@pytest.fixture(scope="module")
def folder(run: Train) -> Path:
    return run("LRT", 4)


def test_a_run_records_it_at_the_start_every_so_often_and_at_the_end(folder: Path) -> None:
    rows = read_jsonl(folder / "contraction.jsonl")
    assert [row["step"] for row in rows] == [0, 4, 8]
    assert {row["trained"] for row in rows} == {2.0}
    assert rows[0]["passes"]["rate"] != rows[-1]["passes"]["rate"]
    events = EventAccumulator(str(next(folder.rglob("events.out*")).parent)).Reload()
    named = {"contraction/rate", "contraction/radius", "contraction/rank", "contraction/cosine"}
    assert named <= set(events.Tags()["scalars"])


def test_the_command_says_what_the_run_recorded_last(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(folder)]) == 0
    written = read_json(folder / "contraction.json")
    row = read_jsonl(folder / "contraction.jsonl")[-1]
    assert {key: written[key] for key in row} == row
    shown = capsys.readouterr().out
    assert "step 8" in shown and f"{row['verdict']};" in shown
    for name in ("contraction", "reach"):
        assert all((folder / f"{name}.{suffix}").stat().st_size for suffix in ("svg", "png"))


def test_a_checkpoint_does_too_and_json_is_the_record(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = folder / "checkpoints" / "last.ckpt"
    assert main(["diagnose", str(checkpoint), "--passes", "4", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == read_json(folder / "contraction.json")
    assert len(printed["passes"]["loss"]) == 4


def test_without_a_route_there_are_states_and_gradients(
    run: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("none", 8, route="NoRoute")
    assert main(["diagnose", str(folder)]) == 0
    assert "nothing is carried;" in capsys.readouterr().out
    found = read_json(folder / "contraction.json")
    assert found["passes"] is found["radius"] is found["directions"] is None
    assert found["state"]["units"] and found["gradient"]["embedding"]
    assert not list(folder.glob("*.svg"))
    assert read_jsonl(folder / "contraction.jsonl")[-1]["verdict"] == "nothing is carried"


WRONG = {
    "nothing-there": ([], "checkpoints/last.ckpt does not exist: give a run folder"),
    "too-few-passes": (["--passes", "2"], "--passes=2: give at least 3"),
    "no-config": (["."], "has no config.yaml"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_diagnosed(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path
    if case == "no-config":
        given = tmp_path / "checkpoints" / "last.ckpt"
        given.parent.mkdir()
        given.write_bytes(b"")
    words, expected = WRONG[case]
    assert main(["diagnose", str(given), *(w for w in words if w != ".")]) == 2
    assert expected in capsys.readouterr().err
