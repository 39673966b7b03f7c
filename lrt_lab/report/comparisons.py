"""Contrasts beyond the one square: the declared family, named contrasts, every pair of a larger
factorial, variants of a baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from lrt_lab.analysis.contrasts import Contrast, Tested, against, evaluate, of_square, pairs
from lrt_lab.analysis.multiplicity import benjamini_hochberg, holm
from lrt_lab.analysis.square import Square, absolute
from lrt_lab.analysis.study import GAINS
from lrt_lab.analysis.table import Table
from lrt_lab.errors import UserError
from lrt_lab.report.records import Design
from lrt_lab.report.values import interval, test


def known(design: Design) -> dict[str, Contrast]:
    """Every contrast that a plan may name: the square's six, one gain per backbone, the plan's
    own.
    """
    found: dict[str, Contrast] = {}
    if design.square is not None:
        found |= of_square(design.square)
        for pair in all_pairs(design):
            square = pair.square
            found[pair.label] = of_square(square)["interaction"]
            for backbone, (plain, routed) in (
                (square.base, square.cells[:2]),
                (square.improved, square.cells[2:]),
            ):
                where = "".join(f", {axis}={value}" for axis, value in pair.at.items())
                name = f"{square.route} on {backbone}{where}"
                found[name] = Contrast(name, {plain: 1.0, routed: -1.0})
    elif design.baseline is not None:
        found |= {c.name: c for c in variants(design)}
    for name, weights in design.contrasts.items():
        found[name] = Contrast(name, {cell: float(weight) for cell, weight in weights.items()})
    return found


def all_pairs(design: Design) -> list[Any]:
    """Every (residual improvement, route) pair against the shared baseline."""
    if design.square is None:
        return []
    twins = {twin.cell for twin in design.twins}
    aside = twins | design.again
    cells = {name: axes for name, axes in design.cells.items() if name not in aside}
    first, second = design.square_axes
    return pairs(cells, first, second, design.square.base, design.square.none)


def variants(design: Design) -> list[Contrast]:
    """In a design without a square: every other cell's gain over the baseline, in a sweep at its
    default.
    """
    # A cell stands on its own ladder, and is set aside by its other budgets alone.
    aside = {rung for cell, rungs in design.ladders.items() for rung in rungs if rung != cell}
    aside |= design.again | {twin.cell for twin in design.twins}
    if design.sweep is not None:
        axis, default = design.sweep
        aside |= {cell for cell, axes in design.cells.items() if axes[axis] != default}
    others = [cell for cell in design.cells if cell != design.baseline and cell not in aside]
    return against(str(design.baseline), others)


def family(losses: Table, design: Design) -> list[dict[str, Any]]:
    """The declared family with Holm's adjusted p (claims) and Benjamini-Hochberg's q
    (exploration).
    """
    options = known(design)
    names = design.family
    if not names and design.square is not None:
        names = (*GAINS, design.primary)
    elif not names and design.baseline is not None and not design.solid:
        names = tuple(contrast.name for contrast in variants(design))
    return adjusted(losses, [named(name, options) for name in names], design)


def require_family(design: Design) -> None:
    """Raise for a contrast of the family that is not known, before runs are spent on it."""
    options = known(design)
    for name in design.family:
        named(name, options)


def named(name: str, options: Mapping[str, Contrast]) -> Contrast:
    """The contrast of that name."""
    if name not in options:
        near = get_close_matches(name, options, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are: {', '.join(options)}"
        raise UserError(f"there is no contrast {name!r}{hint}")
    return Contrast(name, options[name].weights)


def own(losses: Table, design: Design) -> list[dict[str, Any]]:
    """The plan's own contrasts that are not in the family already."""
    options = known(design)
    names = [name for name in design.contrasts if name not in design.family]
    return adjusted(losses, [named(name, options) for name in names], design)


def factorial(losses: Table, design: Design) -> list[dict[str, Any]]:
    """The multiplicative-effect statistic exp(I) of every pair, with both gains; empty for a single
    2x2.
    """
    found = all_pairs(design)
    if len(found) < 2:
        return []
    rows = adjusted(losses, [_interaction(pair.square, pair.label) for pair in found], design)
    level = 1 - design.alpha
    for row, pair in zip(rows, found, strict=True):
        parts = of_square(pair.square)
        row["factor"] = {
            key: None if row[key] is None else np.exp(row[key]) for key in ("point", "low", "high")
        }
        for key in ("gain_base", "gain_improved", "improvement", "together"):
            row[key] = interval(evaluate(losses, parts[key]).estimate, level)
        twinned = design.matched(pair.square, "train_flops")
        row["at_flops"] = None
        if isinstance(twinned, Square):
            again = evaluate(losses, _interaction(twinned, pair.label)).estimate
            row["at_flops"] = interval(again, level)
    return rows


def _interaction(square: Square, name: str) -> Contrast:
    return Contrast(name, of_square(square)["interaction"].weights)


def adjusted(losses: Table, contrasts: Iterable[Contrast], design: Design) -> list[dict[str, Any]]:
    """Contrasts evaluated, with p and q over just these."""
    both = [(evaluate(losses, c), evaluate(losses, c, absolute)) for c in contrasts]
    if not both:
        return []
    tested = [on_log for on_log, _ in both]
    p = np.array([float(item.estimate.p()) for item in tested])
    return [
        _row(on_log, in_nats, design, float(h), float(q))
        for (on_log, in_nats), h, q in zip(both, holm(p), benjamini_hochberg(p), strict=True)
    ]


def _row(item: Tested, in_nats: Tested, design: Design, p_holm: float, q: float) -> dict[str, Any]:
    level = 1 - design.alpha
    return test(
        item.estimate,
        level,
        name=item.contrast.name,
        label=label(item.contrast.name, design),
        weights=dict(item.contrast.weights),
        absolute=interval(in_nats.estimate, level),
        p_holm=p_holm,
        q_bh=q,
        p_sign_flip=item.sign_flip,
        blocked=interval(item.blocked, level) if item.blocked is not None else None,
    )


def label(name: str, design: Design) -> str:
    """The square's own contrasts in words, behind their names."""
    square = design.square
    if square is None:
        return name
    words = {
        "gain_base": f"{square.route} on {square.base}",
        "gain_improved": f"{square.route} on {square.improved}",
        "interaction": f"{square.route} on {square.improved} minus {square.route} on {square.base}",
        "improvement": f"{square.improved} over {square.base}, without {square.route}",
        "improvement_routed": f"{square.improved} over {square.base}, with {square.route}",
        "together": f"{square.improved} with {square.route} over {square.base} without",
    }
    return f"{name}: {words[name]}" if name in words else name
