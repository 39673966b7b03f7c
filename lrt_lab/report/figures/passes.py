"""Bits per byte against evaluation pass, with the exact recurrence as a line; loss and right
answers by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lrt_lab.analysis.estimate import paired
from lrt_lab.report.arm_words import shown
from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels


def passes(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Does the model still converge beyond the passes it was trained with?"""
    found = _own(results, "passes")
    # Of arms there is a figure with a panel for each group.
    if not found or (results.get("arms") or {}).get("ablations"):
        return None
    figure, (ax,) = panels()
    said = []
    for item in found:
        looks = look.line(item["cell"])
        for row in item["per_seed"]:
            ax.plot(item["passes"], row, color=looks["color"], linewidth=0.4, alpha=0.4)
        ax.plot(item["passes"], item["bpb"], **{**looks, "markersize": 3.5})
        ax.axhline(item["exact_bpb"], color=looks["color"], linestyle=(0, (1, 1.5)), linewidth=1.1)
        said.append(
            f"{item['cell']} from {item['bpb'][0]:.4f} at pass {item['passes'][0]} to "
            f"{item['bpb'][-1]:.4f} at pass {item['passes'][-1]}, exact {item['exact_bpb']:.4f}"
        )
    ax.plot(
        [], [], color="#555555", linestyle=(0, (1, 1.5)), linewidth=1.1, label="exact recurrence"
    )
    ax.set_xlabel("evaluation pass")
    ax.set_ylabel("bits per byte")
    # pass 1 has no memory at all and may lie far above the rest
    ticks = found[0]["passes"]
    ax.set_xticks(ticks if len(ticks) <= 16 else np.linspace(ticks[0], ticks[-1], 9).round())
    figure.legend(loc="outside right upper")
    caption = (
        "Bits per byte on a fixed slice against the evaluation pass (mean thick, seeds "
        "thin); dotted: the exact recurrence, which is what decoding does."
    )
    return Drawing(
        "passes", figure, f"Bits per byte against evaluation pass: {'; '.join(said)}.", caption
    )


def positions(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Loss by position in the window: a recurrence needs some positions to warm up."""
    found = _own(results, "positions")
    if not found:
        return None
    figure, (ax,) = panels()
    said = _bands(ax, found, "per_seed", look)
    ax.set_xlabel("position in the window")
    ax.set_ylabel("nats per token")
    figure.legend(loc="outside right upper")
    caption = (
        "Loss by position in the evaluation window; band: pointwise 95% t interval over seeds."
    )
    return Drawing("positions", figure, f"Loss by position: {'; '.join(said)}.", caption)


def accuracies(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Right answers by position, or by what the suite says that a position stands for."""
    found = [p for p in results["positions"] if p.get("accuracy") is not None]
    if not found:
        return None
    meaning = results["suite"].get("positions") or {"name": "position in the row", "unit": 1}
    figure, (ax,) = panels()
    said = _bands(ax, found, "accuracy", look, meaning["unit"])
    ax.set_xlabel(meaning["name"])
    ax.set_ylabel("share of right answers")
    ax.set_ylim(-0.02, 1.02)
    figure.legend(loc="outside right upper")
    caption = f"Right answers by {meaning['name']}; band: pointwise 95% t interval over seeds."
    alt = f"Right answers by {meaning['name']}: {'; '.join(said)}."
    return Drawing("accuracy", figure, alt, caption)


def _own(results: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Without twins and cells that are run again, which would hide their own, and ablations."""
    arms = shown(results)
    return [
        item
        for item in results[name]
        if "@" not in item["cell"] and (arms is None or item["cell"] in arms)
    ]


def _bands(
    ax: Axes, found: Sequence[Mapping[str, Any]], key: str, look: Look, unit: float = 1
) -> list[str]:
    """Mean and interval of every cell by position; the ends of each in words."""
    said = []
    for item in found:
        looks = look.line(item["cell"])
        values = np.array(item[key], float)
        there = np.isfinite(values).all(axis=0)
        x, values = np.array(item["position"])[there] / unit, values[:, there]
        low, high = paired(values.T).interval()
        mean = values.mean(axis=0)
        if np.isfinite(low).all():
            ax.fill_between(x, low, high, color=looks["color"], alpha=0.16, linewidth=0)
        ax.plot(x, mean, **{**looks, "markersize": 3.5})
        said.append(f"{item['cell']} from {mean[0]:.3f} to {mean[-1]:.3f}")
    return said
