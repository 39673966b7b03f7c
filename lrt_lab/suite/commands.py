"""`lrt-lab suite run | tune | status | report`. Torch is imported by the workers alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lrt_lab.console import console
from lrt_lab.errors import UserError
from lrt_lab.suite import expansion, tuned
from lrt_lab.suite import plan as plans
from lrt_lab.suite.checks import require_known
from lrt_lab.suite.declaration import Scale, Suite, load
from lrt_lab.suite.interrupt import Interrupted, interruptible
from lrt_lab.suite.launch import Launch
from lrt_lab.suite.reports import write_report
from lrt_lab.suite.scaling import promise
from lrt_lab.suite.show import print_status
from lrt_lab.suite.tune import Tuner
from lrt_lab.suite.workers import BACKEND, WorkerError, default_jobs


def run(
    suite: str,
    scale: str = "quick",
    jobs: int | None = None,
    dry_run: bool = False,
    runs: str = "runs",
    reports: str = "reports",
    only: list[str] | str | None = None,
) -> int:
    """Run every cell of a suite on every seed, then write the report.

    Finished runs are skipped, cut ones resumed, failed ones tried again. The exit code is 0 when
    all runs are finished, 1 when any failed, 2 when something given cannot be used.

    Args:
        suite: The suite file, such as experiments/h1.yaml.
        scale: One of the scales that the suite file declares.
        jobs: Runs at a time, each in its own process; null is one per GPU, or one without a GPU.
        dry_run: Only show what each cell costs; needs no data and writes nothing.
        runs: Folder of the runs.
        reports: Folder of the reports.
        only: Names of cells, with commas between them; run these and leave the rest for later.
    """
    names = only.split(",") if isinstance(only, str) else only
    return execute(suite, scale, jobs, dry_run, runs, reports, names)


def plan(suite: str, scale: str = "quick", jobs: int | None = None, runs: str = "runs") -> int:
    """Show what a suite costs, and what its scaling law could tell, before any run.

    Expected standard errors and the condition number come from the design alone; a design that
    cannot be fitted is refused.

    Args:
        suite: The suite file; it declares 'scaling'.
        scale: One of its scales.
        jobs: Processes that price cells.
        runs: Folder of the runs.
    """
    return execute_plan(suite, scale, jobs, runs)


def execute_plan(
    suite: str, scale: str, jobs: int | None, runs: str, backend: str = BACKEND
) -> int:
    """`plan`, with the module that the workers take `resolve` from."""
    declared, chosen = _load(suite, scale)
    if declared.scaling is None:
        raise UserError(
            f"{suite} declares no 'scaling', so no law is planned; `suite run --dry-run` shows "
            "what it costs"
        )
    section = declared.scaling
    folder = plans.home(declared, chosen, Path(runs))
    choices = choices_of(declared, chosen, True)
    lab = Launch(declared, chosen, folder, jobs or default_jobs(), backend, choices=choices)

    def show() -> int:
        said = promise(lab.dry_run(), section, len(chosen.seeds))
        console().print(said, markup=False)
        return 0

    return _session(lab, show, False)


def status(suite: str, scale: str = "quick", runs: str = "runs") -> int:
    """Show the state of every run of a suite, and what the suite itself costs on top of training.

    Args:
        suite: The suite file.
        scale: One of its scales.
        runs: Folder of the runs.
    """
    declared, chosen = _load(suite, scale)
    folder = plans.home(declared, chosen, Path(runs))
    plan = plans.written(declared, chosen, folder)
    _warn_if_changed(declared, plan)
    print_status(declared, plan, folder)
    return 0


def report(suite: str, scale: str = "quick", runs: str = "runs", reports: str = "reports") -> int:
    """Write the report of a suite from the runs that are finished; it says what is missing.

    Args:
        suite: The suite file.
        scale: One of its scales.
        runs: Folder of the runs.
        reports: Folder of the reports.
    """
    declared, chosen = _load(suite, scale)
    folder = plans.home(declared, chosen, Path(runs))
    plan = plans.written(declared, chosen, folder)
    _warn_if_changed(declared, plan)
    plans.refreeze(plan, declared, folder)
    path = write_report(plan, folder, Path(reports), declared.path)
    console().print(f"report: {path}", markup=False)
    return 0


def execute(
    suite: str,
    scale: str,
    jobs: int | None = None,
    dry_run: bool = False,
    runs: str = "runs",
    reports: str = "reports",
    only: list[str] | None = None,
    backend: str = BACKEND,
) -> int:
    """`run`, with the module that the workers take `resolve` and `train` from."""
    began = time.monotonic()
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs is {jobs}; it is the number of runs at a time, at least 1.")
    declared, chosen = _load(suite, scale)
    if only is not None:
        names = [cell.name for cell in expansion.cells(declared, chosen)]
        require_known("cell", only, names, "--only")
    folder = plans.home(declared, chosen, Path(runs))
    choices = choices_of(declared, chosen, dry_run)
    lab = Launch(declared, chosen, folder, jobs or default_jobs(), backend, choices=choices)
    return _session(lab, lambda: lab.work(Path(reports), only, began), dry_run)


def choices_of(suite: Suite, scale: Scale, dry_run: bool) -> tuned.Tuned | None:
    """What tuning chose; a dry run does without, since no cost depends on it."""
    try:
        return tuned.load(suite, scale)
    except UserError as error:
        if not dry_run:
            raise
        console().print(f"note: {error}", markup=False)
        return None


def tune(
    suite: str,
    scale: str = "quick",
    jobs: int | None = None,
    dry_run: bool = False,
    runs: str = "runs",
) -> int:
    """Tune the cells of a suite on its tuning seeds, and write the choices beside the suite file.

    Goes on where it was cut. What is written belongs under version control: `suite run` reads it,
    and refuses it when the cells have changed since.

    Args:
        suite: The suite file.
        scale: One of its scales.
        jobs: Runs at a time; null is one per GPU, or one without a GPU.
        dry_run: Only show what the first round costs.
        runs: Folder of the runs.
    """
    return execute_tuning(suite, scale, jobs, dry_run, runs)


def execute_tuning(
    suite: str,
    scale: str,
    jobs: int | None = None,
    dry_run: bool = False,
    runs: str = "runs",
    backend: str = BACKEND,
) -> int:
    """`tune`, with the module that the workers take `resolve` and `train` from."""
    began = time.monotonic()
    declared, chosen = _load(suite, scale)
    if declared.tuning is None or not chosen.tuned:
        raise UserError(
            f"{suite} tunes nothing at scale {scale}: there is no 'tuning', or it is off"
        )
    tuner = Tuner(declared, chosen, Path(runs), jobs or default_jobs(), backend)
    return _session(tuner, lambda: tuner.work(began), dry_run)


def _session(lab: Launch | Tuner, work: Callable[[], int], dry_run: bool) -> int:
    """Work, and end in order whatever happens."""
    with interruptible():
        try:
            if dry_run:
                lab.dry_run()
                return 0
            return work()
        except Interrupted as stop:
            lab.close()
            return lab.interrupted(stop)
        except WorkerError as error:
            console().print(f"suite stopped: {error}", style="red", markup=False)
            return 1
        finally:
            lab.close()


def _load(suite: str, scale: str) -> tuple[Suite, Scale]:
    declared = load(Path(suite))
    expansion.require_cells(declared)
    return declared, declared.scale(scale)


def _warn_if_changed(suite: Suite, plan: dict[str, object]) -> None:
    if plan["suite_hash"] != suite.sha256:
        console().print(
            f"note: {suite.path} has changed since these runs were planned; "
            "what follows is the plan that they were started from",
            markup=False,
        )
