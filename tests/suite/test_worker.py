"""One worker and its pipe."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.suite import workers
from lrt_lab.suite.worker import one_line
from lrt_lab.suite.workers import Pool, WorkerError

from .conftest import BACKEND, Lab
from .fake_backend import resolve


@pytest.fixture
def pool(lab: Lab) -> Any:
    pool = Pool(2, BACKEND)
    yield pool
    pool.close()


def config(backbone: str = "PreNorm", steps: int = 5, **model: Any) -> dict[str, Any]:
    return {
        "model": {"backbone": backbone, "route": "NoRoute", **model},
        "trainer": {"max_steps": steps},
        "seed": 1,
    }


def test_answers_come_in_the_order_of_the_questions(pool: Pool) -> None:
    asked = [{"config": config(steps=steps)} for steps in range(1, 30)]
    assert [one["steps"] for one in pool.map("resolve", asked)] == list(range(1, 30))


def test_large_configs_pass_the_pipe(pool: Pool) -> None:
    large = config(notes="x" * 300_000)
    (answer,) = pool.map("resolve", [{"config": large}])
    assert answer["config"]["model"]["notes"] == large["model"]["notes"]


def test_user_errors_come_through_as_such(pool: Pool) -> None:
    with pytest.raises(UserError, match="unknown backbone 'X'"):
        pool.map("resolve", [{"config": config("X")}])


def test_other_errors_name_the_operation(pool: Pool) -> None:
    with pytest.raises(WorkerError, match="resolve failed: KeyError: 'trainer'"):
        pool.map("resolve", [{"config": {"model": {"backbone": "PreNorm", "route": "LRT"}}}])


def test_each_worker_gets_its_gpu_or_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "visible_gpus", lambda: ["4", "7"])
    assert [workers._environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == [
        "4",
        "7",
        "4",
    ]
    monkeypatch.setattr(workers, "visible_gpus", lambda: [])
    environment = workers._environment(0)
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("1", "1")


def test_a_worker_leaves_when_its_stdin_ends(lab: Lab) -> None:
    worker = workers.Worker(0, BACKEND)
    worker.send({"op": "resolve", "id": 1, "config": config()})
    messages: list[dict[str, Any]] = []
    while len(messages) < 2:
        messages += worker.read()[0]
    assert [message["event"] for message in messages] == ["ready", "result"]
    start = time.monotonic()
    worker.close(patience=10)
    assert worker.process.returncode == 0
    assert time.monotonic() - start < 5


def test_a_worker_in_the_middle_of_a_run_leaves_too(lab: Lab) -> None:
    worker = workers.Worker(0, BACKEND)
    slow = config(steps=1000, step_seconds=0.05)
    folder = lab.home / "run"
    worker.send(
        {
            "op": "train",
            "id": 1,
            "config": slow,
            "folder": str(folder),
            "hash": resolve(slow)["hash"],
        }
        | {"about": {}}
    )
    while not (folder / "checkpoints" / "last.ckpt").exists():
        time.sleep(0.01)
    worker.close(patience=10)
    assert worker.process.returncode == 0
    assert not (folder / "DONE").exists()
    assert not (folder / "failed.json").exists()


def test_a_worker_of_another_parent_leaves_at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The number of a parent that is gone.
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    worker = workers.Worker(0, BACKEND)
    assert worker.process.wait(30) == 0
    worker.close()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("do\nthis"), "do this"),
        (RuntimeError("a\n  b"), "RuntimeError: a b"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_errors_in_one_line(error: BaseException, line: str) -> None:
    assert one_line(error) == line


def test_the_rate_is_that_of_this_machine() -> None:
    from lrt_lab.suite.worker import measured_rate

    assert 1e8 < measured_rate() < 1e16


def test_a_folder_of_a_finished_run_is_left_alone(pool: Pool, lab: Lab) -> None:
    folder = Path(lab.home / "run")
    folder.mkdir()
    (folder / "DONE").touch()
    request = {"config": config(), "folder": str(folder), "hash": "other", "about": {}}
    assert pool.map("train", [request]) == [None]
    assert sorted(path.name for path in folder.iterdir()) == ["DONE", "lock", "stdout.log"]
