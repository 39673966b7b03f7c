"""Text: corpora, their split by whole file, their token chunks and the batches read from them.

`corpora` and `cards` need neither torch nor litdata; only `chunks` and `text` import them. The two
names below are therefore imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lrt_lab.data.slices import EvaluationSlice
    from lrt_lab.data.text import TextData

__all__ = ["EvaluationSlice", "TextData"]

_HOMES = {"EvaluationSlice": "lrt_lab.data.slices", "TextData": "lrt_lab.data.text"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
