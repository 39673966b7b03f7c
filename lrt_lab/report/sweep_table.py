"""The report's section on a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import NONE, interval, listing, p, percent, plain

Results = Mapping[str, Any]


def sweep(results: Results) -> list[str]:
    """The default and the best of the sweep side by side."""
    found = results["sweep"]
    if not found:
        return []
    level = percent(1 - results["suite"]["alpha"])
    axis, default, base = found["axis"], found["default"], found["baseline"]
    head = [
        "variant",
        *(f"val. loss, {value}" for value in found["values"]),
        f"test loss, {default}",
        f"gain over {base}, {default} [{level}]",
        "p (Holm)",
        f"best {axis}",
        "test loss, best",
        f"gain over {base}, best [{level}]",
        "p (Holm)",
    ]
    rows = []
    for row in found["rows"]:
        mark = "*" if row["at_the_edge"] else ""
        rows.append(
            [
                row["variant"],
                *(plain(row["validation"][value]) for value in found["values"]),
                *_side(row["default"]),
                f"{row['best']['value']}{mark}" if row["best"] else NONE,
                *_side(row["best"]),
            ]
        )
    said = (
        f"Every variant was trained at the same values of {axis}: {listing(found['values'])}. The "
        "best is the one with the lowest validation loss at the end of training, mean over seeds; "
        "a cell with a missing or diverged run cannot be chosen. Test losses took no part in the "
        f"choice. Gains are in ln loss, best against the best of {base} and {default} against its "
        f"{default}; Holm's p over the rows of its column."
    )
    parts = ["## Best of the sweep", said, grid(head, rows)]
    if any(row["at_the_edge"] for row in found["rows"]):
        parts.append("\\* At the edge of the grid: a better value may lie beyond it.")
    return parts


def _side(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return [NONE, NONE, NONE]
    gain = found["gain"]
    return [plain(found["loss"]), *([interval(gain), p(gain["p_holm"])] if gain else [NONE, NONE])]
