"""What every test shares: one thread, a place for prepared text, the folder of real results."""

from __future__ import annotations

import os

# Sums differ in their last bits between thread counts: pinned before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
# Triton looks once, when it is imported: without a GPU its kernels run in NumPy.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def prepared_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One LRT_DATA for the session, parallel workers included.

    The first test that needs a corpus prepares it; the others wait for its lock and reuse it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    patch = pytest.MonkeyPatch()
    patch.setenv("LRT_DATA", str(base / "lrt-data"))
    yield base / "lrt-data"
    patch.undo()


@pytest.fixture(scope="session")
def real_results() -> Path:
    """Folder of published results that the statistics are tried on; a checkout may lack it."""
    folder = Path(os.environ.get("LRT_REALDATA") or ROOT.parent / "shared" / "realdata")
    if not folder.is_dir():
        pytest.skip(f"no folder of real results at {folder}: set LRT_REALDATA to run this test")
    return folder
