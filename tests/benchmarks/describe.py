"""How long `lrt-lab describe` takes: `make bench-describe`.

Run it on a machine that does nothing else. Every shipped config over the base; and at the paper's
size every backbone with every mixer under LRT in rounds over strided subsets, whose sweeps are the
most and the least alike. Seconds are those of a whole process, imports included, the least of
up to four where one is slow. They stand beside those of `import torch` in the same run.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from lrt_lab.store import read_json, write_json
from lrt_lab.training.run import cpu_name

CONFIGS = Path(__file__).parents[2] / "configs"
COMMITTED = Path(__file__).with_suffix(".json")
#: What we aim at, in seconds; above what one measurement is not enough, and how many may be.
AIM, DOUBTFUL, TRIES = 4.0, 3.5, 4
#: How many lines are printed.
SLOWEST = 12


def names(kind: str) -> list[str]:
    """The shipped configs of a kind, as kind/name."""
    return sorted(f"{kind}/{path.stem}" for path in (CONFIGS / kind).glob("*.yaml"))


def stacks() -> list[tuple[str, ...]]:
    """Fragments over the base, in the order in which they are stacked."""
    kinds = sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())
    single = [(name,) for kind in kinds for name in names(kind)]
    mixed = product(names("backbone"), [None, *names("mixer")])
    deep = [
        tuple(part for part in ("scale/paper", backbone, mixer, "route/rounds") if part)
        for backbone, mixer in mixed
    ]
    return single + deep


def wall(command: Sequence[str]) -> float:
    """Seconds of a process that must succeed."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return took


def describing(stack: Sequence[str]) -> list[str]:
    """The command's arguments."""
    files = [f"{CONFIGS / name}.yaml" for name in ("base", *stack)]
    return ["-m", "lrt_lab.cli", "describe", *(x for file in files for x in ("--config", file))]


def measure(chosen: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Seconds by stack, and the same over those of `import torch` beside it."""
    found = {}
    for stack in chosen:
        took = alone = math.inf
        for _ in range(TRIES):
            alone = min(alone, wall(["-c", "import torch"]))
            took = min(took, wall(describing(stack)))
            if took <= DOUBTFUL:
                break
        found[" + ".join(stack)] = {"seconds": round(took, 2), "ratio": round(took / alone, 2)}
        print(".", end="", flush=True)
    return found


def report(found: dict[str, dict[str, float]]) -> None:
    """The slowest, and how many there are."""
    slowest = sorted(found.items(), key=lambda item: -item[1]["seconds"])
    above = sum(row["seconds"] >= AIM for row in found.values())
    print(
        f"\n{len(found)} configs, {above} at or above {AIM:g} s; the slowest, and over import torch"
    )
    for name, row in slowest[:SLOWEST]:
        print(f"{row['seconds']:6.2f} s{row['ratio']:7.2f}  {name}")


def main() -> int:
    """Measure, print, and compare or commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", action="store_true", help="replace the committed numbers")
    options = parser.parse_args()
    found, known = measure(stacks()), read_json(COMMITTED)
    report(found)
    if options.commit:
        about: dict[str, Any] = {"processor": cpu_name(), "torch": torch.__version__}
        write_json(COMMITTED, {**about, "configs": found})
        print(f"written: {COMMITTED.name}")
        return 0
    if known is None or known["processor"] != cpu_name():
        print("nothing is committed for this processor: nothing is judged here")
        return 0
    slower = [name for name, row in found.items() if row["seconds"] >= AIM]
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
