"""The tables of `--dry-run` and `status`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lrt_lab.console import console, print_table
from lrt_lab.store import RunFolder
from lrt_lab.suite.declaration import Scale, Suite
from lrt_lab.suite.expansion import cells
from lrt_lab.suite.sessions import overhead
from lrt_lab.suite.words import amount, count, duration
from lrt_lab.suite.workers import visible_gpus

_DAY = 86_400.0


def print_dry_run(
    suite: Suite,
    scale: Scale,
    entries: list[dict[str, Any]],
    seconds: list[float],
    source: str,
    jobs: int,
) -> None:
    """A row per cell (one seed), then the totals over seeds. `seconds` goes with `entries`."""
    seeds = len(scale.seeds)
    order = _declared(suite, scale)
    table = Table(
        title=f"{suite.name} at scale {scale.name}: one run of each cell", box=SIMPLE_HEAD
    )
    table.add_column("cell", no_wrap=True)
    device = "GPU" if visible_gpus() else "CPU"
    for name in ("params", "steps", "tokens", "FLOPs", f"time on this {device}"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry, one in sorted(
        zip(entries, seconds, strict=True), key=lambda pair: order(pair[0]["cell"])
    ):
        table.add_row(
            entry["cell"],
            amount(entry["parameters"]["total"]),
            str(entry["steps"]),
            amount(entry["tokens"]),
            amount(entry["train_flops"]),
            duration(one),
        )
    table.add_section()
    table.add_row(
        f"all, {count(seeds, 'seed')}",
        "",
        str(seeds * sum(entry["steps"] for entry in entries)),
        amount(seeds * sum(entry["tokens"] for entry in entries)),
        amount(seeds * sum(entry["train_flops"] for entry in entries)),
        duration(seeds * sum(seconds)),
    )
    print_table(table)
    ordered = sorted(entries, key=lambda entry: order(entry["cell"]))
    print_table(_parameters(ordered))
    print_table(_per_token(ordered))
    out = console()
    out.print(f"time: {source}", markup=False)
    runs = seeds * len(entries)
    total = _in_all(seeds * sum(seconds), min(jobs, runs), device)
    out.print(f"{count(runs, 'run')} with {total}", markup=False)
    if scale.gpu is not None:
        flops = seeds * sum(entry["train_flops"] for entry in entries)
        out.print(
            f"GPU-hours: {flops / scale.gpu.flops / 3600:.2g} of one {scale.gpu.card} at an "
            f"assumed {amount(scale.gpu.flops)}FLOP/s; training only",
            markup=False,
        )


#: What parameters are counted as: column and count.
_KINDS = (
    ("all", "total"),
    ("dense", "dense"),
    ("queries, biases, gains", "queries"),
    ("lookup tables", "tables"),
)


def _parameters(entries: list[dict[str, Any]]) -> Table:
    """Each cell's parameters by kind, and the first FFN's width where it was matched by that."""
    table = Table(title="parameters", box=SIMPLE_HEAD)
    table.add_column("cell", no_wrap=True)
    matched = any(entry.get("matched") for entry in entries)
    for column in (*dict(_KINDS), *(("first FFN",) if matched else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for entry in entries:
        counts = [f"{entry['parameters'][kind]:,}" for _, kind in _KINDS]
        widths = ((entry.get("matched") or {}).get("set") or {}).values()
        first = [str(width[0]) for width in widths] or ["as given"]
        table.add_row(entry["cell"], *counts, *(first if matched else ()))
    return table


#: What the meter says of a cell, beside its totals: column and number.
_METER = (
    ("passes", "passes"),
    ("train FLOPs", "train_flops_per_token"),
    ("decode FLOPs", "decode_flops_per_token"),
    ("kept bytes", "saved_bytes_per_token"),
    ("decoding state, bytes", "state_bytes"),
    ("read to decode, bytes", "decode_bytes_per_token"),
)


def _per_token(entries: list[dict[str, Any]]) -> Table:
    """What a token of each cell costs, from the meter; the state is a sequence's."""
    table = Table(title="per token, FLOPs of matrix products", box=SIMPLE_HEAD)
    table.add_column("cell", no_wrap=True)
    for column, _ in _METER:
        table.add_column(column, justify="right", no_wrap=True)
    for entry in entries:
        table.add_row(entry["cell"], *(amount(entry["cost"][number]) for _, number in _METER))
    return table


def _in_all(seconds: float, jobs: int, device: str) -> str:
    """What all runs take: with how many jobs, on what, and whether that is what it is meant for."""
    text = f"{count(jobs, 'job')}: about {duration(seconds / jobs)} on this machine's {device}"
    if device == "GPU":
        return text
    if seconds / jobs > _DAY:
        return f"{text}; this scale is meant for a GPU"
    return text + (f"; with 2 jobs, as `make` has it: {duration(seconds / 2)}" if jobs == 1 else "")


def print_status(suite: Suite, plan: dict[str, Any], folder: Path) -> None:
    """A row per cell and a column per seed, why runs failed, and the suite's overhead."""
    seeds = sorted({entry["seed"] for entry in plan["cells"]})
    names = sorted(
        {entry["cell"] for entry in plan["cells"]},
        key=_declared(suite, suite.scales.get(plan["scale"])),
    )
    states: dict[tuple[str, int], str] = {}
    failures = []
    done = 0
    for entry in plan["cells"]:
        run = RunFolder(folder / entry["folder"])
        state = run.state()
        done += state == "done"
        states[entry["cell"], entry["seed"]] = _cell_text(run, state, entry)
        if state == "failed":
            failures.append(f"failed: {entry['cell']} seed {entry['seed']}: {run.failure()}")
    table = Table(title=f"{plan['suite']} at scale {plan['scale']}", box=SIMPLE_HEAD)
    table.add_column("cell", no_wrap=True)
    for seed in seeds:
        table.add_column(f"seed {seed}", no_wrap=True)
    for name in names:
        table.add_row(name, *(states.get((name, seed), "") for seed in seeds))
    print_table(table)
    out = console()
    for line in failures:
        out.print(line, markup=False)
    out.print(f"{done} of {count(len(plan['cells']), 'run')} done", markup=False)
    cost = overhead(plan, folder)
    if cost is not None:
        out.print(
            f"overhead: {cost.ratio:.1%} of training = ({cost.slots:.0f} s of jobs x wall - "
            f"{cost.training:.0f} s training - {cost.evaluation:.0f} s evaluation) / training",
            markup=False,
        )


def _cell_text(run: RunFolder, state: str, entry: dict[str, Any]) -> str:
    if state == "done":
        record = run.final() or {}
        test = (record.get("test") or {}).get("exact")
        return f"done {test['loss']:.4f}" if test else f"done ({record.get('status', '?')})"
    if state in ("running", "resumable"):
        lines = run.metrics()
        step = lines[-1]["step"] if lines else 0
        return f"{state} {step}/{entry['steps']}"
    return state


def _declared(suite: Suite, scale: Scale | None) -> Callable[[str], tuple[int, str]]:
    """Sorts cells as the suite file declares them; cells of an older plan come last."""
    known = [] if scale is None else cells(suite, scale)
    order = {cell.name: place for place, cell in enumerate(known)}
    return lambda name: (order.get(name, len(order)), name)
