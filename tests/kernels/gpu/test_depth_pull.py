"""The pull of depth sources on a card: errors against float64 there, and the same bits twice."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreter import configure, on_gpu
from tests.kernels.test_depth_pull_kernel import Case
from tests.support.compare import rms_error

pytestmark = on_gpu


@pytest.mark.parametrize("rows", [1, 127, 4096])
@pytest.mark.parametrize("readers", [1, 17, 33])
@pytest.mark.parametrize("masked", [False, True], ids=["all present", "masked"])
def test_errors(rows: int, readers: int, masked: bool) -> None:
    check(Case(rows, readers, 1024, masked=masked, dtype=torch.bfloat16, count=9))


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_configurations(warps: int, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, warps, stages)
    check(Case(1000, 17, 1024, dtype=torch.bfloat16, count=5))


def check(case: Case) -> None:
    case.to("cuda")
    exact = case.run("reference", False, torch.float64)
    ours = case.run("auto", True)
    assert rms_error(ours[0], exact[0]) <= 0.005
    for j, (actual, expected) in enumerate(zip(ours[1:], exact[1:], strict=True)):
        # Queries and biases are gates: their gradients are differences of what reads sum up.
        assert rms_error(actual, expected) <= (0.008 if j < case.count else 0.02)
    assert all(map(torch.equal, ours, case.run("auto", True)))
