"""One square, analysed: what a report prints and what the self-check simulates, by the same
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lrt_lab.analysis.estimate import Estimate
from lrt_lab.analysis.linear_model import blocked, equal_variances
from lrt_lab.analysis.ratio import Ratio
from lrt_lab.analysis.signflip import sign_flip
from lrt_lab.analysis.square import (
    CONTRASTS,
    Square,
    absolute,
    effects,
    excess,
    log,
    per_seed,
    relative_gains,
    relative_ratio,
)
from lrt_lab.analysis.table import Table
from lrt_lab.analysis.verdict import Verdict, decide

GAINS = ("gain_base", "gain_improved")


@dataclass(frozen=True)
class Study:
    """Everything that complete blocks of one square say; arrays of the table's leading shape."""

    square: Square
    seeds: tuple[object, ...]
    log: dict[str, Estimate]
    absolute: dict[str, Estimate]
    excess: dict[float, dict[str, Estimate]]
    relative: dict[str, Estimate]
    ratio: Ratio
    verdict: Verdict
    blocked: dict[str, Estimate]
    equal_variances: np.ndarray
    sign_flip: dict[str, np.ndarray]
    per_seed: dict[str, np.ndarray]


def analyse(
    table: Table, square: Square, margin: float, alpha: float = 0.05, floors: Sequence[float] = ()
) -> Study:
    """All estimands, intervals, tests and the verdict of one square.

    Args:
        table: losses in nats per token.
        square: the four cells.
        margin: half-width of the band of interactions that do not matter, in ln loss.
        alpha: two-sided level.
        floors: entropy floors E in nats per token for the log-excess scale; those at or above a
            loss give NaN.
    """
    part = table.select(square.cells).blocks()
    on_log = effects(part, square, log)
    paired = part.paired
    y = np.log(part.loss)
    differences = per_seed(part, square) if paired else {}
    return Study(
        square=square,
        seeds=part.seeds,
        log=on_log,
        absolute=effects(part, square, absolute),
        excess={floor: effects(part, square, excess(floor)) for floor in floors},
        relative=relative_gains(part, square),
        ratio=relative_ratio(part, square, 1 - alpha),
        verdict=decide(on_log, margin, alpha),
        blocked={name: blocked(y, w) for name, w in CONTRASTS.items()} if paired else {},
        equal_variances=equal_variances(y) if paired else np.full(y.shape[:-2], np.nan),
        sign_flip={name: sign_flip(d) for name, d in differences.items()},
        per_seed=differences,
    )
