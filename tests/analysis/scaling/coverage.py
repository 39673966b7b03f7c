"""Simulated coverage of the intervals of phi and of the crossing: two hundred studies whose truth
is known. `python -m tests.analysis.scaling.coverage` writes `coverage.json` beside this file (some
minutes); the tests check that record and do its first studies again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import (
    Deployment,
    Draws,
    Runs,
    crossing,
    fit,
    law,
    proportional,
    resample,
)
from lrt_lab.analysis.scaling.laws import Centre
from tests.analysis.scaling.grids import TRUTH, grid

RECORD = Path(__file__).with_name("coverage.json")
SEED, REPEATS, RESAMPLES, LEVEL = 20260102, 200, 500, 0.95
# name: true phi, deviation of one run in ln loss
SETTINGS: Mapping[str, tuple[float, float]] = {
    "phi .46": (0.46, 0.0008),
    "phi .46, noisy": (0.46, 0.004),
    "phi 0": (0.0, 0.0008),
    "phi .02": (0.02, 0.0008),
}
LAW = law("iso-recurrence")
# the loss of a model of 4e7 parameters after 8e8 tokens
TARGET = TRUTH["E"] + TRUTH["A"] / 4e7 ** TRUTH["alpha"] + TRUTH["B"] / 8e8 ** TRUTH["beta"]
BASE = Deployment("1 pass", 0, 1, 1.0, proportional(6), proportional(2), proportional(2))
THREE = Deployment("3 passes", 0, 3, 1.0, proportional(18), proportional(6), proportional(2), 3)


def simulated(phi: float, sd: float, seed: int) -> Runs:
    """60 runs: five sizes, three ratios of tokens to parameters, one to four passes."""
    return grid(LAW, {"phi": phi}, passes=(1, 2, 3, 4), sd=sd, seed=seed)


def study(name: str, repeat: int) -> dict[str, Any]:
    """One study: the intervals and the answer."""
    phi, sd = SETTINGS[name]
    found = fit(LAW, simulated(phi, sd, SEED + repeat))
    draws = resample(found, generator(SEED, name, repeat), RESAMPLES)
    low, high = draws.interval(draws.natural[:, 5], LEVEL)
    answer = crossing(draws, BASE, [THREE], TARGET, level=LEVEL)
    # JSON has no infinity
    ends = [_six(end) if np.isfinite(end) else "none" for end in (answer.low, answer.high)]
    return {"phi": [_six(low), _six(high)], "crossing": ends, "word": answer.word}


def _six(value: float) -> float:
    """Six digits."""
    return float(f"{value:.6g}")


def true_crossing(name: str) -> float:
    """The crossing of the true law."""
    phi, _ = SETTINGS[name]
    exact = fit(LAW, simulated(phi, 0.0, SEED))
    theta = LAW.theta({**TRUTH, "phi": phi}, Centre.of(exact.runs))
    exact = replace(exact, theta=theta)
    return crossing(Draws(exact, theta[None], 0.0, True), BASE, [THREE], TARGET).point


def coverage(name: str, studies: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Share of studies whose intervals hold the true phi and the true crossing."""
    phi, truth = SETTINGS[name][0], true_crossing(name)
    ends = [[np.inf if e == "none" else e for e in s["crossing"]] for s in studies]
    return {
        "phi": float(np.mean([s["phi"][0] <= phi <= s["phi"][1] for s in studies])),
        "crossing": float(np.mean([low <= truth <= high for low, high in ends])),
    }


def main() -> None:
    """Simulate everything and write the record."""
    settings = {}
    for name in SETTINGS:
        studies = [study(name, repeat) for repeat in range(REPEATS)]
        settings[name] = {"coverage": coverage(name, studies), "studies": studies}
        print(name, settings[name]["coverage"], {s["word"] for s in studies}, file=sys.stderr)
    record = {"seed": SEED, "resamples": RESAMPLES, "level": LEVEL, "settings": settings}
    lines = json.dumps(record).replace(' {"phi": [', '\n{"phi": [')
    RECORD.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
