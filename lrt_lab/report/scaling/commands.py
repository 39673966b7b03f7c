"""`lrt-lab scaling fit`: a scaling law of anybody's runs. It starts without torch."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from lrt_lab.console import console
from lrt_lab.errors import UserError
from lrt_lab.store import write_text


def fit(
    source: str,
    out: str | None = None,
    size: str | None = None,
    tokens: str | None = None,
    loss: str | None = None,
    passes: str | None = None,
    model: str | None = None,
    seed: str | None = None,
    recurrent: str | None = None,
    corpus: str | None = None,
    train_flops: str | None = None,
    prefill_flops: str | None = None,
    decode_flops: str | None = None,
    train_seconds: str | None = None,
    prefill_seconds: str | None = None,
    decode_seconds: str | None = None,
    decode_bytes: str | None = None,
    unit: str = "nats",
    baseline: str | None = None,
    law: str | None = None,
    target: float | None = None,
    ratios: list[float] | float | None = None,
    prefill_passes: float | None = None,
    window: list[float] | None = None,
    repeated: str = "refuse",
    drop_highest: int = 0,
    resamples: int = 1000,
    draws_seed: int = 1,
    title: str | None = None,
) -> None:
    """Fit scaling laws to a table of runs, and say where one model becomes the cheaper one.

    The table is CSV with a header and one row a run: parameters (used in matrix products), tokens
    and loss; passes, model, seed, recurrent, corpus_tokens and the costs where they are known.
    Costs that no column gives are 6 N a training token and pass, 2 N a prompt token and pass, and
    2 N an output token.

    Args:
        source: A .csv file, or the run folder of one scale of a suite that declares scaling.
        out: Folder of the report (default: reports/<name of the file>).
        size: Column of parameters (default: parameters).
        tokens: Column of training tokens (default: tokens).
        loss: Column of the final loss (default: loss).
        passes: Column of passes (default: passes).
        model: Column of the model's name (default: model).
        seed: Column of the seed (default: seed); seeds of a cell are resampled together.
        recurrent: Column of the share of parameters that recur in every pass (default: recurrent).
        corpus: Column of the training text's tokens (default: corpus_tokens).
        train_flops: Column of the run's training FLOPs (default: train_flops).
        prefill_flops: Column of FLOPs per prompt token (default: prefill_flops).
        decode_flops: Column of FLOPs per output token (default: decode_flops).
        train_seconds: Column of the run's training seconds (default: train_seconds).
        prefill_seconds: Column of seconds per prompt token (default: prefill_seconds).
        decode_seconds: Column of seconds per output token (default: decode_seconds).
        decode_bytes: Column of bytes moved per output token (default: decode_bytes).
        unit: Of the loss, nats or bits.
        baseline: The model that others are compared with (default: the first).
        law: How passes enter: none, iso-recurrence, parscale, saturating size or saturating term
            (default: chosen by the held-out largest runs).
        target: Loss in nats that both models must reach (default: of the baseline's middle run).
        ratios: Prompt tokens per output token (default: 0 1 10 100).
        prefill_passes: Passes over a prompt (default: as many as were trained).
        window: Output tokens to look at, from and to (default: the suite's, or 1e7 1e14).
        repeated: Runs of more than four epochs are left out ("refuse") or get a repetition "term".
        drop_highest: Leave so many highest losses out, a rule to be stated before the fit.
        resamples: Of the bootstrap over runs.
        draws_seed: Of the bootstrap.
        title: Title of the report.
    """
    asked = dict(locals())
    from lrt_lab.report.scaling import figures, question, records, study, table, text

    columns = {f.name: asked[f.name] for f in fields(table.Columns) if asked[f.name] is not None}
    path = Path(source)
    if resamples < 100:
        raise UserError(f"--resamples is {resamples}; below 100 there are no intervals")
    if target is not None and not target > 0:
        raise UserError(f"--target is a loss above 0, not {target:g}")
    if window is not None and len(window) != 2:
        raise UserError(f"--window is two token counts, from and to, not {len(window)}")
    wanted = [ratios] if isinstance(ratios, float) else ratios or [0, 1, 10, 100]
    if min(wanted) < 0:
        raise UserError(f"--ratios are prompt tokens per output token, from 0, not {min(wanted):g}")
    if prefill_passes is not None and not prefill_passes >= 1:
        raise UserError(f"--prefill-passes is 1 or more, not {prefill_passes:g}")
    named = {f"--{name.replace('_', '-')}": column for name, column in columns.items()}
    declared: dict[str, Any] = {}
    if path.is_dir():
        if refused := [*named, *(["--baseline"] if baseline else [])]:
            raise UserError(
                f"{source} is a run folder: its suite file declares everything, so "
                f"{', '.join(refused)} cannot be given here"
            )
        found = records.read_folder(path, prefill_passes)
        given, name, declared = found.table, found.name, found.declared
        home = Path("reports") / name / "scaling"
    else:
        name, home = path.name, Path("reports") / path.stem
        given = table.read(
            path,
            table.Columns(**columns),
            named,
            baseline=baseline,
            unit=unit,
            drop_highest=drop_highest,
        )
    asks = question.Question(
        law=law,
        target=target,
        ratios=wanted,
        prefill_passes=prefill_passes,
        repeated=repeated,
        resamples=resamples,
        seed=draws_seed,
        **{**declared, **({"window": (window[0], window[1])} if window else {})},
    )
    results = study.summarise(given, asks, title or f"Scaling law of {name}")
    folder = Path(out) if out else home
    figures.draw(results, folder / "figures")
    written = publish(results, folder)
    for line in text.verdict(results):
        console().print(line.replace("**", ""), markup=False)
    console().print(shown(results))
    console().print(f"report: {written}", markup=False)


def publish(results: dict[str, Any], folder: Path) -> Path:
    """`results.json` and the Markdown made from it; returns the path of `report.md`."""
    from lrt_lab.report.scaling import text

    dumped = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / "results.json", dumped + "\n")
    write_text(folder / "report.md", text.render(results))
    return folder / "report.md"


def shown(results: dict[str, Any]) -> Any:
    """The coefficients as a table of the console."""
    from rich.table import Table

    found = results["law"]
    grid = Table(title=f"{found['name']}, {results['runs']['fitted']} runs", title_justify="left")
    grid.add_column("parameter")
    for name in ("fitted", "low", "high", "se"):
        grid.add_column(name, justify="right")
    for item in found["parameters"]:
        values = (item[key] for key in ("point", "low", "high", "se"))
        grid.add_row(item["name"], *(f"{value:.4g}" for value in values))
    return grid
