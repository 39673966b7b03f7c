"""`lrt-lab report`, `lrt-lab power` and `lrt-lab selfcheck`. They start without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lrt_lab.console import console
from lrt_lab.errors import UserError


def report(
    source: str,
    out: str | None = None,
    loss: str | None = None,
    seed: str | None = None,
    axes: list[str] | str | None = None,
    baseline: list[str] | str | None = None,
    improved: list[str] | str | None = None,
    tokens: str | None = None,
    flops: str | None = None,
    seconds: str | None = None,
    parameters: str | None = None,
    budget: str | None = None,
    status: str | None = None,
    unit: str | None = None,
    unpaired: bool = False,
    ladder: list[str] | str | None = None,
    lines: str | None = None,
    floor: list[float] | float | None = None,
    margin: float | None = None,
    alpha: float | None = None,
    planned_seeds: int | None = None,
    vocabulary: int | None = None,
    title: str | None = None,
) -> None:
    """Write a report: Markdown, figures and results.json.

    From a suite's run folder (runs/h1/quick) everything is declared in the suite file. From a CSV
    file with one row a run, the options below say which column holds what.

    Args:
        source: Run folder of one scale, or a .csv file.
        out: Folder of the report (default: reports/<suite>/<scale>, or reports/<name of the file>).
        loss: Column of the final loss (default: loss).
        seed: Column of the seed (default: seed); "none" if the table has one value a cell.
        axes: Columns that tell cells apart, as a,b: residual improvement, route, further axes; or
            one.
        baseline: Baseline value of each of the first two axes, or the baseline cell.
        improved: Value of each of the first two axes that the primary contrast is about.
        tokens: Column of training tokens (or of steps).
        flops: Column of training FLOPs.
        seconds: Column of training seconds.
        parameters: Column of the number of parameters.
        budget: Column that tells completed budgets of one cell apart.
        status: Column that says "diverged" for runs without a loss.
        unit: nats (default), bits, or the column that says which.
        unpaired: Equal seeds of different cells share nothing (Welch instead of the paired t).
        ladder: Cells that are the baseline at further completed budgets (for multipliers).
        lines: Lines between budgets are straight in "log" (default) or "linear" loss and cost.
        floor: Entropy floors E in nats per token, for the log-excess scale.
        margin: Half-width of the band of interactions that do not matter, in ln loss (default
            0.001).
        alpha: Two-sided level (default 0.05).
        planned_seeds: Number of seeds that was planned.
        vocabulary: Size of the vocabulary; scores diverged runs at ln V in the sensitivity line.
        title: Title of the report.
    """
    asked = {name: value for name, value in locals().items() if value is not None}
    if not unpaired:
        del asked["unpaired"]
    from lrt_lab.report import suite_report, table_report
    from lrt_lab.report.csv_rows import COST_OPTIONS, Columns
    from lrt_lab.report.suite_runs import read_plan
    from lrt_lab.report.words import opening

    given: dict[str, Any] = {
        "loss": loss,
        "seed": seed,
        "axes": _words(axes),
        "baseline": _words(baseline),
        "improved": _words(improved),
        "budget": budget,
        "status": status,
        "unit": unit,
        "ladder": _words(ladder),
        "straight": lines,
        "floors": [floor] if isinstance(floor, float) else floor,
        "margin": margin,
        "alpha": alpha,
        "planned_seeds": planned_seeds,
        "vocabulary": vocabulary,
        "title": title,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    named = {cost: asked[option] for cost, option in COST_OPTIONS.items() if option in asked}
    path = Path(source)
    if path.is_dir():
        refused = [f"--{name}" for name in asked if name not in ("source", "out")]
        if refused:
            raise UserError(
                f"{source} is a run folder: its suite file declares everything, so "
                f"{', '.join(refused)} cannot be given here"
            )
        plan = read_plan(path)
        folder = Path(out) if out else Path("reports") / plan["suite"] / plan["scale"]
        written = suite_report.write(plan, path, folder)
    else:
        if lines not in (None, "log", "linear"):
            raise UserError(f"--lines is 'log' or 'linear', not {lines!r}")
        if seed is not None and seed.lower() == "none":
            chosen["seed"] = None
        columns = Columns(**chosen, costs=named, paired=not unpaired)
        folder = Path(out) if out else Path("reports") / path.stem
        written = table_report.write(path, columns, folder)
    results = json.loads(written.with_name("results.json").read_text(encoding="utf-8"))
    for line in [*opening(results), f"report: {written}"]:
        console().print(line, markup=False)


def _words(value: list[str] | str | None) -> list[str] | None:
    """`a,b` or `[a, b]`."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def power(
    source: str | None = None,
    sd: float | None = None,
    correlation: float = 0.0,
    margin: float | None = None,
    seeds: list[int] | int | None = None,
    chance: float = 0.8,
    alpha: float | None = None,
) -> None:
    """Show what a number of seeds can detect: effects, seeds needed, the chance of each verdict.

    Args:
        source: Run folder of one scale (runs/h1/quick), whose finished runs give the deviation.
        sd: Assumed deviation of one run in ln loss (0.0004 is typical of well-trained runs).
        correlation: Assumed correlation of runs within a pair block.
        margin: Margin in ln loss (default: the suite's, or 0.001).
        seeds: Numbers of seeds to show (default: 3 4 5 6 8 10).
        chance: Wanted power.
        alpha: Two-sided level (default: the suite's, or 0.05).
    """
    from lrt_lab.report import power_table

    if (source is None) == (sd is None):
        raise UserError("give either a run folder or --sd, the deviation of one run in ln loss")
    counts = [seeds] if isinstance(seeds, int) else seeds or [3, 4, 5, 6, 8, 10]
    if min(counts) < 2 or not 0 < chance < 1:
        raise UserError("--seeds are whole numbers from 2, and --chance lies between 0 and 1")
    if source is not None:
        noise, declared, level = power_table.from_runs(Path(source))
    else:
        assert sd is not None
        noise, declared, level = power_table.assumed(sd, correlation), 0.001, 0.05
    text = power_table.render(
        noise,
        declared if margin is None else margin,
        counts,
        chance,
        level if alpha is None else alpha,
    )
    console().print(text, markup=False)


def selfcheck(simulations: int = 400, seed: int = 20260101) -> int:
    """Check the statistics on simulated suites whose truth is known; exit code 1 if they are off.

    Args:
        simulations: Suites per setting; 5000 for a careful look.
        seed: Of the simulations.
    """
    from lrt_lab.report import selfcheck_table

    if simulations < 100:
        raise UserError(f"--simulations is {simulations}; below 100 nothing can be told")
    text, sound = selfcheck_table.run(simulations, seed)
    console().print(text, markup=False)
    return 0 if sound else 1
