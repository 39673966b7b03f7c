"""Estimates as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lrt_lab.analysis.estimate import Estimate
from lrt_lab.analysis.spread import sd


def clean(value: Any) -> Any:
    """Plain JSON: numpy scalars and arrays unpacked, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return clean(value.tolist())
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, np.generic):
        return clean(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def interval(estimate: Estimate, level: float) -> dict[str, Any]:
    """Point and interval."""
    low, high = estimate.interval(level)
    return {"point": estimate.point, "low": low, "high": high}


def test(estimate: Estimate, level: float, **more: Any) -> dict[str, Any]:
    """Point, interval, standard error, degrees of freedom and p, with whatever belongs beside
    them.
    """
    return {
        **interval(estimate, level),
        "se": estimate.se,
        "df": estimate.df,
        "n": estimate.n,
        "p": estimate.p(),
        **more,
    }


def spread(values: np.ndarray) -> dict[str, Any]:
    """Mean and sample deviation with the deviation's chi-square interval, and the values."""
    if not len(values):
        return {"mean": None, "sd": None, "sd_low": None, "sd_high": None, "values": []}
    point, low, high = sd(values)
    return {"mean": values.mean(), "sd": point, "sd_low": low, "sd_high": high, "values": values}


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is there; None of nothing. A common value comes back exactly."""
    found = [v for v in values if v is not None and math.isfinite(v)]
    if not found:
        return None
    return found[0] if min(found) == max(found) else sum(found) / len(found)


def unique(values: Iterable[Any]) -> list[Any]:
    """Distinct values in a fixed order."""
    found: list[Any] = []
    for value in values:
        if value is not None and value not in found:
            found.append(value)
    return sorted(found, key=str)
