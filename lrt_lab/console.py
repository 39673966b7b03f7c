"""The one rich console of the command line; library code never prints."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Off a terminal rich assumes 80 columns and would break the tables.
_LOG_WIDTH = 160


@cache
def console() -> Console:
    """The shared console: colours and live tables on a terminal, plain lines elsewhere."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """A table, wide enough for its rows where nothing says how wide a line is."""
    out = console()
    if out.is_terminal:
        out.print(table, soft_wrap=False)
        return
    kept, out.width = out.width, _LOG_WIDTH
    out.print(table, soft_wrap=False)
    out.width = kept
