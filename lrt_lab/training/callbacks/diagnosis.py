"""What the callbacks that diagnose a model while it trains have in common."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lrt_lab.data.batch import framed
from lrt_lab.frame import Frame
from lrt_lab.store import read_jsonl, write_text
from lrt_lab.training.callbacks.record import Record

if TYPE_CHECKING:
    from lrt_lab.data import EvaluationSlice
    from lrt_lab.module import LanguageModel

#: Positions of the fixed batch.
POSITIONS = 512


class Diagnosis(Callback):
    """Diagnoses the model on a fixed batch, at the start, every so many steps and at the end.

    Training is not touched: no generator is drawn from, no gradient of a parameter is made. The
    file is cut back to the checkpoint's step when a run is resumed.

    Args:
        path: the file, one row a diagnosis.
        every: steps between two rows.
        part: where the batch comes from.
        record: keeps the training time; what is spent here does not count as training.
    """

    def __init__(self, path: Path, every: int, part: EvaluationSlice, record: Record) -> None:
        self.path, self.every, self.record = path, every, record
        self.frame, self.targets = fixed_batch(part)

    def diagnose(self, module: LanguageModel, frame: Frame, targets: Tensor) -> dict[str, Any]:
        """The row of a model, in evaluation mode, on rows ``(B, T)`` with their targets."""
        raise NotImplementedError

    def scalars(self, row: dict[str, Any]) -> dict[str, float]:
        """Which numbers of a row go to the loggers, by name."""
        raise NotImplementedError

    def draw(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """Give loggers figures of a row; none by default."""

    def on_train_start(self, trainer: Trainer, pl_module: LanguageModel) -> None:  # type: ignore[override]
        resumed = trainer.global_step if trainer.global_step else -1
        kept = [row for row in read_jsonl(self.path) if row["step"] <= resumed]
        if trainer.is_global_zero:
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        if trainer.global_step == 0:
            self._diagnose(trainer, pl_module)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LanguageModel, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        step = trainer.global_step
        if step % self.every == 0 or step >= trainer.max_steps:
            self._diagnose(trainer, pl_module)

    def _diagnose(self, trainer: Trainer, pl_module: LanguageModel) -> None:
        if not trainer.is_global_zero:
            return
        began = time.monotonic()
        device = pl_module.decoder.head.device
        pl_module.eval()
        found = self.diagnose(pl_module, self.frame.to(device), self.targets.to(device))
        pl_module.train()
        row = {"step": trainer.global_step, **plain(found)}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        for logger in trainer.loggers:
            logger.log_metrics(self.scalars(row), trainer.global_step)
        self.draw(trainer, row)
        self.record.validation_seconds += time.monotonic() - began


def fixed_batch(part: EvaluationSlice) -> tuple[Frame, Tensor]:
    """The slice's first rows, `POSITIONS` positions or one row, and their targets."""
    rows = max(1, POSITIONS * len(part) // part.positions)
    return framed(part.rows(0, rows))


def plain(value: Any) -> Any:
    """What JSON can say: numbers to six digits, None where there is none."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
