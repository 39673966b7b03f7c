"""One session of a suite: plan, run what is not finished, report, and end in order when cut."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lrt_lab.console import console
from lrt_lab.errors import UserError
from lrt_lab.store import RunFolder
from lrt_lab.suite import expansion
from lrt_lab.suite import plan as plans
from lrt_lab.suite.declaration import Scale, Suite
from lrt_lab.suite.estimate import estimate, from_finished
from lrt_lab.suite.interrupt import Interrupted
from lrt_lab.suite.pricing import Pricing
from lrt_lab.suite.reports import require_family, write_report
from lrt_lab.suite.runner import Outcome, Runner
from lrt_lab.suite.sessions import Session, overhead
from lrt_lab.suite.show import print_dry_run
from lrt_lab.suite.table import Board, view
from lrt_lab.suite.tuned import Tuned
from lrt_lab.suite.words import count, duration
from lrt_lab.suite.workers import Pool


class Launch:
    """One session on one suite and scale; its workers start when they are first needed.

    Args:
        suite: the suite.
        scale: one of its scales.
        folder: of the runs.
        jobs: runs at a time.
        backend: the module that the workers take `resolve` and `train` from.
        runs: what to run, not to be reported; None is all that the suite declares.
        choices: what tuning chose.
        scored: the slice that finished runs are scored on.
    """

    def __init__(
        self,
        suite: Suite,
        scale: Scale,
        folder: Path,
        jobs: int,
        backend: str,
        runs: list[expansion.Run] | None = None,
        choices: Tuned | None = None,
        scored: str = "test",
    ) -> None:
        self.suite, self.scale, self.folder, self.jobs = suite, scale, folder, jobs
        self._backend, self._scored = backend, scored
        wanted = expansion.runs(suite, scale) if runs is None else runs
        if choices is not None:
            wanted = [run for run in wanted if not choices.chose_default(run.cell)]
        self._wanted, self._reported = wanted, runs is None
        self._choices = choices
        self._pool: Pool | None = None
        self._plan: dict[str, Any] | None = None
        self._dry = False

    def dry_run(self) -> list[dict[str, Any]]:
        """Price the first seed of every cell and show it; returns those entries."""
        self._dry = True
        first = self.scale.seeds[0]
        plan = plans.cached(self.suite, self.scale, self.folder, self._wanted, self._choices)
        if plan is not None:
            entries = [entry for entry in plan["cells"] if entry["seed"] == first]
        else:
            wanted = [run for run in self._wanted if run.seed == first]
            entries = self._price(wanted, count(len(wanted), "cell"))
        seconds, source = estimate(entries, self.folder, self._rate)
        print_dry_run(self.suite, self.scale, entries, seconds, source, self.jobs)
        return entries

    @property
    def plan(self) -> dict[str, Any]:
        """The plan, made when it is first asked for."""
        return self._make_plan() if self._plan is None else self._plan

    def missing(self) -> int:
        """How many of the planned runs are not finished."""
        return sum(not RunFolder(self.folder / run["folder"]).done for run in self.plan["cells"])

    def work(self, reports: Path, only: list[str] | None, began: float) -> int:
        """Plan, run what is not finished, report."""
        code = self.finish_runs(only, began)
        missing = self.missing()
        if missing:
            console().print(
                f"{count(missing, 'run')} not finished, so no report yet; the same command tries "
                f"again, `lrt-lab suite report {self.suite.path} --scale {self.scale.name}` "
                "reports on the finished ones",
                markup=False,
            )
        else:
            path = write_report(self.plan, self.folder, reports, self.suite.path)
            console().print(f"report: {path}", markup=False)
        return code

    def finish_runs(self, only: list[str] | None, began: float) -> int:
        """Plan and run what is not finished; 1 if any failed."""
        plan = self.plan
        wanted = [entry for entry in plan["cells"] if only is None or entry["cell"] in only]
        todo = [entry for entry in wanted if not RunFolder(self.folder / entry["folder"]).done]
        out = console()
        out.print(
            f"{self.suite.name} at scale {self.scale.name}: {count(len(wanted), 'run')}, "
            f"{len(wanted) - len(todo)} finished before, {count(self.jobs, 'job')}",
            markup=False,
        )
        if plan["frozen"] is None:
            out.print(
                f"note: no commit holds {self.suite.path} as it is now, so the report cannot show "
                "that it was fixed before the runs",
                markup=False,
            )
        outcome = self._run(plan, todo, len(wanted) - len(todo), began) if todo else Outcome()
        if outcome.user_error is not None:
            raise UserError(outcome.user_error)
        for entry, error in outcome.failed:
            log = RunFolder(self.folder / entry["folder"]).stdout
            line = f"failed: {entry['cell']} seed {entry['seed']}: {error} (more in {log})"
            out.print(line, style="red", markup=False)
        return 1 if outcome.failed else 0

    def interrupted(self, stop: Interrupted) -> int:
        """Say what is left and how to go on."""
        if self._dry:
            console().print(f"stopped by {stop}; a dry run leaves nothing behind", markup=False)
            return stop.exit_code
        left = "before its plan was made"
        if self._plan is not None:
            states = [RunFolder(self.folder / run["folder"]).state() for run in self._plan["cells"]]
            begun = states.count("resumable")
            left = f"with {count(len(states) - states.count('done'), 'run')} left"
            left += f", {begun} of them with a checkpoint" if begun else ""
        line = f"stopped by {stop} {left}; the same command goes on from here"
        console().print(line, markup=False)
        return stop.exit_code

    def close(self) -> None:
        """End the workers at once; cut runs go on from their checkpoints."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _workers(self, at_most: int) -> Pool:
        if self._pool is None:
            self._pool = Pool(min(self.jobs, at_most), self._backend)
        self._pool.resize(min(self.jobs, at_most))
        return self._pool

    def _price(self, wanted: list[expansion.Run], what: str) -> list[dict[str, Any]]:
        told = Pricing(len(wanted), what)
        # Torch is imported while this process merges and hashes.
        self._workers(len(wanted))

        def ask(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
            requests = [{"config": one} for one in configs]
            return self._workers(len(configs)).map("resolve", requests, told.tick)

        # A dry run must not wait for steps of a model that this machine is too small for.
        clock = None if self._dry else self._clock
        return plans.price(self.suite, self.scale, wanted, ask, self._choices, clock)

    def _clock(self, configs: list[dict[str, Any]]) -> list[float]:
        console().print("timing training steps for a twin of equal wall-clock ...", markup=False)
        # One after the other in one process: what runs beside it would be measured too.
        pool = self._workers(1)
        return [float(pool.map("clock", [{"config": one}])[0]) for one in configs]

    def _rate(self) -> float:
        console().print("measuring the speed of this machine ...", markup=False)
        return float(self._workers(1).map("rate", [{}])[0])

    def _make_plan(self) -> dict[str, Any]:
        plan = plans.cached(self.suite, self.scale, self.folder, self._wanted, self._choices)
        if plan is None:
            entries = self._price(self._wanted, count(len(self._wanted), "run"))
            seconds, _ = estimate(entries, self.folder, self._rate)
            for entry, one in zip(entries, seconds, strict=True):
                entry["seconds"] = one
            plan = plans.build(self.suite, self.scale, entries, self._choices)
            if self._reported:
                require_family(plan)
            plans.refuse_to_mix(plan, self.folder)
            plans.write(plan, self.folder)
        else:
            plans.refreeze(plan, self.suite, self.folder)
            plans.refuse_to_mix(plan, self.folder)
        self._plan = plan
        return plan

    def _run(
        self, plan: dict[str, Any], todo: list[dict[str, Any]], done: int, began: float
    ) -> Outcome:
        seconds = from_finished(plan["cells"], self.folder)
        if seconds is not None:
            known = dict(zip((entry["folder"] for entry in plan["cells"]), seconds, strict=True))
            todo = [{**entry, "seconds": known[entry["folder"]]} for entry in todo]
        pool = self._workers(len(todo))
        by_name = {(run.cell.name, run.seed): run for run in self._wanted}

        def config(entry: dict[str, Any]) -> dict[str, Any]:
            steps = entry["steps"] if entry["twin"] else None
            declared = by_name[entry["cell"], entry["seed"]]
            changed = entry["twin"] or entry.get("matched")
            knob = changed["set"] if changed else None
            return plans.config_of(self.suite, self.scale, declared, steps, self._choices, knob)

        def about(entry: dict[str, Any]) -> dict[str, Any]:
            return {
                "suite": plan["suite"],
                "scale": plan["scale"],
                "cell": entry["cell"],
                "seed": entry["seed"],
                "axes": entry["axes"],
                "suite_hash": plan["suite_hash"],
                **({"matched": entry["matched"]} if entry.get("matched") else {}),
            }

        session = Session(self.folder, len(pool), began)
        board = Board(todo, done, len(pool))
        shown = view(board, console(), f"{plan['suite']} / {plan['scale']}", self._scored)
        try:
            outcome = Runner(pool, self.folder, shown, config, about, session.beat).run(todo)
        finally:
            shown.close()
            # Before anything is told: what is said here and what `status` reads must be one.
            session.end()
        cost = overhead(plan, self.folder)
        spent = f" in {duration(time.monotonic() - began)}"
        share = "" if cost is None else f"; suite overhead {cost.ratio:.1%} of training"
        console().print(f"{count(outcome.finished, 'run')} finished{spent}{share}", markup=False)
        return outcome
