"""The installation: no CUDA build beside the CPU lock, no torchvision, one distribution."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata, util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "lock-cpu.txt"


def name_of(requirement: str) -> str:
    """The distribution's name in its canonical spelling."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@pytest.fixture
def build() -> str:
    """What `make setup` installed: "cpu" or "cuda" from the lock, or "ranges"."""
    note = Path(sys.prefix) / ".build"
    if not note.is_file():
        pytest.skip("this environment was not made by `make setup`")
    return note.read_text().strip()


def test_no_cuda_build_came_in(build: str) -> None:
    if build != "cpu":
        pytest.skip(f"`make setup` installed {build!r} here, not the CPU lock")
    import torch

    assert torch.version.cuda is None
    assert util.find_spec("torchvision") is None


def test_the_lock_is_what_is_installed(build: str) -> None:
    if build != "cpu":
        pytest.skip(f"`make setup` installed {build!r} here, not the CPU lock")
    pinned = dict(
        line.split("==") for line in LOCK.read_text().split("\n") if line and line[0] != "#"
    )
    # A CPU wheel calls itself 2.13.0+cpu.
    assert pinned == {name: metadata.version(name).split("+")[0] for name in pinned}


def test_lightning_and_litdata_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import lightning, litdata, torchmetrics; print('imported')"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().endswith("imported"), done.stderr


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    locked = {name_of(line) for line in LOCK.read_text().split("\n") if line and line[0] != "#"}
    assert {name_of(line) for line in wanted} <= locked
    assert "torchvision" not in locked


def test_one_distribution_holds_both_packages() -> None:
    for package in ("lrt_lab", "lrt_kernels"):
        spec = util.find_spec(package)
        assert spec is not None and spec.origin is not None, package
    # A top-level package named `kernels` would hide another project's.
    found = util.find_spec("kernels")
    assert found is None or found.origin is None or not found.origin.startswith(str(ROOT))
