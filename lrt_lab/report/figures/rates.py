"""The sweep behind every cell's learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrt_lab.report import arm_words
from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels
from lrt_lab.report.layout import declared_square


def sweep(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Validation loss, or share of wrong answers, against rate over default; the best is ringed."""
    found = results.get("rates")
    if not found:
        return None
    known = [row for row in found["rows"] if row["cell"] in look.cells]
    square = declared_square(results)
    compared = square["cells"] if square else arm_words.cells(results) if results["arms"] else []
    figure, (ax,) = panels()
    ax.set_xscale("log", base=2)
    factors, said = set(), []
    for row in known:
        points = [
            (item["factor"], item["loss"]) for item in row["losses"] if item["loss"] is not None
        ]
        looks = look.line(row["cell"])
        if row["cell"] not in compared:
            looks = {**looks, "linewidth": 0.6, "alpha": 0.55, "markersize": 2.5, "label": None}
        if points:
            ax.plot(*zip(*points, strict=True), **looks)
        factors |= {factor for factor, _ in points}
        if row["best"] is not None and row["cell"] in compared:
            ring: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "none"}
            ax.plot(row["factor"], row["best"], color=looks["color"], linestyle="none", **ring)
        said.append(f"{row['cell']} best at {row['factor']:g} x")
    ax.set_xticks(sorted(factors), [f"{factor:g}" for factor in sorted(factors)])
    ax.set_xlabel("learning rate, times the default")
    loss = found["metric"] == "loss"
    ax.set_ylabel("validation loss, nats per token" if loss else "wrong on validation rows")
    what = "loss" if loss else "share of wrong answers"
    if any(row["cell"] in compared for row in known):
        figure.legend(loc="outside right upper")
    caption = (
        f"Sweep of `{found['key']}` on the tuning seeds: mean validation {what} of every cell "
        "(thick: those of the primary comparison, the chosen rate ringed)."
    )
    return Drawing("rates", figure, f"Sweep of learning rates: {'; '.join(said)}.", caption)
