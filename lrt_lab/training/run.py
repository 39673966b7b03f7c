"""One run from a config to a verdict-ready record: price it, train or resume it, evaluate it.

A run's folder holds everything about it; ``DONE`` is written last, so a process killed at any
moment leaves a folder from which the same call goes on.
"""

from __future__ import annotations

import copy
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from lrt_lab import __version__
from lrt_lab.errors import UserError
from lrt_lab.store import (
    CONTRACTION,
    DEPTH,
    DONE,
    FINAL,
    META,
    METRICS,
    RunFolder,
    config_hash,
    read_json,
    write_json,
    write_text,
)
from lrt_lab.training import clock
from lrt_lab.training.callbacks import Contraction, Depth, Heartbeat, Record, Throughput
from lrt_lab.training.evaluate import evaluate
from lrt_lab.training.lab_cli import LabCLI
from lrt_lab.training.meter import Cost, measure

#: Trainer options that change what is learnt; the others say where and how a run is shown.
IDENTITY = (
    "max_steps",
    "precision",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "accumulate_grad_batches",
)
#: Model options that do not: the seed has a place of its own, and how memory is saved is no matter.
INCIDENTAL = ("seed", "recompute")
#: Switches of an experiment: where nothing is switched off they are no part of a run's identity.
SWITCHES = {"attend": "all", "depth": "all"}
#: What was priced before in this process; a suite asks for the same cells over and over.
PRICES: dict[str, Cost] = {}
#: Sequences, at most, that are decoded side by side when a run's use is timed.
SIDE_BY_SIDE = 16
Progress = Callable[[dict[str, Any]], None]


class Run:
    """A parsed config, and what follows from it before anything is trained."""

    def __init__(self, config: list[str] | Mapping[str, Any]) -> None:
        self.cli = LabCLI(config if isinstance(config, list) else copy.deepcopy(dict(config)))
        parsed = self.cli.config.as_dict()
        self.steps = parsed["trainer"]["max_steps"]
        if self.steps is None or self.steps < 1:
            raise UserError(f"trainer.max_steps={self.steps}: give the number of steps, at least 1")
        require_one_device(parsed["trainer"])
        self.folder: str | None = parsed["folder"]
        self.threads: int = parsed["threads"]
        self.config = canonical_config(parsed)
        self.hash = config_hash(self.config)

    def price(self) -> Cost:
        """What it costs, from the meter; takes no data."""
        # Neither seed, steps nor learning rate change the cost of a token.
        model = {key: value for key, value in self.config["model"].items() if key != "optimizer"}
        name = config_hash([model, self.length])
        if name not in PRICES:
            with torch.device("meta"):
                module, _ = self.cli.build()
            PRICES[name] = measure(module.decoder, module.schedule, self.length)
        return PRICES[name]

    @property
    def length(self) -> int:
        """Positions per row of the data."""
        return self.cli.data.length

    @property
    def tokens_per_step(self) -> int:
        """Positions that one optimizer step trains on."""
        micros = self.config["trainer"]["accumulate_grad_batches"]
        return self.cli.data.batch_size * self.length * micros


def require_one_device(trainer: Mapping[str, Any]) -> None:
    """A run's rows, records and clocks are those of one process on one device."""
    devices, nodes, strategy = (trainer[key] for key in ("devices", "num_nodes", "strategy"))
    one = devices in (1, "1") or (isinstance(devices, list) and len(devices) == 1)
    if not one or nodes != 1 or strategy != "auto":
        raise UserError(
            f"trainer.devices={devices}, num_nodes={nodes}, strategy={strategy}: a run trains on"
            " one device; give devices=1 (or [2] for that GPU), one node and strategy=auto. A"
            " suite uses several devices at once, a cell on each"
        )


