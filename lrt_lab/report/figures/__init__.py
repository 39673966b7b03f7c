"""The figures of a report. matplotlib is imported only when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lrt_lab.report.curves import Curve

# figures that may show what a clock measured: their alt texts differ between executions
CLOCKED = ("gains", "interaction-seeds", "multipliers", "loss-seconds")


def draw(results: dict[str, Any], curves: Sequence[Curve], folder: Path) -> None:
    """Draw every figure that the results have data for, as SVG and PNG.

    Name, alt text and caption of each go to `results["figures"]`, or to those of `wall_clock`.
    """
    from lrt_lab.report.figures import arms, contraction, effects, forest, learning, passes, rates
    from lrt_lab.report.figures.style import Look, save, style

    look = Look(results)
    results["figures"], results["wall_clock"]["figures"] = [], []
    makers = (
        effects.gains,
        effects.lines,
        effects.strip,
        arms.ablations,
        forest.variants,
        forest.pairs,
        forest.multipliers,
        learning.against_tokens,
        learning.against_flops,
        learning.against_seconds,
        rates.sweep,
        passes.passes,
        arms.by_pass,
        passes.positions,
        passes.accuracies,
        arms.slots,
        arms.sources,
        arms.ranks,
        contraction.growth,
        contraction.reach,
    )
    with style():
        for place, make in enumerate(makers):
            drawing = make(results, curves, look)
            if drawing is None:
                continue
            save(drawing.canvas, folder, drawing.name)
            target = results["wall_clock"] if drawing.name in CLOCKED else results
            said = {"alt": drawing.alt, "caption": drawing.caption}
            target["figures"].append({"name": drawing.name, "place": place, **said})


def drawn(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All figures of a report in their order."""
    found = [*results.get("figures", []), *results["wall_clock"].get("figures", [])]
    return sorted(found, key=lambda figure: figure["place"])
