"""Root-mean-square norm: y = x / sqrt(mean(x^2) + eps) * gain."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lrt_lab.layers.parameter import constant, parameter


class RMSNorm(nn.Module):
    """RMSNorm with a learned gain of ones; ``(..., width) -> (..., width)``."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.gain = parameter(width, init=constant(1.0), role="gain")

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast the output of a linear map is narrower than the gain.
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), self.eps)


def rms_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """The same norm without a gain."""
    return F.rms_norm(x, x.shape[-1:], None, eps)
