"""The scaling law as the heart of a suite's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.report.records import Record
from lrt_lab.report.scaling import text
from lrt_lab.report.scaling.question import Question
from lrt_lab.report.scaling.records import PILOT, given
from lrt_lab.report.scaling.study import summarise


def add(
    results: dict[str, Any], plan: Mapping[str, Any], records: Sequence[Record], folder: Path
) -> None:
    """Fit the law of the finished runs into `results["scaling"]`, and draw it.

    What rests on a clock goes to `results["wall_clock"]["scaling"]`. Where no law can be fitted
    yet, `refused` says why.
    """
    from lrt_lab.report.scaling import figures

    try:
        found = given(plan, records)
        law = summarise(found.table, Question(**found.declared), str(plan["title"]))
    except UserError as error:
        pilot = PILOT if plan["scale"] in plan["scaling"]["pilots"] else ""
        results["scaling"] = {"refused": str(error), "preface": pilot}
        return
    figures.draw(law, folder)
    clocked = {
        "crossings": [c for c in law["crossings"] if c["unit"] == "seconds"],
        "figures": [f for f in law["figures"] if f["name"] == "cost-ratio-seconds"],
    }
    for name, items in clocked.items():
        law[name] = [item for item in law[name] if item not in items]
    results["scaling"], results["wall_clock"]["scaling"] = law, clocked


def verdict(results: Mapping[str, Any]) -> list[str]:
    """What opens the report of a suite with a law."""
    found = results["scaling"]
    if "refused" in found:
        return [f"{found['preface']} No law can be fitted yet: {found['refused']}.".strip()]
    return text.verdict(_whole(results))


def sections(results: Mapping[str, Any]) -> list[str]:
    """Everything about the law but its verdict; empty without one."""
    found = results.get("scaling")
    return [] if found is None or "refused" in found else text.sections(_whole(results))


def words(results: Mapping[str, Any]) -> str:
    """The primary comparison's answers, as lists of reports have it."""
    found = results["scaling"]
    if "refused" in found:
        return "no law"
    if found["law"]["flags"]:
        return f"{found['preface']} undefined: the fit is not sound".strip()
    first = found["crossings"][:1]
    mine = [c for c in found["crossings"] if _names(c) == _names(first[0])] if first else []
    by_word: dict[str, list[str]] = {}
    for c in mine:
        by_word.setdefault(c["word"], []).append(f"{c['ratio']:g}")
    said = "; ".join(f"{word} at {', '.join(ratios)}" for word, ratios in by_word.items())
    answer = f"{said} prompt tokens per output token" if said else "one model"
    return f"{found['preface']} {answer}".strip()


def _names(c: Mapping[str, Any]) -> tuple[Any, ...]:
    return c["model"], c["baseline"], c["unit"]


def _whole(results: Mapping[str, Any]) -> dict[str, Any]:
    """The law with what was timed."""
    found, clocked = results["scaling"], results["wall_clock"]["scaling"]
    return {**found, **{name: [*found[name], *items] for name, items in clocked.items()}}
