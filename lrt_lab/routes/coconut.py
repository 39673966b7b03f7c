"""Coconut: continuous thoughts at silent positions (Hao et al., arXiv:2412.06769).

    z_t   = N_final(h_t^L)
    h_t^0 = z_{t-1}    at a silent position,    h_t^0 = e_t    elsewhere

There is no projection and no gate; the stack sees the state where it sees a token otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrt_lab.frame import Memory, Taps, View
from lrt_lab.routes.base import Route, Traits


class Coconut(Route):
    """Coconut: the state that the head reads is the next silent position's input.

    Positions that hold a token receive nothing, so on text without silent positions this is the
    plain model. A silent position at a document start keeps the embedding of its id.
    """

    traits = Traits(zero_is_none=False, silent=True)
    needs = Taps(top=True)

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        return taps["top"]

    def receives(self, at: View) -> Tensor:
        silent = torch.zeros_like(at.start) if at.silent is None else at.silent
        return silent.to(at.start.device) & super().receives(at)

    def embed(self, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        if memory is None:
            return x
        return torch.where(memory.present.unsqueeze(-1), memory.value.to(x.dtype), x)
