"""What tuning chose, as it is committed beside the suite file, and what it was chosen for.

`experiments/tuning/<suite>.json` holds for every tuned scale the hash of all that was tuned, and by
cell the scores of every factor and seed. A suite whose cells, grid or tuning seeds have changed
since is refused: a rate chosen for something else would look tuned and not be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.store import config_hash, read_json, write_json
from lrt_lab.suite.declaration import Scale, Suite
from lrt_lab.suite.expansion import Cell, cells

SCHEMA = "lrt-lab tuning 1"
#: Tuning runs are scored once, at their end, on the validation slice: the test slice takes no part.
SCORING = {
    "evaluation.part": "validation",
    "evaluation.validate_every": 0,
    "evaluation.curve_bytes": 0,
}


@dataclass(frozen=True)
class Tuned:
    """The choices at one scale: by cell its `factor`, and the `steps` that it was tuned with."""

    record: Mapping[str, Any]

    def factor(self, cell: Cell, steps: int) -> float:
        """The factor of this cell at so many steps: its own, or that of the nearest schedule."""
        known = self.record["cells"]
        if cell.name in known:
            return float(known[cell.name]["factor"])
        same = [choice for choice in known.values() if choice["axes"] == cell.axes]
        if not same:
            raise UserError(f"tuning knows no cell with the values of {cell.name}")
        nearest = min(same, key=lambda choice: abs(math.log(choice["steps"] / steps)))
        return float(nearest["factor"])

    def chose_default(self, cell: Cell) -> bool:
        """Whether a cell at the default rate would be its tuned self over again."""
        own = self.record["cells"].get(cell.name.partition("@")[0])
        return cell.factor == 1 and own is not None and own["factor"] == 1


def scored(suite: Suite) -> str:
    """What is scored: the declared outcome, and for a task the right answers that are compared."""
    metric, outcome = suite.statistics.metric, suite.statistics.outcome
    return outcome if metric == "loss" else f"{outcome} {metric}"


def path(suite: Suite) -> Path:
    """Where the suite's choices are committed."""
    return suite.path.parent / "tuning" / f"{suite.name}.json"


def candidates(suite: Suite, scale: Scale) -> list[Cell]:
    """The cells that are tuned: those of the product, and the twins that the section names."""
    assert suite.tuning is not None
    twins = {f"@{name}" for name in suite.tuning.twins}
    return [
        cell
        for cell in cells(suite, scale)
        if "@" not in cell.name or any(cell.name.endswith(name) for name in twins)
    ]


def digest(suite: Suite, scale: Scale) -> str:
    """One hash of all that tuning depends on: grid, seeds, and the cells' configs without both."""
    from lrt_lab.training.config import merge_configs

    tuning = suite.tuning
    assert tuning is not None
    return config_hash(
        {
            "key": tuning.key,
            "grid": tuning.grid,
            "seeds": tuning.seeds,
            "outcome": scored(suite),
            "cells": {
                cell.name: [
                    merge_configs([*suite.base, *scale.config], cell.overrides),
                    None if cell.twin is None else cell.twin.record(),
                ]
                for cell in candidates(suite, scale)
            },
            **({"matched": suite.matched} if suite.matched else {}),
        }
    )


def load(suite: Suite, scale: Scale) -> Tuned | None:
    """The choices at a scale; None where nothing is tuned.

    Raises:
        UserError: there are none, or they were made for other cells.
    """
    if not scale.tuned:
        return None
    file = path(suite)
    record = ((read_json(file) or {}).get("scales") or {}).get(scale.name)
    how = f"`lrt-lab suite tune {suite.path} --scale {scale.name}` makes it anew"
    if record is None:
        raise UserError(f"{file} has no tuning of scale {scale.name}; {how}.")
    if record["inputs"] != digest(suite, scale):
        raise UserError(
            f"{file}: what scale {scale.name} tuned has changed since (its cells, grid or tuning "
            f"seeds), so its choices are not used; {how}."
        )
    return Tuned(record)


def save(suite: Suite, scale: Scale, record: Mapping[str, Any]) -> Path:
    """Put a scale's choices into the suite's file, other scales untouched."""
    file = path(suite)
    content = read_json(file) or {"schema": SCHEMA, "suite": suite.name, "scales": {}}
    content["scales"] = dict(sorted({**content["scales"], scale.name: dict(record)}.items()))
    write_json(file, content)
    return file


def scaled(config: dict[str, Any], key: str, factor: float) -> None:
    """Multiply the value at a dotted key, in place."""
    *parents, last = key.split(".")
    place: Any = config
    for part in parents:
        place = place.get(part) if isinstance(place, dict) else None
    value = place.get(last) if isinstance(place, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"tuning.key {key}: the config fragments give it no number to multiply")
    # Twelve digits: 3 x 0.001 is meant, not 0.003 and the rounding of a product.
    place[last] = float(f"{value * factor:.12g}")
