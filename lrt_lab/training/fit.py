"""`lrt-lab fit`: one cell from the command line."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, RichProgressBar

from lrt_lab.console import console
from lrt_lab.errors import UserError
from lrt_lab.store import FINAL, RunFolder, RunLocked
from lrt_lab.training.run import Run, refuse_foreign, train


class Lines:
    """Plain progress lines: each new phase, and within one at most a line every few seconds.

    Args:
        every: seconds between two lines of a phase; infinite where a bar shows the steps.
    """

    def __init__(self, every: float) -> None:
        self.every, self.last, self.phase = every, 0.0, ""

    def __call__(self, beat: dict[str, Any]) -> None:
        now = time.monotonic()
        if beat["phase"] == self.phase and now - self.last < self.every:
            return
        self.last, self.phase = now, beat["phase"]
        loss = "" if beat["loss"] is None else f" loss {beat['loss']:.4f}"
        console().print(f"{beat['phase']} step {beat['step']}/{beat['steps']}{loss}")


def fit(args: list[str]) -> int:
    """Parse, train or resume, evaluate, and say what came out.

    Raises:
        UserError: a bad config, or a folder that cannot be this run's now.
    """
    run = Run(args)
    folder = Path(run.folder or Path("runs/fit") / run.hash[:10])
    # SIGTERM stops like Ctrl-C: at once, without a checkpoint in the middle of a batch.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = console()
    terminal = out.is_terminal
    bars: tuple[Callback, ...] = (RichProgressBar(),) if terminal else ()
    # What can be refused at once is, before anything is built.
    refuse_foreign(folder, run)
    cost = run.price()
    tokens = run.steps * run.tokens_per_step
    passes = f"{cost.passes:g} pass" + ("" if cost.passes == 1 else "es")
    out.print(
        f"{folder}: {cost.total:,} parameters, {run.steps} steps of {run.tokens_per_step:,} "
        f"tokens, {passes}, {tokens * cost.train_flops_per_token:.3g} FLOPs"
    )
    about = {"suite": None, "scale": None, "cell": None, "seed": run.config["seed"], "axes": {}}
    try:
        with RunFolder(folder).lock():
            train(args, folder, about, Lines(math.inf if terminal else 10), bars, terminal)
    except RunLocked as locked:
        raise UserError(f"{locked}: wait for it, or choose another folder") from None
    # Lightning turns Ctrl-C into an exit.
    except (KeyboardInterrupt, SystemExit):
        print(
            "lrt-lab: stopped; the same command goes on from the last checkpoint", file=sys.stderr
        )
        return 130
    final = json.loads((folder / FINAL).read_text())
    if final["status"] == "diverged":
        out.print(f"diverged; last finite loss {final['last_finite_loss']}")
        return 0
    test = final["test"]
    if "rows" in test:
        for place, found in ((f"{test['rows']} rows", test), ("twice as long", test["longer"])):
            exact, last = (found[pass_]["last_accuracy"] for pass_ in ("exact", "last_pass"))
            out.print(
                f"test accuracy at the last position, {place}: exact recurrence {exact:.3f}, "
                f"last training pass {last:.3f}"
            )
        return 0
    out.print(
        f"test bits per byte: exact recurrence {test['exact']['bpb']:.4f}, "
        f"last training pass {test['last_pass']['bpb']:.4f} ({test['bytes']:,} bytes); "
        f"{final['tokens_per_second']:,.0f} tokens/s"
    )
    return 0
