"""How long a training step takes here: the short calibration behind a match of wall-clock."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from lrt_lab.schedules import Clock
from lrt_lab.training.loss import training_loss

#: Steps that are not timed, and those that are; the median counts.
WARM, TIMED = 2, 5


def seconds_per_step(module: Any, rows: int, length: int, micros: int, precision: str) -> float:
    """Seconds of one optimizer step on blank rows: forward, backward and update.

    Args:
        module: the `LanguageModel`.
        rows: of one microbatch.
        length: positions of a row.
        micros: microbatches of a step.
        precision: Lightning's word; mixed ones run under autocast.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    decoder = module.decoder.to(device).train()
    optimizer = module.optimization.build(decoder)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled="bf16-mixed" in str(precision))
    expected = 0.0
    for share, part in module.schedule.mixture():
        frame = part.rehearsal(length, device).select(torch.zeros(rows, dtype=torch.long))
        taken = []
        for number in range(WARM + TIMED):
            began = time.perf_counter()
            for micro in range(micros):
                with autocast:
                    clock = Clock(number, micro, module.seed, micros)
                    loss = training_loss(decoder, part, frame, frame.ids, clock)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        expected += share * statistics.median(taken[WARM:])
    return expected
