"""What each cell is: losses over seeds, size, cost, divergence; and what a clock said, kept
apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lrt_lab.analysis.seed_noise import seed_noise
from lrt_lab.analysis.spread import rate
from lrt_lab.report.records import KINDS, Design, Record
from lrt_lab.report.values import mean, spread


def cell(name: str, design: Design, records: Sequence[Record]) -> dict[str, Any]:
    """One row of the table of cells."""
    runs = [r for r in records if r.cell == name]
    done = [r for r in runs if r.status == "finished"]
    diverged = sum(r.status == "diverged" for r in runs)
    twin = next((t for t in design.twins if t.cell == name), None)
    share, low, high = rate(diverged, len(done) + diverged, 1 - design.alpha)
    bpb = np.array([r.bpb for r in done], float)
    return {
        "cell": name,
        "axes": dict(design.cells[name]),
        "twin": None if twin is None else {"of": twin.of, "as": twin.as_, "match": twin.match},
        "planned": len(runs),
        "n": len(done),
        "seeds": [r.seed for r in done],
        "loss": spread(np.array([r.loss for r in done], float)),
        "bpb": spread(bpb[np.isfinite(bpb)]),
        "parameters": mean(r.parameters for r in runs),
        "matmul_parameters": mean(r.matmul_parameters for r in runs),
        **({"kinds": _kinds(runs)} if runs and all(r.kinds for r in runs) else {}),
        "tokens": mean(r.tokens for r in done),
        "train_flops": mean(r.train_flops for r in done),
        "divergence": {
            "runs": diverged,
            "of": len(done) + diverged,
            "rate": share,
            "low": low,
            "high": high,
        },
    }


def _kinds(runs: Sequence[Record]) -> dict[str, Any]:
    return {kind: mean(r.kinds[kind] for r in runs) for kind in KINDS}


def clock(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """What a clock said about one cell: differs between executions of the same suite."""
    done = [r for r in records if r.cell == name and r.status == "finished"]
    return {
        "cell": name,
        "tokens_per_second": mean(r.tokens_per_second for r in done),
        "train_seconds": mean(r.train_seconds for r in done),
        "eval_seconds": mean(r.eval_seconds for r in done),
    }


def noise(design: Design, records: Sequence[Record]) -> dict[str, Any]:
    """How much final losses differ between the seeds of one cell."""
    groups = [
        [r.loss for r in records if r.cell == c and r.status == "finished"] for c in design.cells
    ]
    found = seed_noise([group for group in groups if len(group) > 1])
    return {**asdict(found), "median": found.median}


def evaluation(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The evaluated slices: bytes (of tasks rows), tokens, hash and how many runs. One for each
    task, unless something is wrong.
    """
    slices: Counter[tuple[Any, Any, Any, Any]] = Counter()
    for record in records:
        found = (record.final or {}).get("test")
        if found:
            size = (found.get("bytes"), found.get("rows"))
            slices[(*size, found.get("tokens"), found.get("sha256"))] += 1
    return [
        {"bytes": size, "rows": rows, "tokens": tokens, "sha256": digest, "runs": runs}
        for (size, rows, tokens, digest), runs in sorted(slices.items(), key=str)
    ]


def passes(design: Design, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Bits per byte against the evaluation pass, per cell; alike in all of them without a route."""
    found = []
    for name in design.cells:
        done = [r for r in records if r.cell == name and r.status == "finished" and r.curve]
        curves = [r.curve for r in done if r.curve]
        if not curves or any(c["passes"] != curves[0]["passes"] for c in curves):
            continue
        values = np.array([c["bpb"] for c in curves], dtype=float)
        found.append(
            {
                "cell": name,
                "bytes": curves[0].get("bytes"),
                "passes": curves[0]["passes"],
                "bpb": values.mean(axis=0),
                "per_seed": values,
                "exact_bpb": mean(c["exact_bpb"] for c in curves),
                "trained": mean(r.final.get("passes") for r in done),
            }
        )
    return found


def positions(design: Design, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Loss by position, and accuracy of answers, where runs recorded it (`final.json:
    by_position`).
    """
    found = []
    for name in design.cells:
        curves = [
            r.final["by_position"]
            for r in records
            if r.cell == name and r.status == "finished" and (r.final or {}).get("by_position")
        ]
        if not curves or any(c["position"] != curves[0]["position"] for c in curves):
            continue
        values = np.array([c["loss"] for c in curves], float)
        item = {"cell": name, "position": curves[0]["position"], "per_seed": values}
        if all("accuracy" in c for c in curves):
            item["accuracy"] = np.array([c["accuracy"] for c in curves], float)
        found.append(item)
    return found
