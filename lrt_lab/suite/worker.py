"""A worker process: imports torch once, then prices and trains the cells that it is sent.

It speaks JSON lines. Requests on stdin:

    {"op": "resolve", "id": 1, "config": {...}}
    {"op": "rate", "id": 2}
    {"op": "clock", "id": 4, "config": {...}}
    {"op": "train", "id": 3, "config": {...}, "folder": "...", "hash": "...", "about": {...}}

Answers on stdout, each with the request's id:

    {"event": "progress", ...}                            any number of these, then one of
    {"event": "result", "value": ...}
    {"event": "locked"}                                   another process works on the run
    {"event": "error", "error": "one line", "user": bool}

The first line is {"event": "ready"}, or {"event": "broken"} if the imports fail.

The pipe is moved away from descriptors 0 and 1 before anything heavy is imported, so that nothing
that a library prints, from Python or from C, can reach the protocol: while a run is worked on, 1
and 2 are its stdout.log.

End of file on stdin means that the parent is gone (or wants no more): the worker exits at once,
whatever it is doing. On Linux the kernel sends SIGKILL as well. Nothing is lost: a cut run goes on
from its checkpoint.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lrt_lab.errors import UserError
from lrt_lab.store import RunFolder, RunLocked

_PR_SET_PDEATHSIG = 1


class Channel:
    """The two ends of the protocol, out of reach of everybody else in the process."""

    def __init__(self) -> None:
        self._in: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._in:
            self._requests.put(json.loads(line))
        os._exit(0)

    def receive(self) -> dict[str, Any]:
        """The next request; waits for it."""
        return self._requests.get()

    def send(self, event: str, **fields: Any) -> None:
        """One line."""
        self._out.write(json.dumps({"event": event, **fields}).encode() + b"\n")
        self._out.flush()


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Descriptors 1 and 2 append to a file inside the block, for C code as for Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, number in zip(kept, (1, 2), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (elsewhere the end of stdin does)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before that call.
    if os.getppid() != parent:
        os._exit(0)


def one_line(error: BaseException) -> str:
    """An exception as the user reads it in a table."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def train(backend: Any, request: dict[str, Any], channel: Channel) -> None:
    """Work on one run while holding its lock; the answer says how it ended."""
    number = request["id"]
    folder = RunFolder(Path(request["folder"]))

    def progress(state: dict[str, Any]) -> None:
        channel.send("progress", id=number, **state)

    try:
        with folder.lock(), output_to(folder.stdout):
            folder.clear_failure()
            try:
                if not folder.done:
                    _check_identity(backend, request)
                    backend.train(request["config"], folder.path, request["about"], progress)
                if not folder.done:
                    raise RuntimeError("training ended without finishing the run")
            except BaseException as error:
                traceback.print_exc()
                folder.fail(one_line(error))
                raise
    except RunLocked:
        channel.send("locked", id=number)
        return
    channel.send("result", id=number, value=None)


def _check_identity(backend: Any, request: dict[str, Any]) -> None:
    """The plan named the folder by a hash; what is about to run must have that hash."""
    if backend.resolve(request["config"])["hash"] != request["hash"]:
        raise UserError(
            "the config is no longer the one that was planned: a file or the code that it depends "
            "on has changed since the suite was started; start it again."
        )


def measured_rate() -> float:
    """FLOP/s of small matrix products, forward and backward, over a fifth of a second.

    2048 x 256 by 256 x 256 in float32: the size of a layer at the small scales, so that a CPU's
    estimate is not its peak.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.ones(2048, 256, device=device)
    w = torch.ones(256, 256, device=device, requires_grad=True)

    def work() -> None:
        (x @ w).sum().backward()
        w.grad = None
        if device == "cuda":
            torch.cuda.synchronize()

    work()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < 0.2:
        work()
        calls += 1
    # One product forward, one backward (x needs no gradient).
    return calls * 2 * 2 * 2048 * 256 * 256 / (time.perf_counter() - start)


def release_memory() -> None:
    """Give back what the last cell's model used, so that it does not weigh on the next one."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def serve(backend: Any, channel: Channel) -> None:
    """Answer requests until something goes wrong in a way that may have harmed this process."""
    while True:
        request = channel.receive()
        try:
            if request["op"] == "resolve":
                channel.send("result", id=request["id"], value=backend.resolve(request["config"]))
            elif request["op"] == "clock":
                seconds = backend.seconds_per_step(request["config"])
                channel.send("result", id=request["id"], value=seconds)
            elif request["op"] == "rate":
                rate = getattr(backend, "measured_rate", measured_rate)()
                channel.send("result", id=request["id"], value=rate)
            else:
                train(backend, request, channel)
        except UserError as error:
            channel.send("error", id=request["id"], error=one_line(error), user=True)
        except BaseException as error:
            traceback.print_exc()
            channel.send("error", id=request["id"], error=one_line(error), user=False)
            # A fresh process takes over: a device in an unknown state serves nobody.
            return
        release_memory()


def main() -> None:
    """Entry point of `python -m lrt_lab.suite.worker`."""
    parser = argparse.ArgumentParser(prog="lrt_lab.suite.worker")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--backend", default="lrt_lab.training.run")
    options = parser.parse_args()
    die_with(options.parent)
    channel = Channel()
    # So that a killed run's log holds what it said.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        backend = importlib.import_module(options.backend)
    except BaseException as error:
        traceback.print_exc()
        channel.send("broken", error=one_line(error))
        return
    channel.send("ready")
    serve(backend, channel)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    # Skip the interpreter's teardown: threads and device contexts may be stuck in it.
    os._exit(1)
