"""Every kernel compiles for the cards that we aim at, and none spills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = 6


# Apart, since all of them take minutes, and these can run beside each other.
@pytest.mark.slow
@pytest.mark.parametrize("part", [f"{first}/{PARTS}" for first in range(PARTS)])
def test_no_kernel_spills(part: str, tmp_path: Path) -> None:
    """In a process of its own: a kernel is compiled or interpreted, as its import finds it."""
    pytest.importorskip("triton")
    folders = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        **{"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(folders)},
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.aot", part],
        **{"cwd": ROOT, "env": environment, "capture_output": True, "text": True},
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sm_90a" in done.stdout
