"""Depth diagnostics on request: to the run's ``depth.jsonl`` and to TensorBoard."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lrt_lab.data.batch import framed
from lrt_lab.store import read_jsonl, write_text
from lrt_lab.training.callbacks.record import Record
from lrt_lab.training.depth import diagnose
from lrt_lab.training.evaluate import to

if TYPE_CHECKING:
    from lrt_lab.data import EvaluationSlice
    from lrt_lab.module import LanguageModel

#: Positions of the fixed batch; least squares are solved at each of them, for every unit.
POSITIONS = 512
#: Diagnostics that are matrices: units by what they read.
MAPS = {"kernel": "embedding, then outputs", "weights": "sources"}


class Depth(Callback):
    """Diagnoses the model on a fixed batch, at the start, every so many steps and at the end.

    Training is not touched: no generator is drawn from, no gradient of a parameter is made. The
    file is cut back to the checkpoint's step when a run is resumed.

    Args:
        path: the file.
        every: steps between two rows.
        part: where the batch comes from: its first rows, `POSITIONS` positions or one row.
        record: keeps the training time; what is spent here does not count as training.
    """

    def __init__(self, path: Path, every: int, part: EvaluationSlice, record: Record) -> None:
        self.path, self.every, self.record = path, every, record
        rows = max(1, POSITIONS * len(part) // part.positions)
        self.frame, self.targets = framed(part.rows(0, rows))

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
        row = diagnose(pl_module.decoder, to(self.frame, device), self.targets.to(device))
        pl_module.train()
        row = {"step": trainer.global_step, **{key: plain(value) for key, value in row.items()}}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        for logger in trainer.loggers:
            logger.log_metrics(scalars(row), trainer.global_step)
            if isinstance(logger, TensorBoardLogger):
                for name, about in MAPS.items():
                    if name in row:
                        drawing = heat_map([over_ways(unit) for unit in row[name]], name, about)
                        logger.experiment.add_figure(f"depth/{name}", drawing, trainer.global_step)
        self.record.validation_seconds += time.monotonic() - began


def plain(value: Any) -> Any:
    """Numbers to six digits, None where there is none: what JSON can say."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return float(f"{value:.6g}") if math.isfinite(value) else None


def over_ways(unit: list[Any]) -> list[float | None]:
    """One unit's list, or the mean of its lists."""
    if not unit or not isinstance(unit[0], list):
        return unit
    return [
        None if None in column else sum(column) / len(unit) for column in zip(*unit, strict=True)
    ]


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """``depth/state/03`` and the like; numbers that are not there are left out."""
    named: dict[str, float] = {}
    for key, values in row.items():
        if key in ("step", "loss", *MAPS):
            continue
        named |= {f"depth/{key}/{unit:02d}": v for unit, v in enumerate(values) if v is not None}
    return named


def heat_map(rows: Sequence[Sequence[float | None]], title: str, about: str) -> Any:
    """A figure of units by sources, white where a unit has no such source."""
    from matplotlib.figure import Figure

    width = max(len(row) for row in rows)
    grid: Tensor = torch.full((len(rows), max(width, 1)), math.nan)
    for unit, row in enumerate(rows):
        for source, value in enumerate(row):
            grid[unit, source] = math.nan if value is None else value
    figure = Figure(
        figsize=(1.5 + 0.3 * grid.shape[1], 1.2 + 0.3 * len(rows)), layout="constrained"
    )
    axes = figure.subplots()
    largest = float(grid.nan_to_num(0.0).abs().max()) or 1.0
    image = axes.imshow(grid.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
    axes.set(title=title, xlabel=about, ylabel="unit, the head last")
    figure.colorbar(image)
    return figure
