"""Throughput: how fast a run trains, and what a step's time goes into."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lrt_lab.training.callbacks.record import Record

PHASES = ("data", "forward", "backward", "optimizer")
#: Dense peak of 16-bit products in FLOP/s, by a part of the device's name (vendor's data sheets).
PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "L4": 121e12,
    "V100": 125e12,
}


def peak(device: str, precision: str) -> float | None:
    """Peak FLOP/s of a device at a precision; None where it is not known."""
    if "16" not in precision:
        return None
    return next((flops for name, flops in PEAKS.items() if name in device), None)


class Throughput(Callback):
    """Splits the time of steps, and logs tokens per second.

    A step is data (waiting for the batch), forward (the schedule's passes and the loss), backward,
    and optimizer (clipping and update). Validation is none of them. The first step, which allocates
    and compiles, is left out. On a GPU the marks are events in its stream, read once per log.

    Args:
        every: steps between two logs.
        record: knows what validation took.
        flops_per_token: training FLOPs per token, from the meter.
    """

    def __init__(self, every: int, record: Record, flops_per_token: float) -> None:
        self.every, self.record, self.flops_per_token = every, record, flops_per_token
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = self.tokens = self.seen = 0
        self.aside = 0.0
        self.marks: list[tuple[str, Any, float]] = []
        self.gpu = False
        self.peak: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.gpu = pl_module.device.type == "cuda"
        if self.gpu:
            name = torch.cuda.get_device_name(pl_module.device)
            self.peak = peak(name, str(trainer.precision))
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def mark(self, phase: str) -> None:
        """This phase ends now."""
        now: Any = time.perf_counter()
        if self.gpu:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        self.marks.append((phase, now, self.record.validation_seconds))

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.mark("data")

    def on_before_backward(self, trainer: Trainer, *_: Any) -> None:
        self.mark("forward")

    def on_after_backward(self, trainer: Trainer, *_: Any) -> None:
        self.mark("backward")

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.mark("optimizer")
        tokens = batch["tokens"]
        self.tokens += tokens.shape[0] * (tokens.shape[1] - 1) * trainer.world_size
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        self.steps += 1
        self.seen += 1
        if self.seen == 1:
            self.steps = self.tokens = 0
            self.marks = self.marks[-1:]
        elif trainer.global_step % self.every == 0 or trainer.global_step >= trainer.max_steps:
            self.settle()
            found = self.summary()
            pl_module.log("tokens/s", found["tokens_per_second"], prog_bar=True)
            shares = {f"throughput/{phase}": found["step_seconds"][phase] for phase in PHASES}
            if found["mfu"] is not None:
                shares["throughput/mfu"] = found["mfu"]
            pl_module.log_dict(shares)

    def settle(self) -> None:
        """Add up the times between marks; the last mark is where the next phase starts."""
        if self.gpu:
            torch.cuda.synchronize()
        for (_, before, aside), (phase, after, later) in zip(
            self.marks[:-1], self.marks[1:], strict=True
        ):
            taken = before.elapsed_time(after) / 1000 if self.gpu else after - before
            self.seconds[phase] += max(0.0, taken - (later - aside))
        self.marks = self.marks[-1:]

    def summary(self) -> dict[str, Any]:
        """Tokens per second, seconds of a step by phase, use of the device's peak, peak memory."""
        total, steps = sum(self.seconds.values()), max(1, self.steps)
        rate = self.tokens / total if total else 0.0
        return {
            "tokens_per_second": round(rate, 1),
            "step_seconds": {phase: taken / steps for phase, taken in self.seconds.items()},
            "mfu": rate * self.flops_per_token / self.peak if self.peak else None,
            "peak_memory_bytes": self.memory(),
        }

    def memory(self) -> int:
        """Peak bytes: allocated on the GPU, or resident in this process."""
        if self.gpu:
            return torch.cuda.max_memory_allocated()
        # Linux counts kilobytes, macOS bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
