"""What operations ask of their inputs, and errors that name the argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def check_sources(sources: Sequence[Tensor], name: str = "sources") -> None:
    """At least one tensor ``(..., d)``; all of one shape, dtype and device, each in one piece.

    Raises:
        ValueError: naming the first tensor that is not so.
    """
    if not sources:
        raise ValueError(f"{name} is empty: give at least one tensor")
    first = sources[0]
    if first.dim() < 1:
        raise ValueError(f"{name}[0] has no features: give (..., d)")
    for i, source in enumerate(sources):
        check_tensor(source, f"{name}[{i}]", tuple(first.shape), first.device)
        if source.dtype != first.dtype:
            raise ValueError(f"{name}[{i}] is {source.dtype}, {name}[0] {first.dtype}")
        if not source.is_contiguous():
            raise ValueError(f"{name}[{i}] is not contiguous: call .contiguous()")


def check_masks(masks: Sequence[Tensor | None] | None, like: Tensor, count: int) -> None:
    """Per source ``(..., d)`` None or ``(...)`` bool.

    Raises:
        ValueError: naming the first mask that is not so.
    """
    if masks is None:
        return
    if len(masks) != count:
        raise ValueError(f"masks has {len(masks)} entries for {count} sources")
    for j, mask in enumerate(masks):
        if mask is not None:
            check_tensor(mask, f"masks[{j}]", tuple(like.shape[:-1]), like.device, (torch.bool,))


def check_tensor(
    tensor: Tensor,
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> None:
    """One tensor's shape, device and dtype.

    Raises:
        ValueError: naming the argument.
    """
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {shape}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, others on {device}")
    if tensor.dtype not in dtypes:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name} is {tensor.dtype}: give one of {known}")


def check_rows(
    tensor: Tensor,
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> None:
    """As `check_tensor`, and the last axis in one piece.

    Raises:
        ValueError: naming the argument.
    """
    check_tensor(tensor, name, shape, device, dtypes)
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} is not contiguous along its last axis: call .contiguous()")
