"""Torch without its compiler and its symbols: they take longer to import than a model to price.

On the meta device torch computes shapes in Python, in functions that ask the compiler, when they
are first called, to leave them alone, and that ask whether a size is a symbol. Where nothing has
imported these there is nobody to ask, and no size is a symbol.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import SymBool, SymFloat, SymInt

COMPILER = "torch._dynamo"
SYMBOLS = "torch.fx.experimental.symbolic_shapes"
#: What symbols are made of.
ALGEBRA = "sympy"
#: What a function that is left alone notes on the function that it stands for.
NOTE = "__dynamo_disable"


class _Absent(ModuleType):
    """Stands for a module; whoever wants more of it than its answers gets the real one.

    Args:
        name: of the module.
        answers: attributes, for as long as the module is absent.
        others: all that stand in with it; the real one must not find any of them.
    """

    def __init__(self, name: str, answers: dict[str, Any], others: list[_Absent]) -> None:
        super().__init__(name)
        self.answers = answers
        self.others = others
        others.append(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__, self) is self and name in self.answers:
            return self.answers[name]
        return getattr(self.real(), name)

    def real(self) -> ModuleType:
        for absent in self.others:
            absent.leave()
        return importlib.import_module(self.__name__)

    def leave(self) -> None:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


def _equal(x: Any, y: Any) -> bool:
    """Of sizes, or of sequences of any kind of them."""
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return len(x) == len(y) and all(map(_equal, x, y))
    return bool(x == y)


#: What torch asks of sizes, and the answers where all are numbers.
ANSWERS: dict[str, Callable[..., Any]] = {
    "expect_true": lambda known: known,
    "guard_or_false": lambda known: known,
    "guard_or_true": lambda known: known,
    "guard_size_oblivious": lambda known: known,
    "statically_known_true": lambda known: known,
    "guarding_hint_or_throw": lambda size: size,
    "has_guarding_hint": lambda size: True,
    "is_nested_int": lambda size: False,
    "free_unbacked_symbols": lambda sizes: set(),
    "sym_and": lambda *known: reduce(operator.and_, known),
    "sym_or": lambda *known: reduce(operator.or_, known),
    "sym_eq": _equal,
}


def _symbolless(others: list[_Absent]) -> _Absent:
    """Stands for what knows symbols; whoever keeps an answer may ask it of symbols later."""

    def plain(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*given: Any) -> Any:
            if any(map(_symbolic, given)):
                return getattr(absent.real(), name)(*given)
            return answer(*given)

        return asked

    answers = {name: plain(name, answer) for name, answer in ANSWERS.items()}
    absent = _Absent(SYMBOLS, answers, others)
    return absent


def _symbolic(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_symbolic, value))
    return isinstance(value, (SymInt, SymBool, SymFloat))


def _compilerless(asked: list[Callable[..., Any]], others: list[_Absent]) -> _Absent:
    """Stands for the compiler; what it was to leave alone is added to ``asked``."""

    def disable(
        function: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True
    ) -> Callable[..., Any]:
        asked.append(function)
        return function

    # A checkpoint looks it up, and has no use for it where nothing is traced.
    config = SimpleNamespace(error_on_nested_fx_trace=None)
    return _Absent(COMPILER, {"disable": disable, "config": config}, others)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Until the block ends nothing imports the compiler, or symbols, where none is at work."""
    asked: list[Callable[..., Any]] = []
    standing: list[_Absent] = []
    _compilerless(asked, standing)
    _symbolless(standing)
    # Nothing is an instance of a class that is made here.
    _Absent(ALGEBRA, {"Basic": type("Basic", (), {})}, standing)
    for absent in standing:
        sys.modules.setdefault(absent.__name__, absent)
    try:
        yield
    finally:
        for absent in standing:
            absent.leave()
        # They ask again where the compiler is really there.
        for function in asked:
            vars(function).pop(NOTE, None)
