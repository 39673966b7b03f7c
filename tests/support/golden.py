"""Arrays from published code and independent references; `tests/golden/README.md` says which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).resolve().parent.parent / "golden"


def golden(name: str) -> dict[str, Tensor]:
    """The arrays of one file."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return {key: torch.as_tensor(arrays[key]) for key in arrays.files}