def canonical_config(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a run's numbers, and nothing else: the basis of its identity."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(inner) for key, inner in value.items()}
        return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    model = {
        key: value
        for key, value in parsed["model"].items()
        if key not in INCIDENTAL and SWITCHES.get(key, ()) != value
    }
    given = parsed["data"]["init_args"]
    options = {key: value for key, value in given.items() if key != "seed"}
    data = {"class_path": parsed["data"]["class_path"], "init_args": options}
    return plain(
        {
            "seed": parsed["seed"],
            "threads": parsed["threads"],
            "model": model,
            "data": data,
            "trainer": {key: parsed["trainer"][key] for key in IDENTITY},
            "evaluation": parsed["evaluation"],
            "recording": {"log_every": parsed["recording"]["log_every"]},
        }
    )


def resolve(config: list[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Check and price a config, without data: canonical form, hash, parameters, tokens, FLOPs.

    Raises:
        UserError: a part, an option or a value that cannot be used.
    """
    run = Run(config)
    cost = run.price()
    per_step = run.tokens_per_step * cost.train_flops_per_token
    return {
        "config": run.config,
        "hash": run.hash,
        "parameters": cost.parameters(),
        "passes": cost.passes,
        "decode_flops_per_token": cost.decode_flops_per_token,
        "cost": cost.summary(),
        "steps": run.steps,
        "tokens": run.steps * run.tokens_per_step,
        "tokens_per_step": run.tokens_per_step,
        "train_flops": round(run.steps * per_step),
        "train_flops_per_step": round(per_step),
    }


def seconds_per_step(config: Mapping[str, Any]) -> float:
    """A measured training step of a config, on this machine and without its data."""
    run = Run(config)
    torch.set_num_threads(run.threads)
    module, _ = run.cli.build()
    trainer = run.config["trainer"]
    return clock.seconds_per_step(
        module,
        run.cli.data.batch_size,
        run.length,
        trainer["accumulate_grad_batches"],
        trainer["precision"],
    )


def train(
    config: list[str] | Mapping[str, Any],
    folder: Path,
    about: Mapping[str, Any],
    progress: Progress = lambda _: None,
    callbacks: tuple[Callback, ...] = (),
    bar: bool = False,
) -> None:
    """Train (or resume) and evaluate a run, leaving its complete record in ``folder``.

    Args:
        config: nested options, or command-line arguments.
        folder: the run's folder.
        about: which suite, cell and seed this is, for ``meta.json``.
        progress: told the phase, step, number of steps and loss about once a second.
        callbacks: further Lightning callbacks.
        bar: show Lightning's progress bar.

    Raises:
        UserError: bad config, or a folder that belongs to another config.
    """
    run = Run(config)
    store = RunFolder(folder)
    claim(folder, run)
    if store.done:
        return
    torch.set_num_threads(run.threads)
    cost = run.price()
    module, data = run.cli.build()
    data.prepare_data()
    options = run.cli.config
    write_json(folder / META, meta(run, cost, data.identity(), about))
    evaluation = options["evaluation"]
    validation = (
        data.slices("validation", data.size("validation")) if evaluation["validate_every"] else None
    )
    record = Record(
        folder / METRICS,
        options["recording"]["log_every"],
        evaluation["validate_every"],
        validation,
        cost.train_flops_per_token,
    )
    throughput = Throughput(options["recording"]["log_every"], record, cost.train_flops_per_token)
    diagnoses = [
        kind(folder / name, every, data.slices("validation", data.size("validation")), record)
        for kind, name, every in (
            (Depth, DEPTH, options["recording"]["depth_every"]),
            (Contraction, CONTRACTION, options["recording"]["contraction_every"]),
        )
        if every
    ]
    checkpoints = ModelCheckpoint(
        dirpath=folder / "checkpoints",
        filename="last",
        every_n_train_steps=options["recording"]["checkpoint_every"],
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    trainer = run.cli.instantiate_trainer(
        default_root_dir=str(folder),
        callbacks=[Heartbeat(progress), throughput, record, *diagnoses, checkpoints, *callbacks],
        logger=TensorBoardLogger(folder, name="", version="tensorboard")
        if options["recording"]["tensorboard"]
        else False,
        enable_progress_bar=bar,
        enable_model_summary=False,
        log_every_n_steps=options["recording"]["log_every"],
    )
    last = store.checkpoint
    trainer.fit(module, data.train_dataloader(), ckpt_path=str(last) if last.exists() else None)
    if trainer.global_step < run.steps and not record.diverged:
        # Lightning returns quietly after SIGTERM; the run is then cut, not finished.
        raise InterruptedError(f"training stopped at step {trainer.global_step} of {run.steps}")
    record.throughput = throughput.summary()
    finish(run, folder, module, data, record, cost, trainer.global_step, progress)


def finish(
    run: Run,
    folder: Path,
    module: Any,
    data: Any,
    record: Record,
    cost: Cost,
    step: int,
    progress: Progress,
) -> None:
    """Evaluate and write ``final.json``, then ``DONE``."""
    seconds = record.seconds - record.validation_seconds
    final: dict[str, Any] = {
        "status": "finished",
        "steps": step,
        "tokens": record.tokens,
        "train_flops": round(record.tokens * cost.train_flops_per_token),
        "train_seconds": round(seconds, 3),
        "tokens_per_second": round(record.tokens / seconds, 1) if seconds else None,
        "parameters": cost.parameters(),
        "passes": cost.passes,
        "cost": cost.summary(),
        "throughput": record.throughput,
    }
    began = time.monotonic()
    beat = {"phase": "evaluate", "step": step, "steps": run.steps, "loss": record.last_finite}
    progress(beat)
    if record.diverged:
        final |= {
            "status": "diverged",
            "test": None,
            "curve": None,
            "last_finite_loss": record.last_finite,
        }
    else:
        options = run.cli.config["evaluation"]
        size, part = options["curve_bytes"], options["part"]
        test = data.slices(part, data.size(part))
        final |= evaluate(
            module.decoder,
            module.schedule,
            test,
            data.slices(part, size) if size and test.bytes else None,
            options["curve_passes"],
            lambda _: progress(beat),
            data.longer(part),
        )
        if not math.isfinite(final["test"]["exact"]["loss"]):
            final |= {"status": "diverged", "test": None, "curve": None}
            final["last_finite_loss"] = record.last_finite
        rows = min(run.cli.data.batch_size, SIDE_BY_SIDE)
        used = clock.use_speed(module.decoder, rows, run.length)
        final["throughput"] |= {name: round(speed, 1) for name, speed in used.items()}
    spent = time.monotonic() - began
    final["eval_seconds"] = round(spent + record.validation_seconds, 3)
    write_json(folder / FINAL, final)
    write_text(folder / DONE, "")
    progress({**beat, "phase": "done"})


def claim(folder: Path, run: Run) -> None:
    """Make the folder this run's, or refuse it."""
    refuse_foreign(folder, run)
    write_text(folder / "config.yaml", yaml.safe_dump(run.config, sort_keys=False))


def refuse_foreign(folder: Path, run: Run) -> None:
    """Refuse a folder with another config's results in it."""
    known = read_json(folder / META)
    if known is not None and known["config_hash"] != run.hash:
        raise UserError(
            f"{folder} belongs to another config (its hash is {known['config_hash'][:10]}, "
            f"this one's {run.hash[:10]}): choose another folder, or move or delete this one"
        )


def meta(run: Run, cost: Cost, data: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything needed to trust or repeat the run."""
    packages = ("torch", "lightning", "litdata", "numpy")
    gpu = torch.cuda.is_available()
    return {
        **about,
        "config_hash": run.hash,
        "git": git_state(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
            "lrt_lab": __version__,
        },
        "machine": {
            "cpu": cpu_name(),
            "threads": run.threads,
            "device": torch.cuda.get_device_name() if gpu else "cpu",
        },
        "data": dict(data),
        "parameters": cost.parameters(),
        "cost": cost.as_dict(),
        "train_flops_per_step": round(run.tokens_per_step * cost.train_flops_per_token),
        "tokens_per_step": run.tokens_per_step,
    }


def git_state() -> dict[str, Any]:
    """Commit of the working tree and whether it has uncommitted changes; null outside git."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *args],
                capture_output=True,
                text=True,
                check=True,
                cwd=Path(__file__).parent,
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(git("status", "--porcelain")) if commit else False}


def cpu_name() -> str:
    """The processor's model, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"
