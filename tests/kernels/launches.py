"""Every kernel's launches at the shapes of the GPU scale, planned and not run."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lrt_kernels.gpu import depth_read
from lrt_kernels.gpu.launch import Launch

#: Few rows: a compiled kernel is the same for any number of them.
ROWS, WIDTH, SOURCES = 64, 1024, 17


def launches() -> Iterator[tuple[str, Launch]]:
    """What each is for, and the launch; bfloat16, float32 parameters."""
    for reads, extras in ((1, False), (1, True), (2, True)):
        name = f"R={reads}" + (" masks, norm" if extras else "")
        for launch in depth_reads(reads, extras):
            yield name, launch


def depth_reads(reads: int, extras: bool) -> list[Launch]:
    sources = [torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16) for _ in range(SOURCES)]
    query, bias = torch.zeros(reads, SOURCES, WIDTH), torch.zeros(reads, SOURCES)
    present = torch.ones(SOURCES, ROWS, dtype=torch.uint8) if extras else None
    gain, norm_eps = (torch.ones(WIDTH), 1e-6) if extras else (None, None)
    parameters: tuple[Tensor | None, ...] = (query, bias, present, gain)
    forward, (out, raw, *saved) = depth_read.plan_forward(
        sources, *parameters, 16.0, 1e-6, norm_eps
    )
    mixed = raw if extras else out
    backward, *_ = depth_read.plan_backward(
        torch.zeros_like(out), sources, *parameters, [mixed, *saved], 16.0, norm_eps
    )
    return [*forward, *backward]
