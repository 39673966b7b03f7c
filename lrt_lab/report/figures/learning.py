"""Loss against tokens, training FLOPs and time: mean over seeds with a t band, thin lines per
seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels

NAMES = {"val/loss": "validation loss, last training pass", "train/loss": "training loss"}
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def thousands(largest: float) -> int:
    """The power of ten, a multiple of three, that leaves one to three digits before the point."""
    return max(0, 3 * math.floor(math.log10(largest) / 3)) if largest > 0 else 0


def against_tokens(
    results: Mapping[str, Any], curves: Sequence[Curve], look: Look
) -> Drawing | None:
    """Loss against tokens; twins, which see more tokens, are left out."""
    kept = [c for c in curves if look.cells[c.cell]["twin"] is None]
    return _draw(results, kept, look, "tokens", "training tokens", "loss-tokens")


def against_flops(
    results: Mapping[str, Any], curves: Sequence[Curve], look: Look
) -> Drawing | None:
    """Loss against training FLOPs; the matched twins are what may be compared at the right end."""
    return _draw(results, curves, look, "flops", "training FLOPs", "loss-flops")


def against_seconds(
    results: Mapping[str, Any], curves: Sequence[Curve], look: Look
) -> Drawing | None:
    """Loss against training seconds."""
    return _draw(results, curves, look, "seconds", "training seconds", "loss-seconds")


def _draw(
    results: Mapping[str, Any],
    curves: Sequence[Curve],
    look: Look,
    axis: str,
    label: str,
    name: str,
) -> Drawing | None:
    if not curves or not all(np.isfinite(c.x[axis]).all() for c in curves):
        return None
    figure, (ax,) = panels()
    ends = []
    power = thousands(max(curve.x[axis].max() for curve in curves))
    for curve in curves:
        mean, low, high = curve.band()
        looks = look.line(curve.cell)
        x = curve.x[axis] / 10**power
        twin = look.cells[curve.cell]["twin"] is not None
        for row in curve.loss:
            ax.plot(x, row, color=looks["color"], linewidth=0.4, alpha=0.35)
        if twin and np.isfinite(low).all():
            # its band would lie on that of its cell, with which it starts
            ax.plot(x[-1:].repeat(2), [low[-1], high[-1]], color=looks["color"], linewidth=2.4)
        elif np.isfinite(low).all():
            ax.fill_between(x, low, high, color=looks["color"], alpha=0.16, linewidth=0)
        along = looks["marker"] if twin else None
        ax.plot(x, mean, **{**looks, "marker": along}, markevery=max(1, len(x) // 10))
        ax.plot(x[-1:], mean[-1:], **{**looks, "label": None, "markersize": 5})
        ends.append((curve.cell, mean[-1]))
    # the first evaluations are of a model that knows nothing: they would flatten the rest
    tails = np.concatenate([curve.loss[:, curve.loss.shape[1] // 4 :].ravel() for curve in curves])
    room = 0.06 * (tails.max() - tails.min())
    ax.set_ylim(tails.min() - room, tails.max() + room)
    ax.set_xlim(left=0)
    ax.set_xlabel(label + (f" (10{str(power).translate(SUPERSCRIPTS)})" if power else ""))
    ax.set_ylabel("nats per token")
    ax.set_title(NAMES[curves[0].series], loc="left")
    figure.legend(loc="outside right upper")
    n = max(len(curve.loss) for curve in curves)
    best = min(ends, key=lambda end: end[1])
    alt = (
        f"{NAMES[curves[0].series].capitalize()} against {label} for "
        f"{', '.join(cell for cell, _ in ends)}; lowest at the end: {best[0]} at {best[1]:.4f} "
        "nats "
        "per token."
    )
    twins = any(look.cells[curve.cell]["twin"] for curve in curves)
    marked = "; markers all along: cells trained longer, with the interval at their end"
    caption = (
        f"{NAMES[curves[0].series].capitalize()} against {label}. Thick: mean over {n} seeds; "
        f"band: pointwise 95% t interval; thin: seeds{marked if twins else ''}. "
        "Only the right ends are completed schedules; points before them are not shorter runs."
    )
    return Drawing(name, figure, alt, caption)
