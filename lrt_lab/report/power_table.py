"""`lrt-lab power`: what a number of seeds can show, from a suite's own runs or an assumed
deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lrt_lab.analysis.planning import Chances, chances, detectable, interaction_sd, seeds_needed
from lrt_lab.analysis.spread import sd as deviation
from lrt_lab.analysis.study import analyse
from lrt_lab.errors import UserError
from lrt_lab.report.layout import grid
from lrt_lab.report.records import table
from lrt_lab.report.suite_runs import design_of, read_plan, read_runs, scale_folder

MULTIPLES = (-1.0, 0.0, 1.0, 2.0)


@dataclass(frozen=True)
class Noise:
    """Per-seed deviation of the interaction and of a gain in ln loss, with the interval of the
    first and their source.
    """

    interaction: float
    low: float
    high: float
    gain: float
    source: str


def from_runs(folder: Path) -> tuple[Noise, float, float]:
    """The noise of a suite's finished runs, its margin and its level."""
    plan = read_plan(folder)
    design = design_of(plan)
    if design.square is None:
        raise UserError(
            f"{folder}: the suite declares no 2x2, so there is no interaction to plan for"
        )
    records = read_runs(plan, scale_folder(plan, folder))
    study = analyse(table(records, design), design.square, design.margin, design.alpha)
    n = len(study.seeds)
    if n < 2:
        raise UserError(
            f"{folder} has {n} complete pair blocks; two are needed for a deviation, or give --sd"
        )
    point, low, high = (float(v) for v in deviation(study.per_seed["interaction"]))
    gain = float(np.mean([deviation(study.per_seed[g])[0] for g in ("gain_base", "gain_improved")]))
    source = f"{n} pair blocks of {design.name}/{design.scale}"
    return Noise(point, low, high, gain, source), design.margin, design.alpha


def assumed(run_sd: float, correlation: float) -> Noise:
    """The noise of one run's deviation in ln loss and the correlation of runs within a pair
    block.
    """
    if not run_sd > 0 or not -1 <= correlation < 1:
        raise UserError(
            f"--sd must be above 0 and --correlation in [-1, 1), not {run_sd:g} and {correlation:g}"
        )
    found = interaction_sd(run_sd, correlation)
    source = f"an assumed sd of {run_sd:g} per run, correlation {correlation:g}"
    return Noise(found, found, found, found / np.sqrt(2), source)


def render(
    noise: Noise, margin: float, seeds: Sequence[int], chance: float = 0.8, alpha: float = 0.05
) -> str:
    """Three tables: detectable effects, seeds needed, and the chance of each verdict."""
    known = noise.low != noise.high
    about = f" [{noise.low:.2g}, {noise.high:.2g}]" if known else ""
    parts = [
        f"sd of the per-seed interaction in ln loss: {noise.interaction:.3g}{about}, from "
        f"{noise.source}; "
        f"margin {margin:g}, level {alpha:g}, power {chance:g}.",
        "Minimum detectable effect in ln loss"
        + (" (in brackets: at the ends of the sd's interval)" if known else ""),
        grid(
            ["seeds", "gain", "interaction"], [_detectable(noise, n, chance, alpha) for n in seeds]
        ),
        "Seeds needed for an interaction",
        grid(
            ["interaction", "seeds"],
            [_needed(noise, m * margin, chance, alpha) for m in (0.5, 1, 2, 3)],
        ),
        "Chance of each verdict, both gains given",
        grid(
            [
                "seeds",
                "true I",
                "supported",
                "negligible",
                "reversed",
                "equivalent",
                "inconclusive",
            ],
            [
                _chances(n, m * margin, chances(m * margin, noise.interaction, n, margin, alpha))
                for n in seeds
                for m in MULTIPLES
            ],
        ),
        "Fewer than 5 seeds are a pilot: their verdicts are readings only. Testing after every "
        "added seed and stopping at "
        "the first p < .05 raises the false-positive rate to about .165: fix the number of seeds "
        "beforehand.",
    ]
    return "\n\n".join(parts)


def _detectable(noise: Noise, n: int, chance: float, alpha: float) -> list[str]:
    found = [detectable(s, n, chance, alpha) for s in (noise.interaction, noise.low, noise.high)]
    about = f" [{found[1]:.2g}, {found[2]:.2g}]" if noise.low != noise.high else ""
    return [str(n), f"{detectable(noise.gain, n, chance, alpha):.3g}", f"{found[0]:.3g}{about}"]


def _needed(noise: Noise, effect: float, chance: float, alpha: float) -> list[str]:
    found = [
        seeds_needed(effect, s, chance, alpha) for s in (noise.interaction, noise.low, noise.high)
    ]
    texts = ["over 4096" if n is None else str(n) for n in found]
    about = f" [{texts[1]}, {texts[2]}]" if noise.low != noise.high else ""
    return [f"{effect:g}", texts[0] + about]


def _chances(n: int, effect: float, found: Chances) -> list[str]:
    return [str(n), f"{effect:+g}", *(f"{share:.3f}" for share in vars(found).values())]
