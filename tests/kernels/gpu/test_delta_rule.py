"""The delta rule on a card: errors against float64 there, and the same bits twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lrt_kernels import delta_rule, delta_rule_recurrent
from tests.kernels.delta_cases import GATES, inputs, results
from tests.kernels.interpreter import configure, normal, on_gpu
from tests.support.compare import rms_error

pytestmark = on_gpu


def on_card(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.cuda() for name, x in given.items()}


def check(given: dict[str, Tensor], **options: Any) -> None:
    given = on_card(given)
    ours = results("triton", given, **options)
    exact = results("reference", given, torch.float64, **options)
    for name in exact:
        gate = 0.005 if name in ("out", "last") else 0.02 if name in GATES else 0.008
        found = rms_error(ours[name], exact[name])
        assert found <= gate, (name, found)
    again = results("triton", given, **options)
    assert all(torch.equal(ours[name], again[name]) for name in ours)


def starts(batch: int, length: int) -> Tensor:
    return normal(batch, length, seed=21).cuda() > 2.0


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("keys, values", [(128, 128), (128, 256), (256, 256), (96, 80), (16, 16)])
@pytest.mark.parametrize("decay", [False, True], ids=["no decay", "decay"])
def test_errors(length: int, keys: int, values: int, decay: bool) -> None:
    x = inputs(length, 2, 4, keys, values, decay=decay, dtype=torch.bfloat16)
    check(x, scale=keys**-0.5, start=starts(2, length))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_wider_inputs(dtype: torch.dtype) -> None:
    check(inputs(100, 2, 4, 128, 128, dtype=dtype), start=starts(2, 100))


@pytest.mark.parametrize("weak", [False, True], ids=["strong decay", "weak decay"])
def test_decays(weak: bool) -> None:
    x = inputs(1000, 2, 4, 128, 128, dtype=torch.bfloat16)
    check({**x, "log_decay": x["log_decay"] * (0.001 if weak else 20.0)})


@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_configuration(
    chunk: int, warps: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four warps at chunks of 64 are among what is known to be compiled wrongly on Hopper."""
    configure(monkeypatch, warps, stages)
    check(inputs(300, 2, 4, 128, 128, dtype=torch.bfloat16), chunk=chunk, start=starts(2, 300))


@pytest.mark.parametrize("chunk", [16, 64])
def test_other_chunks(chunk: int) -> None:
    """As they are launched."""
    check(inputs(300, 2, 4, 128, 128, dtype=torch.bfloat16), chunk=chunk)


def test_decoding_goes_on_from_a_prompt() -> None:
    x = on_card(inputs(40, 2, 4, 128, 128, dtype=torch.bfloat16))
    exact, state = delta_rule_recurrent(**{name: y.double() for name, y in x.items()})
    with torch.no_grad():
        pieces, last = [], x.pop("state")
        for where in (slice(0, 33), *(slice(t, t + 1) for t in range(33, 40))):
            piece = {name: y[:, where] for name, y in x.items()}
            out, last = delta_rule(**piece, state=last)
            pieces.append(out)
    assert rms_error(torch.cat(pieces, 1).double(), exact) <= 0.005
    assert rms_error(last.double(), state) <= 0.005
