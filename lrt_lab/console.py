"""The one rich console of the command line; library code never prints."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console() -> Console:
    """The shared console: colours and live tables on a terminal, plain lines elsewhere."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)
