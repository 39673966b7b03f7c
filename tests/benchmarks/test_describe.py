"""The benchmark of `describe` takes every shipped config, and its record holds what we aim at."""

from __future__ import annotations

import pytest

from lrt_lab.store import read_json
from tests.benchmarks.describe import AIM, COMMITTED, CONFIGS, describing, measure, report, stacks


def test_every_shipped_config_is_in_it() -> None:
    shipped = {str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.rglob("*.yaml")}
    assert {name for stack in stacks() for name in stack} == shipped - {"base"}


def test_all_answered_in_time() -> None:
    committed = read_json(COMMITTED)
    assert set(committed["configs"]) == {" + ".join(stack) for stack in stacks()}
    assert all(row["seconds"] < AIM for row in committed["configs"].values())


def test_a_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure([("scale/smoke", "route/lrt")])
    assert found["scale/smoke + route/lrt"]["ratio"] > 0.5
    report(found)
    assert "1 configs" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="does not exist"):
        measure([("scale/none",)])
    assert describing(("scale/smoke",))[-1].endswith("scale/smoke.yaml")
