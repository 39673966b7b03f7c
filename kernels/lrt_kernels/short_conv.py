"""Depthwise causal convolution over positions, with SiLU.

    y_t = silu(sum_{w < W} weight[:, W - 1 - w] x_{t - w}),    x = 0 before a document's start

The weight is laid out as torch's ``conv1d`` has it: its last column meets the newest position.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.precision import wide


def short_conv(x: Tensor, weight: Tensor, skip: int = 0, start: Tensor | None = None) -> Tensor:
    """``(B, skip + T, D) -> (B, T, D)``.

    Args:
        x: the first ``skip`` positions are only looked back at; before them all is zero.
        weight: ``(D, W)``.
        skip: at most W - 1.
        start: ``(B, skip + T)`` bool, where a document starts; None is nowhere.
    """
    length = x.shape[1] - skip
    weight = weight.to(x.dtype)
    begun = None if start is None else start.cumsum(1)
    y = x[:, skip:] * weight[:, -1]
    for back in range(1, min(weight.shape[1], x.shape[1])):
        # Rows that look back past the first column see zero.
        first = max(skip, back)
        past = x[:, first - back : first - back + skip + length - first]
        if begun is not None:
            here, there = begun[:, first:], begun[:, first - back : first - back + past.shape[1]]
            past = past.masked_fill((here != there).unsqueeze(-1), 0.0)
        y = y + F.pad(past * weight[:, -1 - back], (0, 0, first - skip, 0))
    return F.silu(y)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis, in float32 or wider and rounded once."""
    dtype = wide(x.dtype)
    scale = torch.rsqrt(x.to(dtype).square().sum(-1, keepdim=True) + eps)
    return (x.to(dtype) * scale).to(x.dtype)
