"""Effects as rows of points and intervals: multipliers, variants of a baseline, pairs of a larger
factorial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels, round_ticks
from lrt_lab.report.layout import cost_name
from lrt_lab.report.numbers import interval

TICKS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10)
Row = tuple[str, Mapping[str, Any]]


def multipliers(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Iso-loss multipliers on a logarithmic axis; 1 is where the baseline does as well for its
    cost.
    """
    found = {**results["multipliers"], **results["wall_clock"]["multipliers"]}
    rows = [
        (name, cost, value)
        for cost, by_name in found.items()
        for name, value in by_name.items()
        if value and value["point"] is not None and value["place"] != "undefined"
    ]
    if not rows:
        return None
    figure, (ax,) = panels(height=0.75 + 0.32 * len(rows))
    ax.axvline(1, color="black", linewidth=0.8)
    ax.set_xscale("log")
    said, ends = [], []
    for place, (name, _, value) in enumerate(rows):
        ends += [v for v in (value["point"], value["low"], value["high"]) if v]
        if value["low"] is not None:
            ax.plot([value["low"], value["high"]], [place] * 2, color="black", linewidth=1.4)
        # an arrow: the baseline's budgets bound the multiplier on one side only
        bound = {"above": ">", "below": "<"}.get(value["place"])
        looks = {**look.solid(name), **({"marker": bound} if bound else {})}
        ax.plot([value["point"]], [place], color=look.colour(name), **looks)
        about = f" [{value['low']:.3f}, {value['high']:.3f}]" if value["low"] is not None else ""
        said.append(f"{_label(results, rows[place])} {value['point']:.3f}{about}")
    ax.set_yticks(range(len(rows)), [_label(results, row) for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.6)
    low, high = min([*ends, 0.99]), max([*ends, 1.01])
    room = (high / low) ** 0.04
    low, high = low / room, high * room
    ax.set_xlim(low, high)
    ticks = round_ticks(low, high) if high / low < 2 else [t for t in TICKS if low <= t <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("cost of the baseline for the same loss / cost of the variant")
    caption = (
        "Iso-loss multipliers from completed runs, with Fieller's interval (logarithmic axis). "
        "Right of 1 the baseline would need more; arrows: only a bound, beyond the baseline's "
        "budgets."
    )
    return Drawing("multipliers", figure, f"Iso-loss multipliers: {'; '.join(said)}.", caption)


def _label(results: Mapping[str, Any], row: tuple[str, str, Mapping[str, Any]]) -> str:
    return f"{row[0]}, {cost_name(results, row[1])}"


def variants(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Every variant's gain over one baseline."""
    if results["square"] or not results["suite"]["baseline"]:
        return None
    # Ablations have a figure of their own, since not all of them gain over the baseline.
    if (results.get("arms") or {}).get("ablations"):
        return None
    rows = [(row["label"], row) for row in results["family"]]
    baseline = results["suite"]["baseline"]
    return _forest(
        rows, "variants", f"gain over {baseline} in ln loss", f"Gains over {baseline}", results
    )


def pairs(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Every pair's interaction."""
    rows = [(row["name"], row) for row in results["pairs"]]
    axis = "interaction I in ln loss (right of 0: more than multiply)"
    return _forest(rows, "pairs", axis, "Interactions of all pairs", results)


def _forest(
    rows: Sequence[Row], name: str, axis: str, title: str, results: Mapping[str, Any]
) -> Drawing | None:
    rows = [row for row in rows if row[1]["point"] is not None]
    if not rows:
        return None
    figure, (ax,) = panels(height=0.75 + 0.3 * len(rows))
    margin = results["suite"]["margin"]
    ax.axvspan(-margin, margin, color="#DDDDDD", linewidth=0, zorder=0)
    ax.axvline(0, color="black", linewidth=0.8)
    for place, (_, found) in enumerate(rows):
        if found["low"] is not None:
            ax.plot([found["low"], found["high"]], [place] * 2, color="black", linewidth=1.6)
        claimed = found["p_holm"] is not None and found["p_holm"] <= results["suite"]["alpha"]
        face = "black" if claimed else "white"
        ax.plot(
            [found["point"]],
            [place],
            "o",
            markersize=6,
            markeredgecolor="black",
            markerfacecolor=face,
        )
    ax.set_yticks(range(len(rows)), [label for label, _ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(axis)
    level = f"{100 * (1 - results['suite']['alpha']):g}%"
    caption = (
        f"{title}, with {level} t intervals; filled: significant after Holm's correction over "
        "these "
        f"rows; grey: the margin of {margin:g}."
    )
    said = "; ".join(f"{label} {interval(found)}" for label, found in rows)
    return Drawing(name, figure, f"{title}: {said}.", caption)
