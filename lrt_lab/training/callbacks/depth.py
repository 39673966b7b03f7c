"""Depth diagnostics on request: to the run's ``depth.jsonl`` and to TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lrt_lab.frame import Frame
from lrt_lab.training.callbacks.diagnosis import Diagnosis
from lrt_lab.training.depth import diagnose

if TYPE_CHECKING:
    from lrt_lab.module import LanguageModel

#: Diagnostics that are matrices: units by what they read.
MAPS = {"kernel": "embedding, then outputs", "weights": "sources"}


class Depth(Diagnosis):
    """How state travels through depth: `lrt_lab.training.depth` on a fixed batch."""

    def diagnose(self, module: LanguageModel, frame: Frame, targets: Tensor) -> dict[str, Any]:
        return diagnose(module.decoder, frame, targets)

    def scalars(self, row: dict[str, Any]) -> dict[str, float]:
        """``depth/state/03`` and the like; numbers that are not there are left out."""
        named: dict[str, float] = {}
        for key, values in row.items():
            if key in ("step", "loss", *MAPS):
                continue
            named |= {
                f"depth/{key}/{unit:02d}": v for unit, v in enumerate(values) if v is not None
            }
        return named

    def draw(self, trainer: Trainer, row: dict[str, Any]) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                for name, about in MAPS.items():
                    if name in row:
                        drawing = heat_map([over_ways(unit) for unit in row[name]], name, about)
                        logger.experiment.add_figure(f"depth/{name}", drawing, trainer.global_step)


def over_ways(unit: list[Any]) -> list[float | None]:
    """One unit's list, or the mean of its lists."""
    if not unit or not isinstance(unit[0], list):
        return unit
    return [
        None if None in column else sum(column) / len(unit) for column in zip(*unit, strict=True)
    ]


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
