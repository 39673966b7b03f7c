"""The figures of a report. matplotlib is imported only when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lrt_lab.report.curves import Curve


def draw(results: Mapping[str, Any], curves: Sequence[Curve], folder: Path) -> list[dict[str, str]]:
    """Draw every figure that the results have data for, as SVG and PNG; returns name, alt text and
    caption of each.
    """
    from lrt_lab.report.figures import effects, forest, learning, passes
    from lrt_lab.report.figures.style import Look, save, style

    look = Look(results)
    drawn = []
    with style():
        for make in (
            effects.gains,
            effects.lines,
            effects.strip,
            forest.variants,
            forest.pairs,
            forest.multipliers,
            learning.against_tokens,
            learning.against_flops,
            learning.against_seconds,
            passes.passes,
            passes.positions,
        ):
            figure = make(results, curves, look)
            if figure is not None:
                save(figure.canvas, folder, figure.name)
                drawn.append({"name": figure.name, "alt": figure.alt, "caption": figure.caption})
    return drawn
