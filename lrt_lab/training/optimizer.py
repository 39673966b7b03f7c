"""Optimizers over named groups.

Every parameter's role decides its group, never its number of axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from lrt_lab.errors import UserError
from lrt_lab.layers import ROLES, Role

#: Roles whose weights decay towards zero.
DECAYING: tuple[Role, ...] = ("matrix", "head", "router")


def named_groups(module: nn.Module) -> dict[Role, dict[str, nn.Parameter]]:
    """Parameters by role, each with its name, in the module's order; empty groups are left out."""
    groups: dict[Role, dict[str, nn.Parameter]] = {role: {} for role in ROLES}
    for name, parameter in module.named_parameters():
        groups[parameter.role][name] = parameter  # type: ignore[attr-defined]
    return {role: members for role, members in groups.items() if members}


class Optimization:
    """How a run descends: an optimizer and the course of its learning rate.

    The rate rises linearly over the first ``warmup`` of the steps and falls to ``final`` of its
    peak at the last one, along half a cosine or a straight line.

    Args:
        lr: peak learning rate.
        warmup: share of the steps that warm up.
        final: learning rate at the end, as a share of the peak.
        decay: "cosine" or "linear".
        weight_decay: on matrices, the head and routers.
    """

    def __init__(
        self,
        lr: float = 3e-3,
        warmup: float = 0.04,
        final: float = 0.1,
        decay: Literal["cosine", "linear"] = "cosine",
        weight_decay: float = 0.1,
    ) -> None:
        if lr <= 0:
            raise UserError(f"optimizer lr={lr}: it must be positive")
        if not 0 <= warmup < 1 or not 0 <= final <= 1:
            raise UserError(
                f"optimizer warmup={warmup}, final={final}: both are shares from 0 to 1"
            )
        self.lr, self.warmup, self.final = lr, warmup, final
        self.decay, self.weight_decay = decay, weight_decay

    def factor(self, step: int, steps: int) -> float:
        """Learning rate of a step as a share of the peak."""
        rising = max(1, round(self.warmup * steps))
        if step < rising:
            return (step + 1) / rising
        progress = min(1.0, (step - rising + 1) / max(1, steps - rising))
        falling = (1 + math.cos(math.pi * progress)) / 2 if self.decay == "cosine" else 1 - progress
        return self.final + (1 - self.final) * falling

    def group(self, role: Role, members: dict[str, nn.Parameter], lr: float) -> dict[str, Any]:
        """An optimizer group that keeps its name and its members' names."""
        return {
            "name": role,
            "parameter_names": list(members),
            "params": list(members.values()),
            "lr": lr,
            "weight_decay": self.weight_decay if role in DECAYING else 0.0,
        }

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a module whose parameters carry roles."""
        raise NotImplementedError


class AdamW(Optimization):
    """AdamW for every group (Loshchilov and Hutter, arXiv:1711.05101).

    Args:
        lr: peak learning rate.
        betas: decay rates of the first and second moment.
        eps: added to the root of the second moment.
        warmup: share of the steps that warm up.
        final: learning rate at the end, as a share of the peak.
        decay: "cosine" or "linear".
        weight_decay: on matrices, the head and routers.
    """

    def __init__(
        self,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        warmup: float = 0.04,
        final: float = 0.1,
        decay: Literal["cosine", "linear"] = "cosine",
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(lr, warmup, final, decay, weight_decay)
        self.betas, self.eps = betas, eps

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        groups = [
            self.group(role, members, self.lr) for role, members in named_groups(module).items()
        ]
        return torch.optim.AdamW(groups, betas=self.betas, eps=self.eps, foreach=True)


class MuonAdamW(AdamW):
    """Muon for matrices, AdamW for the rest (Jordan et al., 2024; torch.optim.Muon).

    Args:
        lr: peak learning rate of AdamW's groups.
        matrix_lr: peak learning rate of Muon's matrices.
        momentum: of Muon.
        betas: of AdamW.
        eps: of AdamW.
        warmup: share of the steps that warm up.
        final: learning rate at the end, as a share of the peak.
        decay: "cosine" or "linear".
        weight_decay: on matrices, the head and routers.
    """

    def __init__(
        self,
        lr: float = 3e-3,
        matrix_lr: float = 0.02,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        warmup: float = 0.04,
        final: float = 0.1,
        decay: Literal["cosine", "linear"] = "cosine",
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(lr, betas, eps, warmup, final, decay, weight_decay)
        if matrix_lr <= 0:
            raise UserError(f"optimizer matrix_lr={matrix_lr}: it must be positive")
        self.matrix_lr, self.momentum = matrix_lr, momentum

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        groups = named_groups(module)
        matrices = groups.pop("matrix")
        muon = torch.optim.Muon(
            [self.group("matrix", matrices, self.matrix_lr)],
            lr=self.matrix_lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
        )
        rest = [self.group(role, members, self.lr) for role, members in groups.items()]
        return Together(
            [muon, torch.optim.AdamW(rest, betas=self.betas, eps=self.eps, foreach=True)]
        )


def forget(optimizer: torch.optim.Optimizer) -> None:
    """Drop all moments and step counts, as a new optimizer would have none."""
    members = optimizer.optimizers if isinstance(optimizer, Together) else [optimizer]
    for member in members:
        member.state.clear()


class Together(torch.optim.Optimizer):
    """Several optimizers that step as one.

    Groups are shared, so schedulers and checkpoints see them all.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        super().__init__([group for o in self.optimizers for group in o.param_groups], {})
        self._share()

    def _share(self) -> None:
        self.param_groups = [group for o in self.optimizers for group in o.param_groups]

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """Step each optimizer once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The members' states, in order."""
        return {"members": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for optimizer, state in zip(self.optimizers, state_dict["members"], strict=True):
            optimizer.load_state_dict(state)
        self._share()
