"""`lrt-lab suite tune`: every cell at every factor of the grid, on seeds that no report uses.

A cell whose best factor lies at the edge of what was tried gets the next one beyond, until its best
lies inside. Scores are those of the declared outcome and metric on the validation slice, mean over
seeds: loss, or the share of wrong answers; a diverged run loses to every other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lrt_lab.console import console
from lrt_lab.store import RunFolder
from lrt_lab.suite import tuned
from lrt_lab.suite.declaration import Scale, Suite
from lrt_lab.suite.expansion import Cell, Run, TwinOf
from lrt_lab.suite.interrupt import Interrupted
from lrt_lab.suite.launch import Launch

# Beyond the grid on either side; a best value still at the edge is then said to be there.
FURTHEST = 4

Grids = dict[str, list[float]]


class Tuner:
    """Rounds of runs until every cell's best factor is inside its grid."""

    def __init__(self, suite: Suite, scale: Scale, runs: Path, jobs: int, backend: str) -> None:
        assert suite.tuning is not None
        self.suite, self.tuning = suite, suite.tuning
        self.scale = scale
        self.own = replace(scale, name=f"{scale.name}-tuning", seeds=self.tuning.seeds, tuned=False)
        self.folder = runs / suite.name / self.own.name
        self.jobs, self.backend = jobs, backend
        self.cells = {cell.name: cell for cell in tuned.candidates(suite, scale)}
        self.launch: Launch | None = None

    def dry_run(self) -> None:
        """What one seed of the first round costs."""
        self._launch(dict.fromkeys(self.cells, list(self.tuning.grid))).dry_run()

    def work(self, began: float) -> int:
        """Tune, then write the choices; 1 if a run failed."""
        grids: Grids = {name: list(self.tuning.grid) for name in self.cells}
        while True:
            launch = self._launch(grids)
            code = launch.finish_runs(None, began)
            if code or launch.missing():
                return code or 1
            scores = self.scores(launch.plan, grids)
            launch.close()
            wider = extended(grids, scores, self.tuning.grid)
            if wider == grids:
                break
            names = [name for name in grids if grids[name] != wider[name]]
            console().print(f"best at the edge of the grid, so extended: {', '.join(names)}")
            grids = wider
        file = tuned.save(self.suite, self.scale, self.record(launch.plan, grids, scores))
        console().print(f"tuning: {file}", markup=False)
        return 0

    def _launch(self, grids: Grids) -> Launch:
        wanted = [
            Run(at_factor(self.cells[name], factor, self.tuning.grid[0]), seed)
            for seed in self.tuning.seeds
            for name, factors in grids.items()
            for factor in factors
        ]
        part = tuned.SCORING["evaluation.part"]
        self.launch = Launch(
            self.suite,
            self.own,
            self.folder,
            self.jobs,
            self.backend,
            runs=wanted,
            scored=str(part),
        )
        return self.launch

    def scores(self, plan: Mapping[str, Any], grids: Grids) -> dict[str, dict[float, list[float]]]:
        """Loss, or share of wrong answers, per cell, factor, seed; infinite where it diverged."""
        outcome, metric = self.suite.statistics.outcome, self.suite.statistics.metric
        by_name = {(entry["cell"], entry["seed"]): entry for entry in plan["cells"]}

        def loss(name: str, factor: float, seed: int) -> float:
            entry = by_name[at_factor(self.cells[name], factor, 1.0).name, seed]
            test = (RunFolder(self.folder / entry["folder"]).final() or {}).get("test")
            if not test:
                return math.inf
            found = float(test[outcome][metric])
            return found if metric == "loss" else 1 - found

        return {
            name: {
                factor: [loss(name, factor, seed) for seed in self.tuning.seeds]
                for factor in factors
            }
            for name, factors in grids.items()
        }

    def record(
        self,
        plan: Mapping[str, Any],
        grids: Grids,
        scores: Mapping[str, Mapping[float, list[float]]],
    ) -> dict[str, Any]:
        """The scale's entry in the committed file."""
        first = self.tuning.seeds[0]
        steps = {entry["cell"]: entry["steps"] for entry in plan["cells"] if entry["seed"] == first}
        found = {}
        for name, cell in self.cells.items():
            chosen = best(scores[name])
            found[name] = {
                "axes": cell.axes,
                "steps": steps[at_factor(cell, 1.0, 1.0).name],
                "factor": chosen,
                "inside": chosen not in (min(grids[name]), max(grids[name])),
                # Nothing but numbers is JSON: a diverged run has none.
                "losses": {
                    f"{factor:g}": [loss if math.isfinite(loss) else None for loss in losses]
                    for factor, losses in scores[name].items()
                },
            }
        return {
            "inputs": tuned.digest(self.suite, self.scale),
            "key": self.tuning.key,
            "seeds": list(self.tuning.seeds),
            "outcome": tuned.scored(self.suite),
            "cells": found,
        }

    def interrupted(self, stop: Interrupted) -> int:
        """Say what is left of the round."""
        assert self.launch is not None
        return self.launch.interrupted(stop)

    def close(self) -> None:
        """End the workers."""
        if self.launch is not None:
            self.launch.close()


def at_factor(cell: Cell, factor: float, anchor: float) -> Cell:
    """A cell at one factor; a twin's relation names cells at the `anchor`, which are always run."""
    twin = cell.twin
    if twin is not None:
        twin = TwinOf(twin.match, f"{twin.of}@{anchor:g}x", f"{twin.as_}@{anchor:g}x")
    return replace(
        cell,
        name=f"{cell.name}@{factor:g}x",
        overrides={**cell.overrides, **tuned.SCORING},
        twin=twin,
        factor=factor,
    )


def best(scores: Mapping[float, list[float]]) -> float:
    """The factor with the lowest mean; the lower one of two alike."""
    return min(scores, key=lambda factor: (sum(scores[factor]), factor))


def extended(
    grids: Grids,
    scores: Mapping[str, Mapping[float, list[float]]],
    declared: tuple[float, ...],
) -> Grids:
    """The grids with one more factor beyond the edge where a cell's best lies there."""
    low, high = declared[1] / declared[0], declared[-1] / declared[-2]
    wider = {}
    for name, factors in grids.items():
        chosen, ordered = best(scores[name]), sorted(factors)
        if chosen == ordered[0] and ordered[0] > declared[0] / low**FURTHEST:
            ordered.insert(0, ordered[0] / low)
        elif chosen == ordered[-1] and ordered[-1] < declared[-1] * high**FURTHEST:
            ordered.append(ordered[-1] * high)
        wider[name] = ordered
    return wider
