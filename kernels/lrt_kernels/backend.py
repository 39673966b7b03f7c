"""Which implementation an operation runs by: the one place that says so."""

from __future__ import annotations

import torch

#: Every operation of the package, one module each.
OPS = (
    "delta_rule",
    "depth_read",
    "normed_scores",
    "short_conv",
    "simplicial_attention",
    "sinkhorn",
    "stream_mix",
)


def backend(op: str, device: torch.device) -> str:
    """The implementation that ``op`` uses on a device: "reference", plain PyTorch, everywhere.

    Raises:
        ValueError: no such operation.
    """
    if op not in OPS:
        raise ValueError(f"unknown operation {op!r}; known: {', '.join(OPS)}")
    return "reference"


def backends(device: torch.device) -> dict[str, str]:
    """The implementation of every operation on a device."""
    return {op: backend(op, device) for op in OPS}
