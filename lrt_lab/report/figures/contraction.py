"""What passes beyond the trained ones do, and how far back gradients reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.report.contraction import said
from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels


def growth(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Loss against the deepest trained pass's, and the change of the memory, by pass."""
    items = results.get("contraction")
    if not items:
        return None
    figure, (left, right) = panels(2)
    for item in items:
        looks = {**look.line(item["cell"]), "markersize": 2.5}
        for ax, name in ((left, "growth"), (right, "change")):
            rows = np.array(item[name], float)
            for row in rows:
                ax.plot(item["passes"], row, color=looks["color"], linewidth=0.4, alpha=0.4)
            ax.plot(item["passes"], rows.mean(axis=0), **looks)
            ax.axvline(item["trained"], color=looks["color"], linestyle=(0, (1, 1.5)), linewidth=1)
    left.axhline(0, color="#555555", linewidth=0.6)
    left.set_ylabel("growth of the loss, nats")
    right.set_ylabel("relative change of the memory")
    if any(value for item in items for row in item["change"] for value in row):
        right.set_yscale("log")
    for ax in (left, right):
        ax.set_xlabel("pass")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    spoken = [
        f"{item['cell']} {said(item)}, {np.array(item['growth'], float).mean(axis=0)[-1]:+.4f} "
        f"nats at pass {item['passes'][-1]}"
        for item in items
    ]
    caption = (
        "Left: loss of each pass less that of the deepest trained one (dotted). Right: how much a "
        "pass changes the memory, at positions that it can still change. Means thick, seeds thin."
    )
    return Drawing("contraction", figure, f"Growth by pass: {'; '.join(spoken)}.", caption)


def reach(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Gradient of a late loss with respect to the memory, by lag."""
    items = [item for item in results.get("contraction") or [] if len(item["memory"][0]) > 1]
    if not items:
        return None
    figure, (ax,) = panels()
    spoken = []
    for item in items:
        rows = np.array(item["memory"], float)
        means = rows.mean(axis=0)
        lags = range(1, rows.shape[1] + 1)
        ax.plot(lags, means, **{**look.line(item["cell"]), "markersize": 2.5})
        spoken.append(f"{item['cell']} from {means[0]:.2g} at lag 1 to {means[-1]:.2g}")
    if any(value for item in items for row in item["memory"] for value in row):
        ax.set_yscale("log")
    ax.set_xlabel("positions back")
    ax.set_ylabel("gradient norm")
    figure.legend(loc="outside right upper")
    caption = (
        "Norm of the gradient of the loss at one late position with respect to the memory that "
        "left earlier ones, through the complete exact recurrence; mean over rows and seeds."
    )
    return Drawing("reach", figure, f"Gradient by lag: {'; '.join(spoken)}.", caption)
