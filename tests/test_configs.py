"""Every config file in the repository parses, alone over base.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from lrt_lab.training.config import merge_configs
from lrt_lab.training.run import Run

ROOT = Path(__file__).parent.parent
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_config_parses(path: Path) -> None:
    run = Run(merge_configs([ROOT / "configs/base.yaml", ROOT / path]))
    assert run.steps > 0
    first = (ROOT / path).read_text().lstrip().splitlines()[0]
    assert first.startswith("# "), "a config begins by saying what it is for"
