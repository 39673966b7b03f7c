"""Router coefficients are computed in float32 or wider, whatever the state's dtype."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """The tensor in float32, or as it is where it is at least that wide."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(device_type: str) -> AbstractContextManager[None]:
    """Switches autocast off: it would narrow the matrix products again."""
    # The meta device has no autocast to switch off.
    active = device_type != "meta" and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if active else nullcontext()
