"""Record: the run's own ``metrics.jsonl``, complete whatever happens to the process.

Loggers lose or repeat rows when a run is resumed; this file is cut back to the checkpoint's step
and goes on from there, so that a resumed run leaves the same rows as one that was never cut.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, Trainer

from lrt_lab.data.batch import positions
from lrt_lab.store import read_jsonl, write_text
from lrt_lab.training.evaluate import score

if TYPE_CHECKING:
    from lrt_lab.data import EvaluationSlice
    from lrt_lab.module import LanguageModel


class Record(Callback):
    """Writes training and validation losses, stops a diverged run, and keeps the training time.

    Args:
        path: the file.
        log_every: steps between training rows.
        validate_every: steps between validation rows; 0 is never.
        validation: the fixed validation slice, or None.
        flops_per_token: training FLOPs per token, from the meter.
    """

    def __init__(
        self,
        path: Path,
        log_every: int,
        validate_every: int,
        validation: EvaluationSlice | None,
        flops_per_token: float,
    ) -> None:
        self.path, self.log_every, self.validate_every = path, log_every, validate_every
        self.validation, self.flops_per_token = validation, flops_per_token
        self.tokens = 0
        self.seconds = 0.0
        self.validation_seconds = 0.0
        self.diverged = False
        self.last_finite: float | None = None
        self.started: float | None = None
        #: What `Throughput` found, for the final record.
        self.throughput: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "seconds": self._clock(),
            "validation_seconds": self.validation_seconds,
            "last_finite": self.last_finite,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokens = state_dict["tokens"]
        self.seconds = state_dict["seconds"]
        self.validation_seconds = state_dict["validation_seconds"]
        self.last_finite = state_dict["last_finite"]

    def _clock(self) -> float:
        return self.seconds + (0.0 if self.started is None else time.monotonic() - self.started)

    def on_train_start(self, trainer: Trainer, pl_module: LanguageModel) -> None:  # type: ignore[override]
        # A run that starts again from nothing keeps nothing, its score before step 1 included.
        resumed = trainer.global_step if trainer.global_step else -1
        kept = [row for row in read_jsonl(self.path) if row["step"] <= resumed]
        if trainer.is_global_zero:
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self.started = time.monotonic()
        if trainer.global_step == 0:
            self._validate(trainer, pl_module)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.tokens += positions(batch) * trainer.world_size
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        step, last = trainer.global_step, trainer.global_step >= trainer.max_steps
        if step % self.log_every == 0 or last:
            loss = float(outputs["loss"])
            if not math.isfinite(loss):
                self.diverged = trainer.should_stop = True
                return
            self.last_finite = loss
            self._write(trainer, {"train/loss": loss})
        if self.validate_every and (step % self.validate_every == 0 or last):
            self._validate(trainer, pl_module)

    def _validate(self, trainer: Trainer, pl_module: LanguageModel) -> None:
        if self.validation is None or not self.validate_every:
            return
        began = time.monotonic()
        pl_module.eval()
        schedule = pl_module.schedule
        scored = score(pl_module.decoder, schedule, self.validation, prepare=schedule.judged)
        pl_module.train()
        self.validation_seconds += time.monotonic() - began
        shares = {} if scored.accuracy is None else scored.accuracy.record()
        self._write(
            trainer,
            {"val/loss": scored.loss, **{f"val/{name}": value for name, value in shares.items()}},
        )

    def _write(self, trainer: Trainer, values: dict[str, float]) -> None:
        row = {
            "step": trainer.global_step,
            "tokens": self.tokens,
            "flops": self.tokens * self.flops_per_token,
            "seconds": round(self._clock() - self.validation_seconds, 3),
            **values,
        }
        if trainer.is_global_zero:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        for logger in trainer.loggers:
            logger.log_metrics(
                {k: v for k, v in values.items() if k != "train/loss"}, trainer.global_step
            )

    def on_train_end(self, trainer: Trainer, pl_module: LanguageModel) -> None:  # type: ignore[override]
        self.seconds = self._clock()
        self.started = None
