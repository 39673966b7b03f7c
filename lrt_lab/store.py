"""The run store: what lies in a run's folder, and what may be concluded from it.

A run's identity is the hash of its canonical resolved config, and its state is *derived* from the
files that are there (never stored), so that a process killed at any moment leaves nothing that
could contradict the truth:

    DONE                            -> done        (written last, by rename)
    lock held by a living process   -> running     (the kernel drops it, also on SIGKILL)
    failed.json                     -> failed      (removed when the run is tried again)
    checkpoints/last.ckpt           -> resumable
    none of these                   -> pending

The lock is `flock`, which is reliable on local file systems; on NFS no two machines may work on one
suite at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lrt_lab.errors import UserError

State = Literal["done", "running", "failed", "resumable", "pending"]

DONE, LOCK, FAILED, FINAL, META = "DONE", "lock", "failed.json", "final.json", "meta.json"
METRICS, STDOUT, CHECKPOINT = "metrics.jsonl", "stdout.log", "checkpoints/last.ckpt"
DEPTH, CONTRACTION = "depth.jsonl", "contraction.jsonl"


class RunLocked(RuntimeError):
    """Another living process works on this run."""


def canonical(config: Any) -> str:
    """One text per config: JSON with sorted keys, no spaces, and no value that JSON cannot say."""
    return json.dumps(
        config, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def config_hash(config: Any) -> str:
    """sha256 (64 hex digits) of the canonical config; folder names carry the first ten."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()


def folder_name(seed: int, digest: str) -> str:
    """The last part of a run's path: readable (the seed) and exact (the hash)."""
    return f"seed-{seed}-{digest[:10]}"


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none of it: a temporary name in the same folder, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of indented JSON; NaN and infinities are refused: they are not JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The file's value, or None where there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """One object a line; a last line that a kill cut short is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    *whole, _cut = text.split("\n")
    return [json.loads(line) for line in whole if line]


@dataclass(frozen=True)
class RunFolder:
    """One run's folder, `runs/<suite>/<scale>/<cell>/seed-<k>-<hash10>/`; it need not exist yet."""

    path: Path

    @property
    def done(self) -> bool:
        """Whether the run is finished (diverged counts: it is a result)."""
        return (self.path / DONE).exists()

    @property
    def checkpoint(self) -> Path:
        """Where training leaves the state that a cut run goes on from."""
        return self.path / CHECKPOINT

    @property
    def stdout(self) -> Path:
        """Everything that libraries printed while the run was worked on."""
        return self.path / STDOUT

    @contextmanager
    def lock(self, wait: float = 2.0) -> Iterator[None]:
        """Hold the run for as long as the block lasts; `RunLocked` if another process holds it.

        `wait` (seconds) bridges the instants in which `held` looks at the lock, and a killed
        process that is going away.

        Raises:
            UserError: a folder that cannot be made or written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            opened = (self.path / LOCK).open("a")
        except OSError as error:
            raise UserError(
                f"run folder {self.path} cannot be made or written to ({error.strerror}): choose"
                " another, or make it first"
            ) from None
        with opened as file:
            deadline = time.monotonic() + wait
            while not _flock(file.fileno()):
                if time.monotonic() > deadline:
                    raise RunLocked(f"{self.path} is locked by another process")
                time.sleep(0.02)
            yield

    def held(self) -> bool:
        """Whether a living process holds the lock."""
        try:
            file = (self.path / LOCK).open("r+")
        except FileNotFoundError:
            return False
        with file:
            return not _flock(file.fileno())

    def state(self) -> State:
        """The run's state, from its files alone."""
        if self.done:
            return "done"
        if self.held():
            # It may have finished between the two looks.
            return "done" if self.done else "running"
        if (self.path / FAILED).exists():
            return "failed"
        return "resumable" if self.checkpoint.exists() else "pending"

    def holds_results(self) -> bool:
        """Whether there is anything here that a later run could be mixed with or could lose."""
        files = (DONE, FINAL, METRICS)
        return (
            any((self.path / name).exists() for name in files)
            or self.checkpoint.exists()
            or self.held()
        )

    def fail(self, error: str) -> None:
        """Leave the one line that says why the run did not finish."""
        write_json(self.path / FAILED, {"error": error})

    def clear_failure(self) -> None:
        """Forget an earlier failure, because the run is being tried again."""
        (self.path / FAILED).unlink(missing_ok=True)

    def failure(self) -> str | None:
        """Why the run failed, or None."""
        found = read_json(self.path / FAILED)
        return None if found is None else str(found["error"])

    def final(self) -> dict[str, Any] | None:
        """The evaluation's record (`final.json`), or None before it is written."""
        return read_json(self.path / FINAL)

    def meta(self) -> dict[str, Any] | None:
        """What ran, on what, from which code (`meta.json`)."""
        return read_json(self.path / META)

    def metrics(self) -> list[dict[str, Any]]:
        """The training record (`metrics.jsonl`) in step order."""
        return read_jsonl(self.path / METRICS)


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
