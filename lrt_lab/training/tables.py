"""A cost as tables: by part, and the whole, beside another where there is one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lrt_lab.console import console, print_table
from lrt_lab.suite.words import amount
from lrt_lab.training.meter import Cost
from lrt_lab.training.tally import Work

#: Rows of the whole: what it is called, and its value.
WHOLE = (
    ("parameters, all", lambda c: amount(c.total)),
    ("parameters in matrix products, no input table", lambda c: amount(c.matmul)),
    ("parameters, dense matrices", lambda c: amount(c.dense)),
    ("parameters, queries, biases, gates and gains", lambda c: amount(c.queries)),
    ("parameters, lookup tables", lambda c: amount(c.tables)),
    ("train FLOPs per token, matrix", lambda c: amount(c.train_flops_per_token)),
    ("train FLOPs per token, pointwise", lambda c: amount(c.train_pointwise_per_token)),
    ("prefill FLOPs per token and pass, matrix", lambda c: amount(c.prefill_flops_per_token)),
    ("decode FLOPs of the last position, matrix", lambda c: amount(c.decode_flops_per_token)),
    ("activations kept per token, bytes", lambda c: amount(c.saved_bytes_per_token)),
    ("decoding state per sequence, bytes", lambda c: amount(c.state_bytes)),
    ("bytes read per decoded token, one sequence", lambda c: amount(c.decode_bytes_per_token)),
    ("passes per update", lambda c: f"{c.passes:.3g}"),
    ("passes with gradients", lambda c: f"{c.graded_passes:.3g}"),
    ("calls of the stack per row", lambda c: f"{c.calls:.4g}"),
    ("supervised heads per token", lambda c: f"{c.heads:.3g}"),
    ("positions rescanned per token and mixer", lambda c: f"{c.rescans:.3g}"),
    ("positions of a row", lambda c: str(c.length)),
)


def show(costs: Sequence[Cost]) -> None:
    """Print one cost by part, or two side by side, and what is the same of every operation."""
    out = console()
    for cost in costs:
        print_table(by_part(cost))
    whole = Table(box=SIMPLE_HEAD)
    whole.add_column("the whole", no_wrap=True)
    for name in ("", "against", "against / first")[: 1 if len(costs) == 1 else 3]:
        whole.add_column(name, justify="right", no_wrap=True)
    for label, value in WHOLE:
        whole.add_row(label, *(value(cost) for cost in costs), *ratio(label, costs))
    print_table(whole)
    used = sorted(set(costs[0].backends.values()))
    for kind in used:
        ops = ", ".join(op for op, mine in costs[0].backends.items() if mine == kind)
        out.print(f"kernels, {kind}: {ops}", markup=False)
    out.print(
        "bytes at the parameters' precision; attention counts the full rectangle", markup=False
    )


def ratio(label: str, costs: Sequence[Cost]) -> list[str]:
    """The second cost's share of the first, where both are numbers of the same kind."""
    if len(costs) == 1:
        return []
    fields = {
        "parameters, all": "total",
        "parameters in matrix products, no input table": "matmul",
        "parameters, dense matrices": "dense",
        "parameters, queries, biases, gates and gains": "queries",
        "parameters, lookup tables": "tables",
        "train FLOPs per token, matrix": "train_flops_per_token",
        "train FLOPs per token, pointwise": "train_pointwise_per_token",
        "prefill FLOPs per token and pass, matrix": "prefill_flops_per_token",
        "decode FLOPs of the last position, matrix": "decode_flops_per_token",
        "activations kept per token, bytes": "saved_bytes_per_token",
        "decoding state per sequence, bytes": "state_bytes",
        "bytes read per decoded token, one sequence": "decode_bytes_per_token",
        "passes per update": "passes",
    }
    if label not in fields:
        return [""]
    first, second = (getattr(cost, fields[label]) for cost in costs)
    return [f"{second / first:.4g}" if first else ""]


def by_part(cost: Cost) -> Table:
    """One row per part, in the order of a sweep; FLOPs as matrix + pointwise."""
    table = Table(box=SIMPLE_HEAD, title="FLOPs per token: matrix + pointwise")
    table.add_column("part", no_wrap=True)
    for name in ("params", "in products", "train", "prefill", "decode", "kept, bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in cost.parts:
        table.add_row(
            part.name,
            amount(part.total),
            amount(part.matmul),
            *(flops(work) for work in (part.train, part.prefill, part.decode)),
            amount(part.saved_bytes),
        )
    return table


def flops(work: Work) -> str:
    """``1.20 M + 3.40 k``."""
    return f"{amount(work.matrix)} + {amount(work.pointwise)}"
