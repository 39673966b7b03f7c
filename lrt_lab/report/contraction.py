"""Whether the recurrence of each cell contracts, from the last rows of its runs' diagnoses.

A run recorded with `recording.contraction_every` has a ``contraction.jsonl``; without one in any
run a report says nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lrt_lab.report.layout import Results, grid
from lrt_lab.report.numbers import NONE, plain, signed
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import clean, mean
from lrt_lab.store import CONTRACTION, read_jsonl

Row = Mapping[str, Any]


def contraction(
    design: Design, records: Sequence[Record], folder: Path
) -> list[dict[str, Any]] | None:
    """One entry for every cell with a recurrence; None where nothing was recorded."""
    found = []
    for name in design.cells:
        runs = [
            read_jsonl(folder / r.folder / CONTRACTION)
            for r in records
            if r.cell == name and r.status == "finished"
        ]
        rows = [rows[-1] for rows in runs if rows and rows[-1]["passes"]]
        if rows:
            found.append(entry(name, rows))
    return found or None


def entry(cell: str, rows: Sequence[Row]) -> dict[str, Any]:
    """What the rows of a cell's runs say, one value or list a run."""
    losses = np.array([row["passes"]["loss"] for row in rows], float)
    trained = mean(row["trained"] for row in rows)
    # A training depth between two whole passes counts as the earlier one.
    at = min(max(int(trained or 1), 1), losses.shape[1]) - 1
    gathers = [row["slots"] for row in rows if row.get("slots")]
    return clean(
        {
            "cell": cell,
            "trained": trained,
            "verdict": [row["verdict"] for row in rows],
            "beyond": [row["beyond"] for row in rows],
            "rate": [row["passes"]["rate"] for row in rows],
            "radius": [row["radius"] and row["radius"]["mean"] for row in rows],
            "largest": [row["radius"] and row["radius"]["largest"] for row in rows],
            "rank": [row["directions"]["rank"] for row in rows],
            "width": rows[0]["directions"]["width"],
            "cosine": [row["directions"]["cosine"] for row in rows],
            "exact": [row["loss"] for row in rows],
            "passes": list(range(1, losses.shape[1] + 1)),
            "loss": losses,
            "best": [int(np.nanargmin(row)) + 1 if np.isfinite(row).any() else 0 for row in losses],
            "growth": losses - losses[:, at : at + 1],
            "change": np.array([row["passes"]["change"] for row in rows], float),
            "memory": [row["gradient"]["memory"] for row in rows],
        }
        | (gathered(gathers) if len(gathers) == len(rows) else {})
    )


def gathered(runs: Sequence[Row]) -> dict[str, Any]:
    """What the slots of a cell gather from, and their size by position: means over its runs."""
    mean_of = {key: np.mean([run[key] for run in runs], axis=0) for key in ("weights", "size")}
    return {"slots": {"sources": runs[0]["sources"], "position": runs[0]["position"], **mean_of}}


def said(item: Row) -> str:
    """The verdicts of a cell's runs in a few words."""
    found = [
        word + (f" beyond pass {beyond}" if word == "diverges" else "")
        for word, beyond in zip(item["verdict"], item["beyond"], strict=True)
    ]
    kinds = list(dict.fromkeys(found))
    if len(kinds) == 1:
        return kinds[0]
    return ", ".join(f"{kind} ({found.count(kind)} of {len(found)})" for kind in kinds)


#: Columns of the table: what each shows of an entry, as means over runs.
COLUMNS = {
    "rate": lambda item: plain(mean(item["rate"]), 3),
    "radius: mean": lambda item: plain(mean(item["radius"]), 3),
    "largest": lambda item: plain(mean(item["largest"]), 3),
    "trained passes": lambda item: f"{item['trained']:g}",
    "loss lowest at pass": lambda item: ", ".join(map(str, dict.fromkeys(item["best"]))),
    "loss at trained depth": lambda item: plain(mean(at_trained(item)), 4),
    "growth to the last pass": lambda item: signed(mean(row[-1] for row in item["growth"]), 4),
    "exact loss": lambda item: plain(mean(item["exact"]), 4),
    "change at the last pass": lambda item: small(mean(row[-1] for row in item["change"])),
    "effective rank": lambda item: f"{plain(mean(item['rank']), 1)} of {item['width']}",
    "gradient, lag 8 over 1": lambda item: small(mean(map(reach, item["memory"]))),
}


def at_trained(item: Row) -> list[float | None]:
    """Loss of each run at the deepest pass that was trained."""
    return [
        None if loss[0] is None or growth[0] is None else loss[0] - growth[0]
        for loss, growth in zip(item["loss"], item["growth"], strict=True)
    ]


def reach(memory: Sequence[float | None]) -> float | None:
    """What of a late loss's gradient is left eight positions back."""
    if len(memory) < 8 or not memory[0] or memory[7] is None:
        return None
    return memory[7] / memory[0]


def small(value: float | None) -> str:
    """Three digits of a number whose size says everything."""
    return NONE if value is None else f"{value:.2g}"


def section(results: Results) -> list[str]:
    """The part of a report, as Markdown."""
    items = results.get("contraction")
    if not items:
        return []
    rows = [[i["cell"], said(i), *(column(i) for column in COLUMNS.values())] for i in items]
    last = items[0]["passes"][-1]
    about = (
        f"On a fixed batch, to pass {last}, after training; means over runs. The rate is the ratio "
        "of the changes that two passes in turn make to the memory, over the later half of the "
        "passes; the radius that of the Jacobian of what leaves a position with respect to what "
        "left the one before, along the exact recurrence. Below .95 a recurrence contracts, above "
        "1.05 it diverges; between them it diverges if more passes make the loss more than 1 % "
        "worse than the best one's, and is neutral otherwise. A recurrence that contracts may do "
        "so to a worse loss: growth is against the deepest pass that was trained."
    )
    return ["## Contraction", about, grid(["cell", "verdict", *COLUMNS], rows)]
