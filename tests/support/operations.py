"""Counts the operations that pricing dispatches, which its time grows with on any machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lrt_lab.training.tally import Counter


def operations(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """From now on operations under a counter are counted; the function returns how many so far."""
    count = 0
    dispatch = Counter.__torch_dispatch__

    def counting(self: Counter, *args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        return dispatch(self, *args, **kwargs)

    monkeypatch.setattr(Counter, "__torch_dispatch__", counting)
    return lambda: count
