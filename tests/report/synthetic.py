"""Suites that never ran: plans and run folders with known truth, for tests of everything that reads
them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CELLS = {
    "PreNorm+none": {"backbone": "PreNorm", "route": "none"},
    "PreNorm+LRT": {"backbone": "PreNorm", "route": "LRT"},
    "AttentionResiduals+none": {"backbone": "AttentionResiduals", "route": "none"},
    "AttentionResiduals+LRT": {"backbone": "AttentionResiduals", "route": "LRT"},
}
# the pilot: gains of .0347 and .0003 in ln loss, the backbone gains .0371
PILOT = {
    "PreNorm+none": 2.2,
    "PreNorm+LRT": 2.2 * math.exp(-0.0347),
    "AttentionResiduals+none": 2.2 * math.exp(-0.0371),
    "AttentionResiduals+LRT": 2.2 * math.exp(-0.0374),
    "PreNorm+none@flops": 2.2 * math.exp(-0.0400),
    "AttentionResiduals+none@flops": 2.2 * math.exp(-0.0650),
}
# arms of one axis, each told in the same four choices
CHOICES = ("retain", "read", "change", "train")
WORDS = {
    name: dict(zip(CHOICES, told, strict=True))
    for name, told in {
        "none": ("nothing", "nothing", "none", "one pass"),
        "LRT": ("one block", "injection", "none", "interleaved"),
        "ffn": ("two slots", "source for all", "FFN", "four passes"),
        "reflection": ("two slots", "source for all", "reflection", "four passes"),
        "raw": ("two slots", "source for all", "none", "four passes"),
        "linear": ("two slots", "source for all", "linear map", "four passes"),
        "slots-4": ("four slots", "source for all", "reflection", "four passes"),
        "detached": ("two slots", "source for all", "FFN", "detached"),
    }.items()
}
STEPS, FLOPS, TOKENS = 250, 4.0e9, 2048


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A generator of its own for every seed and purpose."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))


def plan(
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    twins: bool = True,
    margin: float = 0.01,
    **statistics: Any,
) -> dict[str, Any]:
    """An H1 plan as `suite run` writes it."""
    items = []
    for cell, axes in CELLS.items():
        for seed in seeds:
            items.append(item_of(cell, axes, None, seed))
            if twins and axes["route"] == "none":
                twin = {"match": "train_flops", "of": cell, "as": cell.replace("none", "LRT")}
                items.append(item_of(f"{cell}@flops", axes, twin, seed))
    return {
        "suite": "h1",
        "scale": "quick",
        "suite_file": "experiments/h1.yaml",
        "suite_hash": "a" * 64,
        "frozen": {"commit": "c" * 40, "date": "2026-01-01"},
        "title": "Hypothesis 1: does a better residual stream multiply the gain of a latent route?",
        "hypothesis": "The relative gain of LRT is larger on Attention Residuals than on PreNorm.",
        "prediction": "A positive interaction.",
        "statistics": {
            "family": ["gain_base", "gain_improved", "interaction"],
            "primary": "interaction",
            "outcome": "exact",
            "margin": margin,
            "planned_seeds": 5,
            "alpha": 0.05,
            "axes": {
                "backbone": {"baseline": "PreNorm", "improved": "AttentionResiduals"},
                "route": {"baseline": "none", "improved": "LRT"},
            },
            **statistics,
        },
        "cells": items,
    }


def item_of(
    cell: str, axes: Mapping[str, str], twin: Mapping[str, str] | None, seed: int
) -> dict[str, Any]:
    """One planned run."""
    digest = hashlib.sha256(f"{cell}/{seed}".encode()).hexdigest()
    cost = 2 if "LRT" in axes.values() else 1
    steps = STEPS * (2 if twin else 1)
    return {
        "cell": cell,
        "axes": dict(axes),
        "twin": twin,
        "seed": seed,
        "folder": f"{cell}/seed-{seed}-{digest[:10]}",
        "hash": digest,
        "steps": steps,
        "tokens": steps * TOKENS,
        "train_flops": steps * FLOPS * cost,
        "parameters": {"total": 260_000 + 9_000 * (cost - 1), "matmul": 240_000},
        "seconds": 20.0,
    }


def final(
    item: Mapping[str, Any], loss: Any, passes: int = 2, clock: float = 1.0
) -> dict[str, Any]:
    """A `final.json`; `loss` may be an array of simulated losses."""
    bits = 1 / math.log(2)
    routed = "none" not in item["axes"].values()
    seconds = clock * item["steps"] * (0.2 if routed else 0.1)
    curve = None
    if routed:
        last = float(np.mean(loss)) * bits
        curve = {
            "bytes": 32768,
            "sha256": "e" * 64,
            "passes": list(range(1, 17)),
            "exact_bpb": last,
        }
        curve["bpb"] = [last + 0.2 * math.exp(-1.5 * k) for k in range(16)]
    return {
        "status": "finished",
        "steps": item["steps"],
        "tokens": item["tokens"],
        "train_flops": item["train_flops"],
        "train_seconds": seconds,
        "tokens_per_second": item["tokens"] / seconds,
        "eval_seconds": 3.0 * clock,
        "parameters": item["parameters"],
        "passes": float(passes),
        "test": {
            "bytes": 65536,
            "tokens": 65540,
            "sha256": "f" * 64,
            "exact": {"loss": loss, "bpb": loss * bits},
            "last_pass": {"loss": loss, "bpb": loss * bits},
        },
        "curve": curve,
    }


def meta(item: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """A `meta.json`."""
    return {
        "config_hash": item["hash"],
        "suite": plan["suite"],
        "scale": plan["scale"],
        "cell": item["cell"],
        "seed": item["seed"],
        "axes": item["axes"],
        "suite_hash": plan["suite_hash"],
        "git": {"commit": "d" * 40, "dirty": False},
        "versions": {"python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6", "lrt_lab": "0.1.0"},
        "machine": {"cpu": "a processor", "threads": 1, "device": "cpu"},
        "data": {"corpus": "shakespeare", "corpus_sha256": "b" * 64, "index_sha256": "9" * 64},
        "parameters": item["parameters"],
        "train_flops_per_step": item["train_flops"] / item["steps"],
        "tokens_per_step": TOKENS,
    }


def arms(
    values: Mapping[str, Mapping[str, str]] | None = None, seeds: Sequence[int] = (1, 2, 3, 4, 5)
) -> dict[str, Any]:
    """An H2 plan: none, a baseline, the primary arm, a reference and ablations of both."""
    words = WORDS if values is None else values
    found = plan(
        seeds,
        axes={"arm": {"baseline": "ffn", "improved": "reflection"}},
        primary="reflection",
        family=["raw", "linear", "slots-4 over reflection", "detached"],
        contrasts={"slots-4 over reflection": {"reflection": 1.0, "slots-4": -1.0}},
        groups={"axis": "arm", "values": words},
        solid={"over": "none"},
    )
    return found | {
        "suite": "h2",
        "scale": "cpu",
        "suite_file": "experiments/h2.yaml",
        "title": "Does a reflection of the bank learn better?",
        "cells": [item_of(name, {"arm": name}, None, seed) for name in words for seed in seeds],
    }


def losses(
    plan: Mapping[str, Any],
    means: Mapping[str, float] = PILOT,
    seed_sd: float = 0.004,
    run_sd: float = 0.004,
    seed: int = 7,
) -> dict[str, float]:
    """One loss per planned folder: mean of the cell x exp(seed effect + run noise)."""
    found = {}
    for item in plan["cells"]:
        shared = seed_sd * stream(seed, f"seed effect {item['seed']}").standard_normal()
        own = run_sd * stream(seed, f"run {item['folder']}").standard_normal()
        found[item["folder"]] = means[item["cell"]] * math.exp(shared + own)
    return found


def write_runs(
    plan: Mapping[str, Any],
    root: Path,
    found: Mapping[str, float] | None = None,
    clock: float = 1.0,
    points: int = 25,
) -> Path:
    """Finished run folders for the whole plan below `root/<suite>/<scale>`."""
    folder = root / plan["suite"] / plan["scale"]
    found = losses(plan) if found is None else found
    for item in plan["cells"]:
        write_run(plan, item, folder, found[item["folder"]], clock, points)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def write_run(
    plan: Mapping[str, Any],
    item: Mapping[str, Any],
    folder: Path,
    loss: float,
    clock: float = 1.0,
    points: int = 25,
) -> Path:
    """One finished run folder."""
    path = folder / item["folder"]
    path.mkdir(parents=True, exist_ok=True)
    record = final(item, loss, clock=clock)
    lines = []
    wobble = stream(item["seed"], f"curve {item['cell']}").standard_normal(points + 1)
    for k in range(points + 1):
        done = k / points
        row = {
            "step": int(item["steps"] * done),
            "tokens": int(item["tokens"] * done),
            "flops": item["train_flops"] * done,
            "seconds": record["train_seconds"] * done,
        }
        lines.append({**row, "train/loss": loss + 3.3 * math.exp(-5 * done) + 0.02 * wobble[k]})
        lines.append(
            {
                **row,
                "val/loss": loss
                + 3.3 * (math.exp(-5 * done) - math.exp(-5))
                + 0.004 * wobble[k] * (1 - done),
            }
        )
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "meta.json").write_text(json.dumps(meta(item, plan)))
    (path / "final.json").write_text(json.dumps(record))
    (path / "DONE").write_text("")
    return path
