"""What each cell carries from position to position, from its runs' final records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.report.layout import Results, grid
from lrt_lab.report.numbers import NONE, plain
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import mean

#: How many sources of a slot the table names.
NAMED = 2


def measured(design: Design, records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry for every cell that carries anything: means over its runs, ranks by seed."""
    found = []
    for cell in design.cells:
        runs = [
            r.final["carried"]
            for r in records
            if r.cell == cell and r.status == "finished" and (r.final or {}).get("carried")
        ]
        if not runs or any(np.shape(r["size"]) != np.shape(runs[0]["size"]) for r in runs):
            continue
        first = runs[0]
        found.append(
            {
                "cell": cell,
                "positions": first["positions"],
                "rank": [run["rank"] for run in runs],
                "width": first["width"],
                "cosine": [run["cosine"] for run in runs],
                "position": first["position"],
                "size": np.mean([run["size"] for run in runs], axis=0),
                "sources": first["sources"],
                "weights": first["weights"] and np.mean([run["weights"] for run in runs], axis=0),
            }
        )
    return found


def section(results: Results) -> list[str]:
    """The report's section: effective rank, likeness, sizes and the largest sources of slots."""
    found = results.get("carried")
    if not found:
        return []
    head = ["cell", "effective rank", "cosine", "size, by slot", "gathers most from, by slot"]
    rows = [
        [
            item["cell"],
            f"{plain(mean(item['rank']), 1)} of {item['width']}",
            plain(mean(item["cosine"]), 2),
            "; ".join(plain(mean(size[1:]), 2) for size in item["size"]),
            "; ".join(map(largest, gathers(item))) or NONE,
        ]
        for item in found
    ]
    return [
        "## What is carried",
        "The memory that enters positions of the exact recurrence, on the first rows of the test "
        "slice, after training; means over seeds. Effective rank is that of all its vectors with "
        "their lengths aside, cosine the mean over pairs; size is the root mean square entry "
        "behind the first positions; of what a slot gathers the largest shares are named.",
        grid(head, rows),
    ]


def gathers(item: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """By slot its sources with their shares, the largest first; nothing where none gathers."""
    if not item["weights"]:
        return []
    return [
        sorted(zip(item["sources"], shares, strict=True), key=lambda pair: -pair[1])
        for shares in item["weights"]
    ]


def largest(shares: Sequence[tuple[str, float]]) -> str:
    """`unit 3 .41, embedding .20`."""
    named = [f"{name} {plain(share, 2).removeprefix('0')}" for name, share in shares[:NAMED]]
    return ", ".join(named)
