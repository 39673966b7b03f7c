"""The kernels that work row by row on a card: errors against float64, and the same bits twice."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreter import configure, on_gpu, tile, value_and_gradients
from tests.kernels.row_cases import CASES
from tests.support.compare import rms_error

pytestmark = on_gpu


def check(name: str, rows: int) -> None:
    case = CASES[name]
    inputs = [x.cuda() for x in case.inputs(rows, case.gpu_width, torch.bfloat16)]
    exact = value_and_gradients(case.on("reference"), inputs, torch.float64)
    ours = value_and_gradients(case.on("auto"), inputs)
    assert rms_error(ours[0], exact[0]) <= 0.005
    for i, (actual, expected) in enumerate(zip(ours[1:], exact[1:], strict=True)):
        assert rms_error(actual, expected) <= (0.02 if i in case.gates else 0.008)
    again = value_and_gradients(case.on("auto"), inputs)
    assert all(map(torch.equal, ours, again))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [1, 127, 4096])
def test_errors(name: str, rows: int) -> None:
    check(name, rows)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("numbers", [1024, 2048, 4096])
def test_every_configuration(
    name: str, warps: int, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of warps, and of rows per program."""
    tile(monkeypatch, CASES[name].op, numbers)
    configure(monkeypatch, warps, 2)
    check(name, 300)
