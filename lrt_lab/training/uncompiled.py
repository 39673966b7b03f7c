"""Torch without its compiler, which takes longer to import than most models take to price.

On the meta device torch computes shapes in Python, in functions that ask the compiler, when they
are first called, to leave them alone. Where nothing has imported it there is nobody to ask.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
#: What such a function notes on the function that it stands for.
NOTE = "__dynamo_disable"


class _Absent(ModuleType):
    """Stands for the compiler; whoever wants more of it than to be left alone gets the real one."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.asked: list[Callable[..., Any]] = []

    def disable(
        self, function: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True
    ) -> Callable[..., Any]:
        self.asked.append(function)
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Until the block ends nothing imports the compiler just to be left alone by it."""
    if COMPILER in sys.modules:
        yield
        return
    absent = _Absent()
    sys.modules[COMPILER] = absent
    try:
        yield
    finally:
        if sys.modules.get(COMPILER) is absent:
            del sys.modules[COMPILER]
        # They ask again where the compiler is really there.
        for function in absent.asked:
            delattr(function, NOTE)
