"""Heartbeat: tells whoever watches where training stands, about once a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Heartbeat(Callback):
    """Calls ``progress`` with the phase, the step, the number of steps and the loss.

    Args:
        progress: what is called.
        every: seconds between two calls, at least.
    """

    def __init__(self, progress: Callable[[dict[str, Any]], None], every: float = 1.0) -> None:
        self.progress, self.every = progress, every
        self.last = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if now - self.last < self.every and trainer.global_step < trainer.max_steps:
            return
        self.last = now
        self.progress(
            {
                "phase": "train",
                "step": trainer.global_step,
                "steps": trainer.max_steps,
                "loss": float(outputs["loss"]),
            }
        )
