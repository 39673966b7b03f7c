"""Markdown tables, and how costs and budgets are found and called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lrt_lab.report.records import BUDGETS

Results = Mapping[str, Any]
Budget = Mapping[str, Any]
COSTS = {"tokens": "tokens", "train_flops": "training FLOPs", "train_seconds": "wall-clock"}


def cost_name(results: Results, cost: str) -> str:
    """What a cost is called: a table's own column name where it has one."""
    return results["suite"]["cost_names"].get(cost, COSTS[cost])


def hypothesis(results: Results) -> str:
    """`H1` for a suite called h1, else the words "the hypothesis"."""
    name = results["suite"]["name"]
    return name.upper() if re.fullmatch(r"[hH]\d+", name) else "the hypothesis"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, first column left, the others right."""
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] + ['---:'] * (len(head) - 1))}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def declared_square(results: Results) -> Mapping[str, Any] | None:
    """The 2x2 that the suite declares, in ln loss or in a task's accuracy; None without one."""
    return results["square"] or (results["accuracy"] or {}).get("square")


def all_budgets(results: Results) -> dict[str, Budget]:
    """Budgets in the order of `BUDGETS`, the clock's among them."""
    found = {**results["budgets"], **results["wall_clock"]["budgets"]}
    return {match: found[match] for match in BUDGETS if match in found}
