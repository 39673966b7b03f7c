"""A report from anybody's CSV."""

from __future__ import annotations

from pathlib import Path

from lrt_lab.report import figures
from lrt_lab.report.csv_rows import Columns
from lrt_lab.report.csv_table import read_csv
from lrt_lab.report.results import summarise
from lrt_lab.report.suite_report import publish


def write(path: Path, columns: Columns, out_dir: Path) -> Path:
    """Write `report.md`, `results.json` and `figures/` for a table of runs; returns the path of
    `report.md`.
    """
    design, records = read_csv(path, columns)
    results = summarise(design, records)
    figures.draw(results, [], out_dir / "figures")
    return publish(results, out_dir)
