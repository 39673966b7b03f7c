"""The design of Hypothesis 3: its rules of scale, and what it can tell before any run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lrt_lab.suite.declaration import Suite, load
from lrt_lab.suite.expansion import cells
from lrt_lab.training.config import merge_configs
from lrt_lab.training.run import Run

ROOT = Path(__file__).parents[2]
SIZES = ("w12", "w16", "w24", "w32", "w64", "w96", "w128", "w192")


@pytest.fixture(scope="module")
def h3() -> Suite:
    return load(ROOT / "experiments/h3.yaml")


@pytest.mark.parametrize("size", SIZES)
def test_batch_rate_and_steps_follow_the_stated_rule(h3: Suite, size: str) -> None:
    keys = h3.axes["size"][size]
    width = keys["model.width"]
    assert size == f"w{width}"
    assert keys["data.batch_size"] == width // 2
    assert keys["model.optimizer.init_args.lr"] == pytest.approx(0.08 / width**0.5, rel=5e-3)
    scale = h3.scale("gpu" if width >= 64 else "cpu")
    plain = {**keys, **h3.axes["model"]["AttentionResiduals"], **h3.axes["passes"]["k1"]}
    run = Run(merge_configs([*h3.base, *scale.config], plain))
    with torch.device("meta"):
        module, _ = run.cli.build()
    roles = ("matrix", "head", "router", "connection")
    weights = [p for p in module.decoder.parameters() if p.role in roles and p.dim() > 1]
    size_of = sum(p.numel() for p in weights)
    tokens = run.steps * run.tokens_per_step
    assert tokens / size_of == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("scale", ["smoke", "quick", "cpu", "gpu"])
def test_every_scale_spans_sizes_ratios_and_passes(h3: Suite, scale: str) -> None:
    found = cells(h3, h3.scale(scale))
    routed = [c for c in found if c.axes["model"] == "AttentionResiduals-Householder"]
    assert len({c.axes["size"] for c in found}) >= 3
    assert {c.times for c in found} == {1, 2, 5}
    assert {c.axes["passes"] for c in routed} == {"k2", "k3", "k4"}
    assert {c.axes["model"] for c in found} == set(h3.axes["model"])
    plain = [c for c in found if c.axes["model"] in ("AttentionResiduals", "PreNorm")]
    assert {c.axes["passes"] for c in plain} == {"k1"}


def test_only_the_gpu_scale_is_no_pilot(h3: Suite) -> None:
    assert h3.scaling is not None
    assert set(h3.scales) - set(h3.scaling.pilots) == {"gpu"}
