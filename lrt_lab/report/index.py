"""The list of every complete run of every frozen suite file, in the README beside the reports.

A report that is not kept could not be missed: so each is listed with its suite file's hash, and a
test compares the list with the folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lrt_lab.report import arm_words
from lrt_lab.report.layout import grid
from lrt_lab.report.scaling import suite as scaling
from lrt_lab.store import read_json, write_text

#: Opens the list and names the suites that it holds; `END` closes it.
BEGIN = re.compile(r"<!-- reports of ([\w. -]+?) -->\n")
END = "<!-- end of the list -->"


def update(reports: Path) -> list[Path]:
    """Rewrite the lists in `<reports>/*/README.md`; returns the files that changed."""
    changed = []
    for readme in sorted(reports.glob("*/README.md")):
        text = readme.read_text(encoding="utf-8")
        fresh = relisted(text, reports, readme.parent)
        if fresh != text:
            write_text(readme, fresh)
            changed.append(readme)
    return changed


def relisted(text: str, reports: Path, home: Path) -> str:
    """A README with its list as the folders have it; unchanged where it has none."""
    begin = BEGIN.search(text)
    if begin is None or END not in text[begin.end() :]:
        return text
    rest = text[text.index(END, begin.end()) :]
    rows = [row for suite in begin[1].split() for row in listed(reports / suite, home)]
    head = ["report", "suite file, sha256", "frozen by commit", "runs", "reading"]
    return text[: begin.end()] + grid(head, rows) + "\n" + rest


def listed(suite: Path, home: Path) -> list[list[str]]:
    """A row for every complete report of a suite."""
    rows = []
    for path in sorted(suite.glob("*/results.json")):
        results = read_json(path)
        found = results["registration"]
        if not complete(results):
            continue
        folder = path.parent.relative_to(suite.parent).as_posix()
        up = "../" * len(home.relative_to(suite.parent).parts)
        frozen = found["frozen"]
        rows.append(
            [
                f"[{folder}]({up}{folder}/report.md)",
                f"`{found['suite_hash']}`",
                f"`{frozen['commit'][:10]}`" if frozen else "not frozen",
                str(found["runs"]["planned"]),
                reading(results),
            ]
        )
    return rows


def reading(results: Mapping[str, Any]) -> str:
    """What the primary contrast was read as, in ln loss or in a task's accuracy."""
    if results.get("scaling"):
        return scaling.words(results)
    found = (results.get("accuracy") or {}).get("reading")
    if found:
        return f"{results['suite']['primary']}, in accuracy: {found}"
    arms = results.get("arms")
    if arms:
        return f"{arm_words.name(results)}: {arms['primary']['reading']}"
    return str(results["budgets"]["tokens"].get("reading", "none"))


def complete(results: Mapping[str, Any]) -> bool:
    """Whether a report has all of its runs."""
    return results["registration"]["runs"]["missing"] == 0
