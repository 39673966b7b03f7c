"""Parameters that know their initial values and their role.

The start of a run depends on the seed and on each parameter's canonical name alone: two cells of a
pair block share the exact values of every parameter that has the same name and shape in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn

from lrt_kernels import wide
from lrt_lab.rng import generator

Init = Callable[[Tensor, torch.Generator], None]

# matrix: weight of a linear map (decays, Muon's). embedding: the token table. head: the output map.
# gain: norm weights. connection: whatever routes state (queries, gates, stream scales); no decay.
# router: weight of a map from state to routing coefficients, where its paper decays it; not Muon's.
Role = Literal["matrix", "embedding", "head", "gain", "connection", "router"]
ROLES: tuple[Role, ...] = get_args(Role)


def normal(std: float) -> Init:
    """Independent N(0, std^2)."""

    def fill(tensor: Tensor, g: torch.Generator) -> None:
        tensor.normal_(0.0, std, generator=g)

    return fill


def uniform(bound: float) -> Init:
    """Independent U(-bound, bound)."""

    def fill(tensor: Tensor, g: torch.Generator) -> None:
        tensor.uniform_(-bound, bound, generator=g)

    return fill


def fan_in(tensor: Tensor, g: torch.Generator) -> None:
    """Uniform with standard deviation 1 / sqrt(fan-in), the last axis being the input."""
    uniform(math.sqrt(3.0 / tensor.shape[-1]))(tensor, g)


def constant(value: float) -> Init:
    """The same value everywhere."""

    def fill(tensor: Tensor, g: torch.Generator) -> None:
        tensor.fill_(value)

    return fill


def parameter(*shape: int, init: Init, role: Role) -> nn.Parameter:
    """An unfilled parameter that carries its initial distribution and its optimizer role."""
    new = nn.Parameter(torch.empty(*shape))
    new.initial, new.role = init, role  # type: ignore[attr-defined]
    return new


class Routing(nn.Module):
    """A module whose routing parameters stay float32 or wider when it is cast to less.

    They are those of the roles "connection" and "router": a coefficient multiplies whole states, so
    eight bits of it would be lost in every sum that follows.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every cast of a module, Lightning's true half precision included, goes through here.
        routing = [p for p in self.parameters() if p.role in ("connection", "router")]  # type: ignore[attr-defined]
        kept = {id(t): t for p in routing for t in (p, p.grad) if t is not None}

        def apply(t: Tensor) -> Tensor:
            new = fn(t)
            if id(t) in kept and new.dtype != wide(new.dtype):
                new = t.to(new.device, torch.float32)
            return new

        return super()._apply(apply, recurse)


@torch.no_grad()
def initialize(module: nn.Module, seed: int) -> None:
    """Fill every parameter from a generator keyed on (seed, "init", its name in ``module``).

    Values are drawn in float32 on the CPU whatever the module's dtype and device, so the start is
    the same everywhere.
    """
    for name, target in module.named_parameters():
        if target.is_meta:
            continue
        value = torch.empty(target.shape, dtype=torch.float32)
        target.initial(value, generator(seed, "init", name))  # type: ignore[attr-defined]
        target.copy_(value)
