"""What a report is made from: the design that was declared, and one record per planned run.

Both readers (a suite's run folders, a CSV) end here, and everything after reads only these two.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from lrt_lab.analysis.square import Square
from lrt_lab.analysis.table import Table, arrange

# what parameters are counted as, where a run says so
KINDS = ("dense", "queries", "tables")
# how each budget is called in a report; a plan's twins may name any of them
BUDGETS = {
    "tokens": "matched tokens",
    "train_flops": "matched training FLOPs",
    "train_seconds": "matched wall-clock",
    "parameters": "matched parameters",
    "decode_flops": "matched FLOPs per decoded token",
}
NOUNS = {
    "tokens": "tokens",
    "train_flops": "training FLOPs",
    "train_seconds": "training time",
    "parameters": "parameters",
    "decode_flops": "FLOPs per decoded token",
}


@dataclass(frozen=True)
class Record:
    """One planned run. `loss` is nats per token on the headline evaluation (NaN where there is
    none).
    """

    cell: str
    seed: Hashable
    status: str = "finished"
    loss: Any = float("nan")
    last_finite_loss: float = float("nan")
    bpb: float = float("nan")
    tokens: float = float("nan")
    train_flops: float = float("nan")
    train_seconds: float = float("nan")
    eval_seconds: float = float("nan")
    tokens_per_second: float = float("nan")
    parameters: float = float("nan")
    matmul_parameters: float = float("nan")
    # matrix FLOPs of decoding a row's last position
    decode_flops: float = float("nan")
    # parameters by kind: dense, queries, tables
    kinds: Mapping[str, float] = field(default_factory=dict)
    folder: str = ""
    curve: Mapping[str, Any] | None = None
    final: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Twin:
    """A cell trained again so that its budget matches that of another: `cell` stands in for `of`
    beside `as_`.
    """

    cell: str
    of: str
    as_: str
    match: str

    @property
    def same_model(self) -> bool:
        """Whether it is its cell's model, with other steps, and not a wider or narrower one."""
        return self.match not in ("parameters", "decode_flops")


@dataclass(frozen=True)
class Design:
    """What was declared before the runs."""

    name: str
    axes: Mapping[str, Sequence[str]]
    cells: Mapping[str, Mapping[str, str]]
    square: Square | None
    seeds: tuple[Hashable, ...]
    margin: float
    alpha: float = 0.05
    planned_seeds: int | None = None
    primary: str = "interaction"
    family: tuple[str, ...] = ()
    contrasts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    floors: tuple[float, ...] = ()
    twins: tuple[Twin, ...] = ()
    square_axes: tuple[str, str] = ("backbone", "route")
    baseline: str | None = None
    # axis and default of a sweep: values tried for every variant, one of which is chosen
    sweep: tuple[str, str] | None = None
    # an axis, its baseline, and the words that describe its other values
    groups: Mapping[str, Any] = field(default_factory=dict)
    # the value that the baseline of a single axis must beat
    solid: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    ladders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # further squares by name, each the primary one with other cells in the place of some
    squares: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # by budget, and by cell of the product, the cell that is run at so many times the steps
    rungs: Mapping[float, Mapping[str, str]] = field(default_factory=dict)
    # by cell of the product, the cell that is run at the default of the tuned key
    defaults: Mapping[str, str] = field(default_factory=dict)
    # cells whose tuned value is the default: at the default they would be run over again
    unchanged: tuple[str, ...] = ()
    straight: Literal["log", "linear"] = "log"
    seeded: bool = True
    vocabulary: int | None = None
    strays: tuple[str, ...] = ()
    cost_names: Mapping[str, str] = field(default_factory=dict)
    outcome: str = "exact"
    # what effects are in: ln loss, or differences in an accuracy
    metric: str = "loss"
    paired: bool = True
    title: str = ""
    hypothesis: str = ""
    prediction: str = ""
    scale: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def again(self) -> set[str]:
        """Cells that are others of the product once more, but for twins."""
        return {
            again for cells in (*self.rungs.values(), self.defaults) for again in cells.values()
        }

    def at_default(self, cell: str) -> str | None:
        """A cell at the default of the tuned key, itself if tuning chose that; None if not run."""
        return cell if cell in self.unchanged else self.defaults.get(cell)

    def matched(self, square: Square, match: str) -> Square | str:
        """The square with twins in place of cells, so that each backbone's two cells cost the same.

        A twin counts only where it was trained to match the very cell that it stands beside. A text
        says what is missing.
        """
        stand_ins: dict[str, str] = {}
        p0, p1, a0, a1 = square.cells
        for pair in ((p0, p1), (a0, a1)):
            found = [t for t in self.twins if t.match == match and {t.of, t.as_} == set(pair)]
            if not found:
                return f"no cell was trained with the {NOUNS[match]} of {pair[1]}"
            stand_ins[found[0].of] = found[0].cell
        return square.with_cells(stand_ins)


def table(records: Sequence[Record], design: Design, *, failed: str = "drop") -> Table:
    """The table of losses.

    Args:
        records: one per run; those without a loss leave their place empty.
        design: gives the order of cells and seeds.
        failed: "drop" leaves diverged runs empty (complete blocks only); "last" scores them at
            their last finite loss, or at that of a uniform guess over the vocabulary.
    """
    losses = [
        _scored(record, design) if failed == "last" and record.status == "diverged" else record.loss
        for record in records
    ]
    stacked = (
        np.stack([np.asarray(loss, dtype=float) for loss in losses], axis=-1)
        if losses
        else np.zeros(0)
    )
    return arrange(
        [record.cell for record in records],
        [record.seed for record in records],
        stacked,
        cells=design.cells,
        seeds=design.seeds,
        paired=design.paired,
    )


def _scored(record: Record, design: Design) -> float:
    """What a diverged run counts as in the sensitivity analysis."""
    if math.isfinite(record.last_finite_loss) or design.vocabulary is None:
        return record.last_finite_loss
    return math.log(design.vocabulary)
