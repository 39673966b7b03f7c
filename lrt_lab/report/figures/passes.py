"""Bits per byte against the number of evaluation passes, with the exact recurrence as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels


def passes(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Does the model still converge beyond the passes it was trained with?"""
    found = [p for p in results["passes"] if look.cells[p["cell"]]["twin"] is None]
    if not found:
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
    ax.legend()
    caption = (
        "Bits per byte on a fixed slice against the evaluation pass (mean thick, seeds "
        "thin); dotted: the exact recurrence, which is what decoding does."
    )
    return Drawing(
        "passes", figure, f"Bits per byte against evaluation pass: {'; '.join(said)}.", caption
    )
