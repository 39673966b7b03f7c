"""Numbers as people read them."""

from __future__ import annotations

_UNITS = (("years", 31_557_600), ("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def duration(seconds: float) -> str:
    """`0.4 s`, `23 s`, `4.5 min`, `2.1 h`, `12 days`."""
    for unit, size in _UNITS:
        # Two units' worth and more reads better in that unit; below, in the smaller one.
        if seconds >= 1.5 * size or unit == "s":
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    raise AssertionError


def amount(value: float) -> str:
    """`263 k`, `1.20 T`: three digits and a prefix, per thousand."""
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value /= 1000
        power += 1
    if power == 0:
        return f"{value:.3g}"
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {_PREFIXES[power]}"


def count(number: int, noun: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
