"""Comparisons relative to the size of what is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

# What two float64 evaluations of the same equations may differ by.
SAME = 1e-10
# What shows that two evaluations are of different things.
DIFFERENT = 1e-9


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the largest entry of ``expected``."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} against {tuple(expected.shape)}"
    actual, expected = actual.detach(), expected.detach()
    assert torch.isfinite(actual).all()
    if not expected.numel():
        return 0.0
    scale = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return float((actual - expected).abs().max() / scale)


def rms_error(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of ``expected``."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} against {tuple(expected.shape)}"
    actual, expected = actual.detach(), expected.detach()
    return float((actual - expected).square().mean().sqrt() / expected.square().mean().sqrt())
