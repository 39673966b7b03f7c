"""What repeats is executed once, and every count is as if all of it were executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lrt_lab.decoder import Decoder
from lrt_lab.mixers import Attention, DeltaNet
from lrt_lab.routes import LRT, Coconut
from lrt_lab.schedules import Curriculum, Interleaved, Schedule
from lrt_lab.training.config import merge_configs
from lrt_lab.training.describe import price
from lrt_lab.training.meter import trained
from lrt_lab.training.tally import Tally
from tests.support.operations import operations
from tests.support.registry import BACKBONES, MIXERS, ROUTES, SCHEDULES, Case

CONFIGS = Path(__file__).parents[2] / "configs"
LENGTH = 6


def rounds() -> Schedule:
    """Both subsets, both scored rounds and both blocks are alike."""
    return Interleaved(subsets=2, rounds=2, warmup=1)


def fitting(route: Case) -> Schedule:
    return Curriculum() if route().traits.silent else rounds()


def on(axis: str, case: Case) -> tuple[dict[str, Any], Schedule]:
    """The parts of a model that has this one, and a schedule."""
    parts: dict[str, Any] = {"backbone": None, "route": LRT(), "mixer": Attention(heads=2)}
    schedule = rounds()
    if axis == "schedule":
        schedule = case()
        parts["route"] = Coconut() if schedule.silent else LRT()
        parts["mixer"] = DeltaNet(heads=2)
        if not schedule.feeds_memory:
            parts["route"] = None
    else:
        parts[axis] = case(heads=2) if axis == "mixer" else case()
    if axis == "route":
        schedule = fitting(case)
    return parts, schedule


def counted(parts: dict[str, Any], schedule: Schedule, repeat: bool) -> Tally:
    with torch.device("meta"):
        model = Decoder(width=12, blocks=2, vocab=23, **parts)
    return trained(model, schedule, LENGTH, repeat)


AXES = {"backbone": BACKBONES, "route": ROUTES, "mixer": MIXERS, "schedule": SCHEDULES}
EVERY = [
    pytest.param(axis, case, id=f"{axis}-{case}") for axis, cases in AXES.items() for case in cases
]


@pytest.mark.parametrize(("axis", "case"), EVERY)
def test_counts_are_those_of_executing_everything(axis: str, case: Case) -> None:
    parts, schedule = on(axis, case)
    fast, slow = (counted(parts, schedule, repeat) for repeat in (True, False))
    assert fast.saved == slow.saved
    assert fast.work.keys() == slow.work.keys()
    for part, work in slow.work.items():
        assert fast.work[part].matrix == pytest.approx(work.matrix, rel=1e-12)
        assert fast.work[part].pointwise == pytest.approx(work.pointwise, rel=1e-12)
    for name in ("sweeps", "evaluated", "graded", "heads", "rescanned"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-12)


@pytest.mark.parametrize(
    ("fragments", "most"),
    [
        (("mixer/deltanet", "route/rounds"), 45_000),
        (("backbone/mhc", "route/rounds"), 45_000),
        (("backbone/attention-residuals", "route/rounds"), 35_000),
        (("backbone/attention-residuals", "route/householder"), 45_000),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_paper_sized_config_takes_few_operations(
    fragments: tuple[str, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [CONFIGS / "base.yaml", CONFIGS / "scale/paper.yaml"]
    config = merge_configs([*files, *(CONFIGS / f"{name}.yaml" for name in fragments)])
    count = operations(monkeypatch)
    price(config)
    # Executed one after the other they are over a million.
    assert count() < most
