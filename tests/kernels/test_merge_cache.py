"""T2MLR's merge and cache: the equations, the clamped factor, the registration, the errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_kernels import merge_cache, update_cache
from lrt_kernels.merge_cache import _merge, _update
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error

H, P, CURRENT, RECURRENT = (normal(3, 4, seed=s) for s in range(4))
STRENGTHS = (normal(1, seed=4), normal(1, seed=5))


def test_the_equation() -> None:
    gates = [
        torch.tanh(strength) / (1 + torch.exp(-logits))
        for strength, logits in zip(STRENGTHS, (CURRENT, RECURRENT), strict=True)
    ]
    found = merge_cache(H, P, CURRENT, RECURRENT, *STRENGTHS)
    assert error(found, (1 + gates[0]) * H + gates[1] * P) <= SAME


def sizes(factor: float) -> Tensor:
    """Rows whose factor lies below, within and above its bounds."""
    return H * torch.tensor([[100.0], [1.0], [factor]], dtype=torch.float64)


@interpreted
@pytest.mark.parametrize("clamped", [False, True], ids=["rms", "clamped"])
@pytest.mark.parametrize("cached", [False, True], ids=["alone", "cache"])
def test_the_update(clamped: bool, cached: bool) -> None:
    inputs = [sizes(1e-3), *([1e-3 * P] if cached else [])]

    def call(backend: str):
        return lambda h, cache=None: update_cache(h, cache, clamped, 1e-6, backend)

    both = (value_and_gradients(call(backend), inputs) for backend in ("triton", "reference"))
    for actual, expected in zip(*both, strict=True):
        assert error(actual, expected) <= SAME
    if clamped:
        # The factor carries no gradient, so that of the state is the factor.
        root = (inputs[0] + (inputs[1] if cached else 0)).square().mean(-1, keepdim=True).sqrt()
        weight = normal(3, 4, seed=9)
        gradient = value_and_gradients(call("triton"), inputs)[1]
        assert error(gradient, weight * (1 / root).clamp(1 / 5, 5)) <= 1e-5


@interpreted
@pytest.mark.parametrize("cached", [False, True], ids=["alone", "cache"])
def test_registration(cached: bool) -> None:
    leaves = [x.clone().requires_grad_() for x in (H, P, CURRENT, RECURRENT, *STRENGTHS)]
    cache = leaves[1] if cached else None
    for op, args in ((_merge, leaves), (_update, (leaves[0], cache, cached, 1e-6))):
        assert set(torch.library.opcheck(op, tuple(args)).values()) == {"SUCCESS"}


WRONG = {
    r"h has shape \(\): give": {"h": torch.tensor(1.0)},
    "h is not contiguous along its last axis": {"h": normal(4, 3).mT},
    "h is torch.int64: give one of": {"h": H.long()},
    r"projected has shape \(2, 4\), not \(3, 4\)": {"projected": P[:2]},
    "current is on meta": {"current": CURRENT.to("meta")},
    "recurrent is torch.bool: give one of": {"recurrent": RECURRENT > 0},
    r"current_strength has shape \(\), not \(1,\)": {"current_strength": STRENGTHS[0][0]},
    r"recurrent_strength has shape \(2,\)": {"recurrent_strength": normal(2)},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    given = {"h": H, "projected": P, "current": CURRENT, "recurrent": RECURRENT}
    given |= {"current_strength": STRENGTHS[0], "recurrent_strength": STRENGTHS[1]}
    with pytest.raises(ValueError, match=message):
        merge_cache(**given | {"backend": backend} | WRONG[message])


def test_a_wrong_cache_is_named() -> None:
    with pytest.raises(ValueError, match=r"cache has shape \(2, 4\), not \(3, 4\)"):
        update_cache(H, P[:2])
