"""Which implementation an operation runs by: the one place that says so."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

import torch

Backend = Literal["auto", "reference", "triton"]

#: Every operation of the package, one module each.
OPS = (
    "delta_rule",
    "dense_aggregate",
    "depth_read",
    "gated_product",
    "inject_kv",
    "linear_cross_entropy",
    "merge_cache",
    "normed_scores",
    "short_conv",
    "simplicial_attention",
    "sinkhorn",
    "slot_compact",
    "stream_coefficients",
    "stream_mix",
)
#: Those of them that have Triton kernels.
KERNELS = frozenset(
    {
        "delta_rule",
        "dense_aggregate",
        "depth_read",
        "gated_product",
        "inject_kv",
        "merge_cache",
        "normed_scores",
        "simplicial_attention",
        "sinkhorn",
        "slot_compact",
        "stream_coefficients",
        "stream_mix",
    }
)

# Looked up, not imported: a machine without a GPU never loads it.
_TRITON = find_spec("triton") is not None


def backend(op: str, device: torch.device) -> str:
    """The implementation that ``op`` uses on a device.

    "triton" on a CUDA device where Triton is installed and the operation has kernels, and
    "reference", plain PyTorch, everywhere else.

    Raises:
        ValueError: no such operation.
    """
    if op not in OPS:
        raise ValueError(f"unknown operation {op!r}; known: {', '.join(OPS)}")
    return "triton" if device.type == "cuda" and _TRITON and op in KERNELS else "reference"


def backends(device: torch.device) -> dict[str, str]:
    """The implementation of every operation on a device."""
    return {op: backend(op, device) for op in OPS}


def choose(op: str, requested: str, device: torch.device) -> str:
    """What a call of ``op`` runs by: as `backend` says for "auto", else what was requested.

    Raises:
        ValueError: kernels are requested where they cannot run, or a backend that does not exist.
    """
    if requested == "auto":
        return backend(op, device)
    if requested not in ("reference", "triton"):
        raise ValueError(f"backend={requested!r}: give auto, reference or triton")
    if requested == "triton":
        if op not in KERNELS:
            raise ValueError(f"backend='triton': {op} has no kernels")
        if not _TRITON:
            raise ValueError("backend='triton': Triton is not installed")
        # The interpreter is for tests: it runs a kernel's programs one after the other in NumPy.
        if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
            raise ValueError(f"backend='triton': the tensors are on {device}, not on a CUDA device")
    return requested


def interpreted() -> bool:
    """Whether Triton runs kernels on the CPU; it looks when it is first imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"
