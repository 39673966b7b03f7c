"""Where a suite's report goes, and what becomes of an older one that is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lrt_lab.store import read_json


def write_report(plan: dict[str, Any], folder: Path, reports: Path) -> Path:
    """Write the report of the runs in `folder`; returns the Markdown file."""
    from lrt_lab.report import suite_report

    target = reports / plan["suite"] / plan["scale"]
    set_aside(target, plan["suite_hash"])
    return suite_report.write(plan, folder, target)


def set_aside(target: Path, suite_hash: str) -> Path | None:
    """Move a complete report of another suite file to a sibling, `<scale>-<hash10>`."""
    results = read_json(target / "results.json")
    if results is None:
        return None
    found = results["registration"]
    other = found["suite_hash"]
    if other in (None, suite_hash) or found["missing"]:
        return None
    place = target.with_name(f"{target.name}-{other[:10]}")
    number = 1
    while place.exists():
        number += 1
        place = target.with_name(f"{target.name}-{other[:10]}-{number}")
    os.replace(target, place)
    return place
