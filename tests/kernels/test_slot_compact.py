"""Compacted slots: the operation's equation, its registration, its errors."""

from __future__ import annotations

import pytest
import torch

from lrt_kernels import slot_compact, slot_gate, slot_reflect
from lrt_kernels.slot_compact import _gate, _reflect
from tests.kernels.interpreter import interpreted, normal
from tests.support.compare import SAME, error

SLOTS, TOKEN = normal(3, 2, 4, seed=1), normal(3, 4, seed=2)
WEIGHTS = [normal(4, 4, seed=3), normal(4, 4, seed=4)]


def test_the_equation() -> None:
    z = slot_compact(SLOTS, WEIGHTS, TOKEN, 0.1)
    for s, weight in enumerate(WEIGHTS):
        g = SLOTS[:, s]
        v = (g / (g.square().mean(-1, keepdim=True) + 0.1).sqrt() * TOKEN) @ weight.mT
        mirror = (
            torch.eye(4).double()
            - 2 * v[:, :, None] * v[:, None] / v.square().sum(-1)[:, None, None]
        )
        assert error(z[:, s], (mirror @ g[:, :, None]).squeeze(-1)) <= SAME


@interpreted
def test_a_missing_direction_changes_nothing() -> None:
    g = SLOTS.clone().requires_grad_()
    v = torch.zeros_like(SLOTS).requires_grad_()
    z = slot_reflect(g, v, backend="triton")
    assert torch.equal(z, g)
    z.square().sum().backward()
    assert torch.equal(g.grad, 2 * SLOTS) and not v.grad.any()


@interpreted
@pytest.mark.parametrize("size", [1e-160, 1e160])
def test_only_directions_count(size: float) -> None:
    v = normal(3, 2, 4, seed=5)
    found = slot_reflect(SLOTS, size * v, backend="triton")
    assert error(found, slot_reflect(SLOTS, v)) <= SAME


@interpreted
def test_rows_apart() -> None:
    """A slice of the slots' axis, as a route hands it on."""
    more = normal(3, 4, 4, seed=6)
    for backend in ("triton", "reference"):
        parts = [slot_reflect(more[:, :2], more[:, 2:], backend=backend)]
        parts.append(slot_gate(more[:, 1:], TOKEN, backend=backend))
        whole = slot_reflect(more[:, :2].contiguous(), more[:, 2:].contiguous())
        assert error(parts[0], whole) <= SAME
        assert error(parts[1], slot_gate(more[:, 1:].contiguous(), TOKEN)) <= SAME


@interpreted
@pytest.mark.parametrize("full", [False, True], ids=["plain", "token, strength"])
def test_registration(full: bool) -> None:
    g = SLOTS.clone().requires_grad_()
    # Laid out by slot, as the projections' products are.
    v = normal(2, 3, 4).transpose(0, 1).requires_grad_()
    m = TOKEN.clone().requires_grad_() if full else None
    b = normal(3, 2).requires_grad_() if full else None
    for op, args in ((_gate, (g, m, 1e-6, full)), (_reflect, (g, v, b))):
        assert set(torch.library.opcheck(op, args).values()) == {"SUCCESS"}


WRONG = {
    r"slots has shape \(4,\): give": {"slots": normal(4)},
    r"slots has shape \(3, 0, 4\): give": {"slots": normal(3, 0, 4)},
    "slots is not contiguous along its last axis": {"slots": normal(3, 4, 2).mT},
    "slots is torch.int64: give one of": {"slots": SLOTS.long()},
    r"token has shape \(3, 2, 4\), not \(3, 4\)": {"token": SLOTS},
    "token is on meta": {"token": TOKEN.to("meta")},
    "weights has 1 projections for 2 slots": {"weights": WEIGHTS[:1]},
    r"weights\[1\] has shape \(3, 4\), not \(4, 4\)": {"weights": [WEIGHTS[0], normal(3, 4)]},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    given = {"slots": SLOTS, "weights": WEIGHTS, "token": TOKEN, "backend": backend}
    with pytest.raises(ValueError, match=message):
        slot_compact(**given | WRONG[message])


def test_wrong_directions_are_named() -> None:
    with pytest.raises(ValueError, match=r"vectors has shape \(3, 4\), not \(3, 2, 4\)"):
        slot_reflect(SLOTS, TOKEN)
    with pytest.raises(ValueError, match=r"strength has shape \(3, 2\), not \(3, 2, 1\)"):
        slot_reflect(SLOTS, SLOTS, SLOTS[..., 0])
