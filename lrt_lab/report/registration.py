"""Planned against run: seeds, runs, the suite file's hash, the code, the data, the machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lrt_lab.analysis.table import Table
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import unique

DONE = ("finished", "diverged")


def registration(design: Design, records: Sequence[Record], losses: Table) -> dict[str, Any]:
    """What was fixed before the runs, and whether it stayed so."""
    plan = design.source
    done = [r for r in records if r.status in DONE]
    hashes = Counter(r.meta.get("suite_hash") for r in done if r.meta.get("suite_hash"))
    git = [r.meta.get("git") or {} for r in done if r.meta]
    commits = Counter((str(g.get("commit")), bool(g.get("dirty"))) for g in git)
    versions = Counter(
        tuple(sorted((r.meta.get("versions") or {}).items())) for r in done if r.meta
    )
    complete: tuple[object, ...] = ()
    if design.paired and design.seeded:
        wanted = design.square.cells if design.square else losses.cells
        complete = losses.select(wanted).blocks().seeds
    current = plan.get("suite_hash")
    now = plan.get("suite_hash_now")
    return {
        "suite_file": plan.get("suite_file"),
        "suite_hash": current,
        "frozen": plan.get("frozen"),
        "other_suite_hashes": sorted(h for h in hashes if h != current),
        # the hash of the suite file on disk if it is no longer the plan's
        "suite_hash_now": None if now == current else now,
        "changed_after_runs": any(h != current for h in hashes),
        "planned_seeds": design.planned_seeds,
        "seeds": list(design.seeds) if design.seeded else [],
        "complete_seeds": list(complete),
        "runs": {
            "planned": len(records),
            "finished": sum(r.status == "finished" for r in records),
            "diverged": sum(r.status == "diverged" for r in records),
            "missing": len(records) - len(done),
        },
        "missing": [
            {"cell": r.cell, "seed": r.seed, "status": r.status}
            for r in records
            if r.status not in DONE
        ],
        "strays": list(design.strays),
        "commits": [
            {"commit": commit, "dirty": dirty, "runs": runs}
            for (commit, dirty), runs in sorted(commits.items())
        ],
        "versions": [{"versions": dict(v), "runs": n} for v, n in sorted(versions.items())],
        "data": unique(r.meta.get("data") for r in done),
        "machines": unique(r.meta.get("machine") for r in done),
    }
