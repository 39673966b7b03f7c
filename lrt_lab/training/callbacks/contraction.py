"""The contraction diagnostic on request: to ``contraction.jsonl`` and to the loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lrt_lab.frame import Frame
from lrt_lab.training.callbacks.diagnosis import Diagnosis
from lrt_lab.training.contraction import depth, diagnose

if TYPE_CHECKING:
    from lrt_lab.module import LanguageModel

#: What the loggers show of a row: a number each.
SHOWN = {
    "rate": ("passes", "rate"),
    "radius": ("radius", "mean"),
    "rank": ("directions", "rank"),
    "cosine": ("directions", "cosine"),
}


class Contraction(Diagnosis):
    """Whether the recurrence contracts: `lrt_lab.training.contraction` on a fixed batch.

    A row also has ``trained``, the depth that the schedule trains to.
    """

    def diagnose(self, module: LanguageModel, frame: Frame, targets: Tensor) -> dict[str, Any]:
        trained = depth(module.schedule, module.decoder, frame.length)
        return {"trained": trained, **diagnose(module.decoder, frame, targets)}

    def scalars(self, row: dict[str, Any]) -> dict[str, float]:
        """``contraction/rate`` and the like; none without a route."""
        named = {name: row[part] and row[part][key] for name, (part, key) in SHOWN.items()}
        return {f"contraction/{name}": v for name, v in named.items() if v is not None}
