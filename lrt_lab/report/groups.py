"""An axis whose values are described by words: which choices they are made of, and what they gain.

A suite's `statistics.groups` says in the same few words of every value of an axis what it is: of a
route what it retains, who reads it, how it changes and how it is trained. The gains over the axis'
baseline are then also averaged over all values that share a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrt_lab.analysis.contrasts import Contrast, evaluate
from lrt_lab.analysis.table import Table
from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import NONE, interval, percent
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import interval as values

Results = Mapping[str, Any]


def grouped(losses: Table, design: Design, records: Sequence[Record]) -> dict[str, Any] | None:
    """Gains in ln loss by value and by word, at each combination of the other axes; None without
    groups.

    A word's gain is the mean over the values that have it, seed by seed.
    """
    if not design.groups:
        return None
    axis, base = design.groups["axis"], design.groups["baseline"]
    there = {str(axes[axis]) for axes in design.cells.values()} - {base}
    described = {v: words for v, words in design.groups["values"].items() if v in there}
    if not described:
        return None
    aside = design.again | {twin.cell for twin in design.twins}
    places: dict[str, dict[str, str]] = {}
    for cell, axes in design.cells.items():
        if cell not in aside:
            others = "+".join(str(value) for name, value in axes.items() if name != axis)
            places.setdefault(others, {})[str(axes[axis])] = cell

    def gains(members: Sequence[str]) -> dict[str, Any]:
        return {place: _gain(losses, design, by, base, members) for place, by in places.items()}

    flops = {record.cell: record.train_flops for record in records if record.status == "finished"}
    first = next(iter(places.values()))
    choices = list(next(iter(described.values())))
    rows = [
        {
            "value": value,
            "words": words,
            "flops": _ratio(flops, first, value, base),
            "gains": gains([value]),
        }
        for value, words in described.items()
    ]
    by_word = []
    for choice in choices:
        for word in dict.fromkeys(words[choice] for words in described.values()):
            members = [value for value, words in described.items() if words[choice] == word]
            by_word.append(
                {"choice": choice, "word": word, "members": members, "gains": gains(members)}
            )
    return {
        "axis": axis,
        "baseline": base,
        "choices": choices,
        "places": list(places),
        "rows": rows,
        "words": by_word,
    }


def _gain(
    losses: Table, design: Design, cells: Mapping[str, str], base: str, members: Sequence[str]
) -> dict[str, Any] | None:
    found = [cells[value] for value in members if value in cells]
    if base not in cells or not found:
        return None
    weights = {cells[base]: 1.0} | {cell: -1.0 / len(found) for cell in found}
    return values(evaluate(losses, Contrast(found[0], weights)).estimate, 1 - design.alpha)


def _ratio(
    flops: Mapping[str, float], cells: Mapping[str, str], value: str, base: str
) -> float | None:
    known = [flops.get(cells.get(name, "")) for name in (value, base)]
    return None if None in known else known[0] / known[1]  # type: ignore[operator]


def groups(results: Results) -> list[str]:
    """The report's section: one row per value with its words, then one row per word."""
    found = results["groups"]
    if not found:
        return []
    level = percent(1 - results["suite"]["alpha"])
    axis, base, choices, places = (found[k] for k in ("axis", "baseline", "choices", "places"))
    heads = [f"gain{f' on {place}' if place else ''} [{level}]" for place in places]
    rows = [
        [
            row["value"],
            *(row["words"][choice] for choice in choices),
            NONE if row["flops"] is None else f"{row['flops']:.2f}",
            *(_shown(row["gains"][place]) for place in places),
        ]
        for row in found["rows"]
    ]
    by_word = [
        [
            f"{row['choice']}: {row['word']}",
            ", ".join(row["members"]),
            *(_shown(row["gains"][place]) for place in places),
        ]
        for row in found["words"]
    ]
    return [
        f"## By {', '.join(choices[:-1])} and {choices[-1]}",
        f"Gains in ln loss over {axis} {base} at equal tokens; FLOPs are training FLOPs as a "
        f"multiple of {base}'s{f', on {places[0]}' if places[0] else ''}.",
        grid([axis, *choices, "FLOPs", *heads], rows),
        "The mean gain of all that share a word. Values that share one differ in other words, too: "
        "a row describes, and attributes nothing.",
        grid(["choice", f"{axis}s", *heads], by_word),
    ]


def _shown(gain: Mapping[str, Any] | None) -> str:
    return NONE if gain is None else interval(gain)
