"""The parent's side of the workers: start them, send requests, notice when they die."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lrt_lab.errors import UserError

BACKEND = "lrt_lab.training.run"


class WorkerError(RuntimeError):
    """A worker cannot work at all: its imports fail, or pricing raises."""


@dataclass
class Event:
    """Something that a worker said, or (`died`) that it is gone in the middle of a request."""

    worker: int
    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


@cache
def visible_gpus() -> list[str]:
    """The GPUs that workers may use, as CUDA_VISIBLE_DEVICES names them; found without torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(index) for index in range(len(re.findall(r"^GPU ", listed, re.MULTILINE)))]


def default_jobs() -> int:
    """One worker per GPU; one on a machine without."""
    return max(1, len(visible_gpus()))


class Worker:
    """One process in one slot; `busy` is the id of the request that it is working on."""

    def __init__(self, slot: int, backend: str) -> None:
        self.busy: int | None = None
        self.ready = False
        # It has reported an error after which it ends; its successor takes the next request.
        self.leaving = False
        self._buffer = b""
        # What it prints outside a run: read only to explain a death.
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lrt_lab.suite.worker", "--backend", backend]
            + ["--parent", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            env=_environment(slot),
            # Ctrl-C goes to the parent alone, which decides.
            start_new_session=True,
        )

    def send(self, request: dict[str, Any]) -> None:
        """Write one request; a worker that is already dead is noticed when its pipe is read."""
        assert self.process.stdin is not None
        self.busy = request["id"]
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The messages that have arrived, and whether the pipe has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines], not data

    def epitaph(self) -> str:
        """Why it died, in one line."""
        code = self.process.wait()
        if code < 0:
            memory = "; out of memory?" if -code == signal.SIGKILL else ""
            return f"its worker was killed by {signal.Signals(-code).name}{memory}"
        self._noise.seek(0)
        lines = self._noise.read().decode(errors="replace").strip().splitlines()
        return f"its worker ended with code {code}" + (f": {lines[-1]}" if lines else "")

    def close(self, patience: float = 0.0) -> None:
        """End the process: by the end of its stdin within `patience` seconds, else by SIGKILL."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._noise.close()


class Pool:
    """A fixed number of worker slots. A worker that dies is replaced; the slot's index stays."""

    def __init__(self, jobs: int, backend: str = BACKEND) -> None:
        self._backend = backend
        self._selector = selectors.DefaultSelector()
        self._number = 0
        self._workers: list[Worker] = []
        self.resize(jobs)

    def __len__(self) -> int:
        return len(self._workers)

    def resize(self, jobs: int) -> None:
        """Start workers until there are `jobs`; never ends one."""
        while len(self._workers) < jobs:
            self._workers.append(self._start(len(self._workers)))

    def idle(self) -> list[int]:
        """Slots with nothing to do; one that still imports counts, requests wait in its pipe."""
        return [
            slot
            for slot, worker in enumerate(self._workers)
            if worker.busy is None and not worker.leaving
        ]

    def submit(self, slot: int, op: str, **fields: Any) -> int:
        """Send a request to an idle slot and return its id."""
        self._number += 1
        self._workers[slot].send({"op": op, "id": self._number, **fields})
        return self._number

    def poll(self, timeout: float) -> list[Event]:
        """What happened within `timeout` seconds; returns at the first news."""
        events = []
        for key, _ in self._selector.select(timeout):
            slot = key.data
            worker = self._workers[slot]
            messages, ended = worker.read()
            for message in messages:
                kind = message.pop("event")
                if kind == "broken":
                    raise WorkerError(f"a worker cannot start: {message['error']}")
                if kind == "ready":
                    worker.ready = True
                    continue
                if kind != "progress":
                    worker.busy = None
                    worker.leaving = kind == "error" and not message["user"]
                events.append(Event(slot, kind, message))
            if ended:
                events += self._bury(slot)
        return events

    def map(
        self, op: str, requests: list[dict[str, Any]], answered: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """One answer per request, in order, spread over the workers; the first error ends it.

        `answered` is called at every answer.
        """
        waiting = list(enumerate(requests))
        running: dict[int, int] = {}
        answers: list[Any] = [None] * len(requests)
        while waiting or running:
            for slot in self.idle():
                if waiting:
                    index, request = waiting.pop(0)
                    running[self.submit(slot, op, **request)] = index
            for event in self.poll(timeout=1.0):
                if event.kind == "result":
                    answers[running.pop(event.fields["id"])] = event.fields["value"]
                    answered()
                elif event.kind == "error" and event.fields["user"]:
                    raise UserError(event.fields["error"])
                elif event.kind in ("error", "died"):
                    raise WorkerError(f"{op} failed: {event.fields['error']}")
        return answers

    def close(self, patience: float = 0.0) -> None:
        """End all workers; without patience at once."""
        deadline = time.monotonic() + patience
        for worker in self._workers:
            self._selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
            worker.close(max(0.0, deadline - time.monotonic()))
        self._workers.clear()
        self._selector.close()

    def _start(self, slot: int) -> Worker:
        worker = Worker(slot, self._backend)
        assert worker.process.stdout is not None
        self._selector.register(worker.process.stdout, selectors.EVENT_READ, slot)
        return worker

    def _bury(self, slot: int) -> list[Event]:
        worker = self._workers[slot]
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        reason = worker.epitaph()
        worker.close()
        if not worker.ready:
            # Its successor would fare no better.
            del self._workers[slot]
            raise WorkerError(f"a worker died while it started: {reason}")
        self._workers[slot] = self._start(slot)
        if worker.busy is None:
            return []
        return [Event(slot, "died", {"id": worker.busy, "error": reason})]


def _environment(slot: int) -> dict[str, str]:
    environment = dict(os.environ)
    gpus = visible_gpus()
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    else:
        # One thread per run: bits depend on their number, and jobs must not fight over cores.
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # `-m` looks for the package where the parent found it, also when that is a checkout.
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
