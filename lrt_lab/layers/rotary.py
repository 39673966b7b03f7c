"""Rotary position embedding on half-split features (Su et al., arXiv:2104.09864).

With angle a = position * base^(-2i/h) and features split into halves (x1, x2):

    y1 = x1 cos a + x2 sin a,    y2 = x2 cos a - x1 sin a

as `lrt_kernels.rotate` does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_table(
    position: Tensor, head_dim: int, base: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin for positions ``(P,)`` or ``(B, P)``.

    They are shaped to broadcast over ``(B, P, heads, head_dim / 2)``.

    Angles are computed in float64: at long context a float32 angle is wrong in the third digit.
    """
    exponent = torch.arange(0, head_dim, 2, device=position.device, dtype=torch.float64) / head_dim
    angle = position.to(torch.float64).unsqueeze(-1) * base**-exponent
    return angle.cos().to(dtype).unsqueeze(-2), angle.sin().to(dtype).unsqueeze(-2)
