"""A run small enough to be killed and resumed in a test, and a script that trains it.

    python tests/training/tiny.py CORPUS_DIR RUN_DIR KILL_AT

trains on the files of CORPUS_DIR, and SIGKILLs itself after KILL_AT steps (0: never).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

# Results depend on the number of threads, whoever calls.
torch.set_num_threads(1)

from lightning.pytorch import Callback  # noqa: E402

from lrt_lab.data.corpora import CORPORA, Corpus  # noqa: E402
from lrt_lab.training.run import train  # noqa: E402

LENGTH, BATCH = 16, 8
# Windows of 17 tokens, 8 to a batch: an epoch of 12 steps, so that 30 steps cross two epoch ends.
EPOCH, STEPS = 12, 30


def config(**overrides: Any) -> dict[str, Any]:
    """A route, its schedule and gradient accumulation in a model of a few hundred numbers."""
    return {
        "seed": 5,
        "model": {
            "width": 8,
            "blocks": 2,
            "backbone": "AttentionResiduals",
            "route": "LRT",
            "mixer": {"class_path": "Attention", "init_args": {"heads": 2, "kv_heads": 1}},
            "optimizer": "MuonAdamW",
        },
        "data": {
            "corpus": "tiny",
            "length": LENGTH,
            "batch_size": BATCH,
            "test_bytes": 64,
            "validation_bytes": 64,
        },
        "trainer": {"max_steps": STEPS, "gradient_clip_val": 1.0, "accelerator": "cpu"},
        "evaluation": {"validate_every": 4, "curve_bytes": 32, "curve_passes": 3},
        "recording": {"log_every": 1, "checkpoint_every": 4},
    } | overrides


def write_corpus(folder: Path) -> None:
    """Three texts: one long enough for an epoch of 12 steps, two to be held out."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for name, size in (("a.txt", EPOCH * BATCH * (LENGTH + 1) - 1), ("b.txt", 400), ("c.txt", 400)):
        letters = torch.randint(97, 123, (size,), generator=generator)
        (folder / name).write_bytes(bytes(letters.tolist()))


def register(folder: Path) -> None:
    """Make the folder's files the corpus `tiny`; the long one is trained on."""
    CORPORA["tiny"] = Corpus(
        name="tiny",
        about="for tests",
        files=lambda: {path.name: path for path in sorted(folder.iterdir())},
        sha256=None,
        remedy="",
        genre=lambda name: "text",
        train_only={"a.txt"},
    )


class KillAt(Callback):
    """SIGKILL after so many steps: nothing gets a chance to clean up."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Cut(Callback):
    """Ends training after so many steps, before the checkpoint of the last one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise KeyboardInterrupt


if __name__ == "__main__":
    register(Path(sys.argv[1]))
    killer = KillAt(int(sys.argv[3]))
    train(config(), Path(sys.argv[2]), {"cell": "tiny", "seed": 5}, callbacks=(killer,))
