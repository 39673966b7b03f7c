"""What the route configs cost: the published numbers, and the meter's count of what is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lrt_lab.training.config import merge_configs
from lrt_lab.training.meter import Cost
from lrt_lab.training.run import Run

ROOT = Path(__file__).parents[2]
#: Token-forwards per token, with four blocks.
PASSES = {
    "coconut": 1,
    "full_bandwidth": 0.75 + 2 * 0.22 + 3 * 0.03,
    "gather_ffn": 3,
    "householder": 0.75 * 3 + 0.25 * 4,
    "lrt": 2,
    "lrt_control": 2,
    "lrt_read": 2,
    "lrt_source": 2,
    "rounds": 1 + 1 + 2,
    "write": 2,
    "t2mlr": 2 + 15 * 2 / 4,
}


SMALL = {"model.width": 32, "data.length": 16}
BASE = ROOT / "configs/base.yaml"


@pytest.fixture(scope="module")
def plain() -> Cost:
    off = {"model.route": "NoRoute", "model.schedule": "SinglePass"}
    return Run(merge_configs([BASE], SMALL | off)).price()


#: A route without a published number is here too.
CONFIGS = sorted(path.stem for path in (ROOT / "configs/route").glob("*.yaml"))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_route_config_is_priced(name: str, plain: Cost) -> None:
    files = [BASE, ROOT / f"configs/route/{name}.yaml"]
    routed = Run(merge_configs(files, SMALL)).price()
    passes = PASSES.get(name, routed.passes)
    assert routed.passes == pytest.approx(passes)
    ratio = routed.train_flops_per_token / plain.train_flops_per_token
    # Passes without gradients cost a third, and heads are executed for scored passes alone.
    low = 1 / 3 if name in ("t2mlr", "rounds") else 0.9
    assert low * passes < ratio < 1.5 * passes


def test_every_published_number_has_a_config() -> None:
    assert set(PASSES) <= set(CONFIGS)
