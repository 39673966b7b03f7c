"""The one place that knows what a cell costs.

Matrix FLOPs are not written down per part: one training step of one row runs on the meta device,
where tensors have shapes and no values, under torch's own FLOP counter. Every sweep of every pass,
its backward and the head of every supervised pass is counted because it is executed, so a new part
needs no formula. Attention counts as the full rectangle of queries by keys.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Schedule
from lrt_lab.training.loss import training_loss

ROUTING = ("connection", "router")


@dataclass(frozen=True)
class Cost:
    """What one cell costs.

    Attributes:
        total: all parameters.
        matmul: parameters used in matrix products: the head counts, the input table does not.
        train_flops_per_token: matrix FLOPs, forward and backward, all passes.
        passes: token-forwards per token.
    """

    total: int
    matmul: int
    train_flops_per_token: float
    passes: float

    def parameters(self) -> dict[str, int]:
        """Both parameter counts."""
        return {"total": self.total, "matmul": self.matmul}

    def as_dict(self) -> dict[str, Any]:
        """For records."""
        return asdict(self)


def measure(decoder: Decoder, schedule: Schedule, length: int) -> Cost:
    """Price a decoder on the meta device under a schedule, at a row length; takes no data."""
    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    matmul = total = 0
    for parameter in decoder.parameters():
        total += parameter.numel()
        role = parameter.role  # type: ignore[attr-defined]
        if role in ("matrix", "head") or (role in ROUTING and parameter.dim() > 1):
            matmul += parameter.numel()
    flops = 0.0
    for share, part in schedule.mixture():
        with FlopCounterMode(display=False) as counter:
            training_loss(decoder, part, Frame(ids), ids, Clock()).backward()
        flops += share * counter.get_total_flops()
    return Cost(total, matmul, flops / length, schedule.cost(length, decoder) / length)
