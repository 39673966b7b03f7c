"""Plain words for what a parser or a user wrote. Imports nothing heavy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the closest known name in brackets, or nothing."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_lower, 1, 0.5)
    if not close or by_lower[close[0]] == name:
        return ""
    return f" (nearest: {by_lower[close[0]]})"


def plain(text: str) -> str:
    """A parser's complaint about a value, its types in words."""
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    union = (
        r"Does not validate against any of the Union subtypes Subtypes: \[(.*?)\] .*Given value: "
    )
    text = re.sub(
        union, lambda m: f"expected {' or '.join(m[1].split(', '))}, got ", text, flags=re.DOTALL
    )
    text = re.sub(r"Expected a typing\.Literal\[([^\]]*)\]", r"expected one of \1", text)
    text = text.replace(". Got value: ", ", got ").replace("Expected a ", "expected ")
    return text.replace("NoneType", "null")
