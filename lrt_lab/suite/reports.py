"""Where a suite's report goes, and what becomes of an older one that is there."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from lrt_lab.store import read_json

# A file under its temporary name: that of the file, then the writer's process id.
_TEMPORARY = re.compile(r"\..+\.(\d+)\.(tmp|svg|png)")


def write_report(plan: dict[str, Any], folder: Path, reports: Path, suite_file: Path) -> Path:
    """Write the report of the runs in `folder`; returns the Markdown file.

    The report also says whether the suite file has changed since the plan was made, so it is given
    the file's hash as it is now; the plan on disk keeps the one that it was made from.
    """
    from lrt_lab.report import index, suite_report

    target = reports / plan["suite"] / plan["scale"]
    set_aside(target, plan["suite_hash"])
    clear_unfinished(target)
    now = hashlib.sha256(suite_file.read_bytes()).hexdigest() if suite_file.is_file() else None
    path = suite_report.write({**plan, "suite_hash_now": now}, folder, target)
    index.update(reports)
    return path


def require_family(plan: dict[str, Any]) -> None:
    """Raise if the report could not make the declared family of contrasts, or its verdict."""
    from lrt_lab.report import arms, comparisons, suite_runs

    design = suite_runs.design_of(plan)
    comparisons.require_family(design)
    arms.require(design)


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


def clear_unfinished(target: Path) -> None:
    """Remove what a report that was killed left behind: reports are committed, with all in them."""
    for path in target.rglob(".*"):
        named = _TEMPORARY.fullmatch(path.name)
        if named and not _alive(int(named[1])):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    # Signal 0 asks without sending; a process of another user exists too.
    with suppress(PermissionError):
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True
