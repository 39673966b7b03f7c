"""Float32 islands: coefficients that route state are computed in float32 or wider.

A routing coefficient multiplies whole states, unit after unit: rounded to eight bits it distorts
every sum that it enters, so no precision plugin may reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """Float32, or ``dtype`` where that is wider."""
    return torch.promote_types(dtype, torch.float32)


def no_autocast(device_type: str) -> AbstractContextManager[None]:
    """A region in which autocast does not narrow matrix products."""
    # The meta device has no autocast to switch off.
    active = device_type != "meta" and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if active else nullcontext()


def alike(sources: Sequence[Tensor]) -> list[Tensor]:
    """Sources in the widest dtype among them, each in one piece.

    Under autocast an embedding is wider than the outputs of the units above it.
    """
    dtype = reduce(torch.promote_types, (source.dtype for source in sources))
    return [source.to(dtype).contiguous() for source in sources]
