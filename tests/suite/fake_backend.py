"""A stand-in for `lrt_lab.training.run`: trains in milliseconds, misbehaves on request.

`model.mood` in a config says how: crash, raise, user_error, hang, diverge. A mood holds while the
file that FAKE_HEAL names does not exist, so that a test can mend a cell and start the suite again.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.store import config_hash, write_json, write_text

TOKENS_PER_STEP = 10
BEST_RATE = 0.012
# The rate of most right answers is another one, as it can be.
BEST_ANSWERS = 0.006
FLOPS_PER_STEP = {"PreNorm": 100, "AttentionResiduals": 130}
ROUTE_FACTOR = {"NoRoute": 1.0, "LRT": 2.1}


def resolve(config: dict[str, Any]) -> dict[str, Any]:
    """Price a config; counts its calls in FAKE_CALLS."""
    model = config["model"]
    if model["backbone"] not in FLOPS_PER_STEP:
        raise UserError(f"unknown backbone '{model['backbone']}'")
    if calls := os.environ.get("FAKE_CALLS"):
        with open(calls, "a") as file:
            file.write("resolve\n")
    time.sleep(model.get("price_seconds", 0.0))
    steps = config["trainer"]["max_steps"]
    per_step = int(FLOPS_PER_STEP[model["backbone"]] * ROUTE_FACTOR[model["route"]])
    widths = model.get("ffn", {}).get("init_args", {}).get("hidden", [4, 4])
    widths = [widths] * 2 if isinstance(widths, int) else widths
    routed = model.get("adds", 24) if model["route"] == "LRT" else 0
    dense = 900 + 16 * sum(widths) + routed
    return {
        "config": {**config, "model": {"blocks": 2, **model}},
        "hash": config_hash(config),
        "parameters": {
            "total": dense + 100,
            "matmul": 1000,
            "dense": dense,
            "queries": 60,
            "tables": 40,
        },
        "decode_flops_per_token": 2000 + 32 * sum(widths) + 2 * routed,
        "cost": {
            "passes": 2.0 if routed else 1.0,
            "train_flops_per_token": per_step / TOKENS_PER_STEP,
            "decode_flops_per_token": 2000 + 32 * sum(widths) + 2 * routed,
            "saved_bytes_per_token": 512.0,
            "state_bytes": 4096,
            "decode_bytes_per_token": 8096.0,
        },
        "tokens": steps * TOKENS_PER_STEP,
        "steps": steps,
        "train_flops": steps * per_step,
        "tokens_per_step": TOKENS_PER_STEP,
        "train_flops_per_step": per_step,
    }


def seconds_per_step(config: dict[str, Any]) -> float:
    """Seconds: LRT three times as slow, which its FLOPs do not say."""
    return 0.3 if config["model"]["route"] == "LRT" else 0.1


def measured_rate() -> float:
    """FLOP/s."""
    return 1e6


def train(
    config: dict[str, Any],
    folder: Path,
    about: dict[str, Any],
    progress: Callable[[dict[str, Any]], None],
) -> None:
    """'Train' with a checkpoint after every step, so that a resumed run shows where it went on."""
    priced = resolve(config)
    print("from Python")
    subprocess.run(["echo", "from another program"], check=True)
    mood = config["model"].get("mood", "")
    if mood and Path(os.environ.get("FAKE_HEAL", "/nowhere")).exists():
        mood = ""
    checkpoint = folder / "checkpoints" / "last.ckpt"
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    steps = priced["steps"]
    meta = {**about, "config_hash": priced["hash"], "pid": os.getpid(), "first_step": first}
    meta["part"] = config.get("evaluation", {}).get("part", "test")
    write_json(folder / "meta.json", meta)
    for step in range(first + 1, steps + 1):
        time.sleep(config["model"].get("step_seconds", 0.0))
        if step == 3 and mood:
            misbehave(mood)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "tokens": step * 10, "train/loss": 2.0}) + "\n")
        write_text(checkpoint, str(step))
        progress({"phase": "train", "step": step, "steps": steps, "loss": 2.0})
    rate = config["model"].get("optimizer", {}).get("lr", BEST_RATE)
    loss = {
        "loss": 2.0 + config["seed"] / 100 + abs(math.log(rate / BEST_RATE)),
        "bpb": 3.0,
        "last_accuracy": math.exp(-abs(math.log(rate / BEST_ANSWERS))),
    }
    diverged = mood == "diverge"
    final = {
        "status": "diverged" if diverged else "finished",
        "steps": steps,
        "tokens": priced["tokens"],
        "train_flops": priced["train_flops"],
        "train_seconds": 1.0,
        "eval_seconds": 0.25,
        "test": None if diverged else {"exact": loss, "last_pass": loss},
    }
    write_json(folder / "final.json", final)
    write_text(folder / "DONE", "")
    progress({"phase": "done", "step": steps, "steps": steps, "loss": 2.0})


def misbehave(mood: str) -> None:
    """What goes wrong in real life."""
    if mood == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if mood == "raise":
        raise RuntimeError("the device\nfell over")
    if mood == "user_error":
        raise UserError("corpus 'x' is not prepared; run lrt-lab prepare")
    if mood == "hang":
        time.sleep(600)
