"""`lrt-lab diagnose`: whether the recurrence of a trained model contracts."""

from __future__ import annotations

import json as text
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from lrt_lab.console import console
from lrt_lab.errors import UserError
from lrt_lab.report.contraction import COLUMNS, entry, said
from lrt_lab.store import CHECKPOINT, write_json
from lrt_lab.training.callbacks.diagnosis import fixed_batch, plain
from lrt_lab.training.config import read_yaml
from lrt_lab.training.contraction import PASSES, depth, diagnose
from lrt_lab.training.run import Run


def command(checkpoint: str, passes: int = PASSES, json: bool = False) -> None:
    """Say whether a trained model's recurrence contracts, and how stable its state is.

    Writes contraction.json and, where something is carried, figures to the run's folder.

    Args:
        checkpoint: Run folder, or a checkpoint in one.
        passes: Jacobi passes to look at.
        json: Print contraction.json instead of a table.
    """
    if passes < 3:
        raise UserError(f"--passes={passes}: give at least 3, a rate needs as many")
    folder, path = located(Path(checkpoint))
    found = diagnosed(folder, path, passes)
    write_json(folder / "contraction.json", found)
    if found["passes"]:
        draw(folder, found)
    if json:
        print(text.dumps(found, indent=2, allow_nan=False))
    else:
        show(folder, found)


def located(given: Path) -> tuple[Path, Path]:
    """The run's folder and its checkpoint, from either."""
    folder, path = (given, given / CHECKPOINT) if given.is_dir() else (given.parent.parent, given)
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: give a run folder with {CHECKPOINT}, or a checkpoint"
        )
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} has no config.yaml: give a checkpoint where its run left it")
    return folder, path


def diagnosed(folder: Path, path: Path, passes: int) -> dict[str, Any]:
    """Build the run's model, load its weights and diagnose it on the validation text."""
    run = Run(read_yaml(folder / "config.yaml"))
    torch.set_num_threads(run.threads)
    module, data = run.cli.build()
    saved = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(saved["state_dict"])
    module.eval()
    data.prepare_data()
    frame, targets = fixed_batch(data.slices("validation", data.size("validation")))
    if torch.cuda.is_available():
        module.to("cuda")
    device = module.decoder.head.device
    found = diagnose(module.decoder, frame.to(device), targets.to(device), passes)
    return plain(
        {
            "step": saved["global_step"],
            "rows": frame.ids.shape[0],
            "length": frame.length,
            "trained": depth(module.schedule, module.decoder, frame.length),
            **found,
        }
    )


def draw(folder: Path, found: dict[str, Any]) -> None:
    """``contraction`` and ``reach``, as SVG and PNG."""
    from lrt_lab.report.figures import contraction
    from lrt_lab.report.figures.style import Look, save, style

    name = folder.name
    results = {
        "suite": {"axes": {}},
        "cells": [{"cell": name, "axes": {}, "twin": None}],
        "contraction": [entry(name, [found])],
    }
    with style():
        for make in (contraction.growth, contraction.reach):
            drawing = make(results, [], Look(results))
            if drawing is not None:
                save(drawing.canvas, folder, drawing.name)


def show(folder: Path, found: dict[str, Any]) -> None:
    """A table of what was found."""
    out = console()
    table = Table(title=f"{folder}, step {found['step']}", show_header=False)
    for name, value in lines(folder.name, found):
        table.add_row(name, value)
    out.print(table)
    verdict = found["verdict"]
    if found["beyond"] is not None:
        verdict += f" beyond pass {found['beyond']}"
    out.print(f"{verdict}; {folder / 'contraction.json'}")


def lines(name: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the table's rows."""
    state, gradient = found["state"]["units"], found["gradient"]["embedding"]

    def ends(values: list[float | None]) -> str:
        return " .. ".join("-" if v is None else f"{v:.3g}" for v in (values[0], values[-1]))

    common = [
        ("state before the first unit, first .. last positions", ends(state[0])),
        ("state before the head", ends(state[-1])),
        (f"gradient of the embedding, lag 0 .. {len(gradient) - 1}", ends(gradient)),
    ]
    if not found["passes"]:
        return [("exact loss", f"{found['loss']:.4f}"), *common]
    item = entry(name, [found])
    return [
        ("verdict", said(item)),
        *((about, column(item)) for about, column in COLUMNS.items()),
        *common,
        ("what is carried", ends(found["state"]["carried"])),
    ]
