"""Says how far pricing has come: importing torch and counting many models takes minutes."""

from __future__ import annotations

import time

from lrt_lab.console import console

# Seconds between two lines.
_LINE_EVERY = 10.0


class Pricing:
    """A line at the start, then one every few seconds, as long as there is something left."""

    def __init__(self, total: int, what: str) -> None:
        """`what`: the total in words, such as `39 cells`."""
        self._total, self._what = total, what
        self._done = 0
        self._last = time.monotonic()
        console().print(f"pricing {what} ...", markup=False)

    def tick(self) -> None:
        """One more is priced."""
        self._done += 1
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY and self._done < self._total:
            self._last = now
            console().print(f"priced {self._done} of {self._what}", markup=False)
