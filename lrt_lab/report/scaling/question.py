"""What is asked of a table of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lrt_lab.analysis.scaling import WINDOW


@dataclass(frozen=True)
class Interactions:
    """One entry for every 2x2 of runs, (n,) each: I in ln loss, and where it was measured.

    Attributes:
        base, improved: the models without and with the route, by name.
        size, tokens: N and D of the improved model without the route.
        passes: of the routed models.
        values: ln loss gained by the route on the improved model, less that on the base.
    """

    base: tuple[str, str]
    improved: tuple[str, str]
    size: np.ndarray
    tokens: np.ndarray
    passes: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Question:
    """What is asked of a table.

    Attributes:
        law: how passes enter, a key of `PASSES`; None to choose by the held-out largest runs.
        target: the loss that both models must reach; None for what the law gives the baseline's
            run of middle compute.
        ratios: prompt tokens for every output token.
        prefill_passes: passes over a prompt; None for as many as were trained.
        window: output tokens to look at.
        repeated: "refuse" or "term", for runs of more than about four epochs.
        resamples, seed: of the bootstrap.
        level: of the intervals.
        interactions: values of the interaction, where the runs have 2x2s.
        preface: said before every verdict, such as what a pilot is worth.
    """

    law: str | None = None
    target: float | None = None
    ratios: Sequence[float] = (0, 1, 10, 100)
    prefill_passes: float | None = None
    window: tuple[float, float] = WINDOW
    repeated: str = "refuse"
    resamples: int = 1000
    seed: int = 1
    level: float = 0.95
    interactions: Interactions | None = None
    preface: str = ""
