"""Every random draw comes from a generator keyed on the seed and the purpose of the draw.

No part of the lab touches global random state, so adding a module, a callback or a worker never
moves the numbers of another one, and a resumed run needs no saved generator.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def key(seed: int, *purpose: object) -> int:
    """A 63-bit integer that depends on the seed and on every part of the purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for one purpose, such as ``generator(seed, "init", "units.0.norm.gain")``."""
    import torch

    return torch.Generator().manual_seed(key(seed, *purpose))
