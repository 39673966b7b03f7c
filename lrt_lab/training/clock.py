"""How long things take here: a training step, for a match of wall-clock, and the use of a trained
model: reading a prompt and decoding.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from lrt_lab.decoder import Decoder
from lrt_lab.schedules import Clock
from lrt_lab.training.loss import training_loss
from lrt_lab.training.meter import blank, empty_memory

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


@torch.no_grad()
def use_speed(decoder: Decoder, rows: int, length: int) -> dict[str, float]:
    """Tokens per second of one pass over prompts, and of decoding their last position.

    Args:
        decoder: in evaluation mode.
        rows: sequences that are read, and decoded, side by side.
        length: positions of a row.
    """
    frame = blank(decoder, length, rows)
    here, before = range(length - 1, length), range(length - 1)
    memory, last = (empty_memory(decoder, frame, at) for at in (frame.positions, here))
    buffers: dict[int, Any] = {}
    if before:
        read = decoder.sweep(frame, before, empty_memory(decoder, frame, before))
        buffers = {u: decoder.mixers()[u].commit(b) for u, b in read.buffers.items()}

    def decode() -> None:
        decoder.logits(decoder.sweep(frame, here, last, buffers, reach=length).hidden)

    taken = {
        "prefill": _seconds(lambda: decoder.sweep(frame, frame.positions, memory)) / length,
        "decode": _seconds(decode),
    }
    return {f"{name}_tokens_per_second": rows / one for name, one in taken.items()}


def _seconds(work: Callable[[], Any]) -> float:
    """Median over a few calls."""
    taken = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[WARM:])
