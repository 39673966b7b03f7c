"""Checks the statistics on suites whose truth is known, through the code that makes real reports.

Every simulated suite is a plan and, in memory, the files of its run folders; only that each
`final.json` holds an array with one loss per simulation. The loader, the table, the contrasts, the
intervals and the verdict are those of a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrt_lab.analysis.contrasts import against, evaluate
from lrt_lab.analysis.draws import NOISES, generator, noise
from lrt_lab.analysis.multiplicity import holm
from lrt_lab.analysis.planning import chances
from lrt_lab.analysis.ratio import BOUNDED
from lrt_lab.analysis.study import Study, analyse
from lrt_lab.analysis.verdict import READINGS
from lrt_lab.report.records import Design, Record, table
from lrt_lab.report.suite_runs import design_of, record_of

SEED = 20260101
SEEDS = (3, 5, 8)
MARGIN = 0.001
# deviations in ln loss of a seed's shared part and of a run's own; the interaction's is 2 x RUN_SD
SEED_SD, RUN_SD = 6e-4, 4e-4
GAIN = 0.01
EFFECTS = (0.0, 0.002)
VARIANTS = 8

# coverage of the paired t's 95% interval, measured beforehand with 2000 simulations
MEASURED = {
    ("normal", 3): 0.947,
    ("normal", 5): 0.948,
    ("normal", 8): 0.950,
    ("t4", 5): 0.948,
    ("skewed", 5): 0.962,
}
ELSEWHERE = (0.95, 0.965)
FAMILY_WISE = 0.045


@dataclass(frozen=True)
class Row:
    """One simulated setting: shares over simulations."""

    noise: str
    n: int
    effect: float
    coverage: float
    coverage_gains: float
    rejected: float
    ratio_coverage: float
    ratio_undefined: float
    undefined_exactly: bool
    verdicts: Mapping[str, float]
    simulations: int

    @property
    def expected(self) -> tuple[float, float]:
        """The range that the coverage must reach within three Monte-Carlo standard errors."""
        point = MEASURED.get((self.noise, self.n))
        return (point, point) if point is not None else ELSEWHERE

    @property
    def problems(self) -> list[str]:
        """What is wrong with this setting, in words; empty when all is well."""
        low, high = self.expected
        found = []
        if not low - three_errors(low, self) <= self.coverage <= high + three_errors(high, self):
            found.append(f"coverage {self.coverage:.4f}, expected {low:g} to {high:g}")
        if self.effect == 0 and self.rejected > 0.05 + three_errors(0.05, self):
            found.append(f"false positives {self.rejected:.4f}, expected .05")
        if not self.undefined_exactly:
            found.append(
                "a ratio is undefined where its denominator's interval excludes 0, or not where "
                "it covers 0"
            )
        if self.noise == "normal":
            found += self._verdicts_off()
        return found

    def _verdicts_off(self) -> list[str]:
        exact = vars(chances(self.effect, 2 * RUN_SD, self.n, MARGIN))
        return [
            f"{name} {self.verdicts[name]:.4f}, expected {share:.4f}"
            for name, share in exact.items()
            if abs(self.verdicts[name] - share) > three_errors(share, self) + 1e-3
        ]


def three_errors(share: float, row: Row) -> float:
    """Three Monte-Carlo standard errors of a share."""
    return 3 * float(np.sqrt(share * (1 - share) / row.simulations))


def rows(
    simulations: int,
    seed: int = SEED,
    seeds: tuple[int, ...] = SEEDS,
    kinds: tuple[str, ...] = NOISES,
) -> Iterator[Row]:
    """Every setting of seeds, noise and true interaction."""
    for kind in kinds:
        for n in seeds:
            for effect in EFFECTS:
                yield check(kind, n, effect, simulations, seed)


def check(kind: str, n: int, effect: float, simulations: int, seed: int = SEED) -> Row:
    """Simulate suites of one setting and analyse them as reports do."""
    means = {"P+none": 0.0, "P+R": -GAIN, "A+none": -0.03, "A+R": -0.03 - GAIN - effect}
    design, records = suite(means, n, kind, simulations, seed)
    study = analysed(design, records)
    interaction = study.log["interaction"]
    low, high = interaction.interval()
    gains = [(study.log["gain_base"], GAIN), (study.log["gain_improved"], GAIN + effect)]
    relative = study.relative["gain_base"].interval()
    covers_zero = (relative[0] <= 0) & (relative[1] >= 0)
    reading = study.verdict.reading
    ratio = (1 - np.exp(-GAIN - effect)) / (1 - np.exp(-GAIN))
    return Row(
        noise=kind,
        n=n,
        effect=effect,
        coverage=float(((low <= effect) & (effect <= high)).mean()),
        coverage_gains=float(
            np.mean([(e.interval()[0] <= t) & (t <= e.interval()[1]) for e, t in gains])
        ),
        rejected=float((interaction.p() <= design.alpha).mean()),
        ratio_coverage=float(study.ratio.covers(ratio).mean()),
        ratio_undefined=float((study.ratio.kind != BOUNDED).mean()),
        undefined_exactly=bool(np.array_equal(study.ratio.kind != BOUNDED, covers_zero)),
        verdicts={name: float((reading == name).mean()) for name in READINGS},
        simulations=simulations,
    )


def weak_ratio(kind: str, n: int, simulations: int, seed: int = SEED) -> tuple[float, float, bool]:
    """A weak denominator (gain .05%): coverage of Fieller's set, share undefined, and whether
    exactly where it must be.
    """
    means = {"P+none": 0.0, "P+R": -5e-4, "A+none": -0.03, "A+R": -0.03 - 7.5e-4}
    study = analysed(*suite(means, n, kind, simulations, seed))
    low, high = study.relative["gain_base"].interval()
    undefined = study.ratio.kind != BOUNDED
    truth = (1 - np.exp(-7.5e-4)) / (1 - np.exp(-5e-4))
    exactly = bool(np.array_equal(undefined, (low <= 0) & (high >= 0)))
    return float(study.ratio.covers(truth).mean()), float(undefined.mean()), exactly


def family_wise(
    n: int, simulations: int, seed: int = SEED, variants: int = VARIANTS
) -> tuple[float, float]:
    """Share of suites with any false claim among variants that are all equal to their baseline:
    with Holm, and without.
    """
    names = [f"variant-{i}" for i in range(variants)]
    means = dict.fromkeys(["baseline", *names], 0.0)
    design, records = suite(means, n, "normal", simulations, seed)
    losses = table(records, design)
    p = np.stack([evaluate(losses, c).estimate.p() for c in against("baseline", names)], axis=-1)
    raw = float((p <= design.alpha).any(axis=-1).mean())
    return float((holm(p) <= design.alpha).any(axis=-1).mean()), raw


def analysed(design: Design, records: list[Record]) -> Study:
    """What a report analyses at matched tokens."""
    assert design.square is not None
    return analyse(table(records, design), design.square, design.margin, design.alpha)


def suite(
    means: Mapping[str, float], n: int, kind: str, simulations: int, seed: int
) -> tuple[Design, list[Record]]:
    """Finished suites in memory: ln loss = ln 3 + cell mean + seed effect + run noise, one suite
    per simulation.
    """
    plan = _plan(list(means), n)
    draws = generator(seed, "selfcheck", kind, n, *means.values())
    shared = {s: SEED_SD * draws.standard_normal(simulations) for s in range(1, n + 1)}
    records = []
    for item in plan["cells"]:
        own = RUN_SD * noise(kind, (simulations,), draws)
        loss = 3.0 * np.exp(means[item["cell"]] + shared[item["seed"]] + own)
        files = {"DONE": True, "final.json": final_of(loss)}
        records.append(record_of(item, plan, files.get))
    return design_of(plan), records


def _plan(cells: list[str], n: int) -> dict[str, Any]:
    square = all("+" in cell for cell in cells)
    ends = {
        "backbone": {"baseline": "P", "improved": "A"},
        "route": {"baseline": "none", "improved": "R"},
    }
    items = []
    for cell in cells:
        axes = dict(zip(ends, cell.split("+"), strict=True)) if square else {"variant": cell}
        items += [
            {"cell": cell, "axes": axes, "twin": None, "seed": s, "folder": f"{cell}/seed-{s}"}
            for s in range(1, n + 1)
        ]
    statistics = {"margin": MARGIN, "planned_seeds": n, "axes": ends if square else {}}
    return {"suite": "selfcheck", "scale": "memory", "statistics": statistics, "cells": items}


def final_of(loss: np.ndarray) -> dict[str, Any]:
    """A `final.json` that holds one loss per simulation."""
    test = {"exact": {"loss": loss, "bpb": loss / np.log(2)}}
    return {"status": "finished", "test": test, "tokens": 1, "train_flops": 1, "train_seconds": 1}
