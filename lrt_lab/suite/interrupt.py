"""Ctrl-C and SIGTERM end a suite in order, with the exit code that shells expect."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """The user or the system wants the suite to stop now."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        # 130 for SIGINT, 143 for SIGTERM.
        self.exit_code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM becomes `Interrupted`; later ones do not disturb the ending."""
    kept: dict[signal.Signals, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in kept:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        kept[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
