"""How numbers are printed: as many decimals as their interval deserves, always the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NONE = "-"


def decimals(half_width: float | None, least: int = 2, most: int = 7) -> int:
    """Decimals that show two significant digits of the half-width."""
    if not half_width or not math.isfinite(half_width):
        return 4
    return min(most, max(least, 1 - math.floor(math.log10(half_width))))


def signed(value: float | None, places: int = 4) -> str:
    """With its sign, and never "-0.00"."""
    if value is None:
        return NONE
    text = f"{value:+.{places}f}"
    return text if float(text) else text.replace("-", "+")


def plain(value: float | None, places: int = 4) -> str:
    """Fixed decimals."""
    return NONE if value is None else f"{value:.{places}f}"


def interval(found: Mapping[str, Any], percent: bool = False) -> str:
    """`+0.0347 [+0.0247, +0.0447]`, or only the point where there is no interval."""
    factor, unit = (100.0, "%") if percent else (1.0, "")
    point, low, high = (
        None if found[key] is None else found[key] * factor for key in ("point", "low", "high")
    )
    if point is None:
        return NONE
    if low is None or high is None:
        return signed(point, 6 if not percent else 4) + unit
    places = decimals((high - low) / 2)
    return f"{signed(point, places)}{unit} [{signed(low, places)}, {signed(high, places)}]"


def p(value: float | None) -> str:
    """A p-value: four decimals below .1, three above, or an upper bound."""
    if value is None:
        return NONE
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def count(value: float | None) -> str:
    """A whole number with thousands separated, `1,234,567`."""
    return NONE if value is None else f"{value:,.0f}"


def scientific(value: float | None) -> str:
    """`1.23e+12`."""
    return NONE if value is None else f"{value:.3e}"


def listing(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return (
        items[0]
        if len(items) == 1
        else f"{', '.join(items[:-1])} and {items[-1]}"
        if items
        else "none"
    )


def percent(level: float) -> str:
    """`95%`."""
    return f"{100 * level:g}%"
