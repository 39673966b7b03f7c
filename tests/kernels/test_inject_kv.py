"""Memory mixed into keys and values: the equation, the registration, the errors, who calls it."""

from __future__ import annotations

import pytest
import torch

from lrt_kernels import Placement, inject_kv, place_heads
from lrt_kernels.inject_kv import _op
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT
from tests.kernels.interpreter import interpreted, normal
from tests.support.compare import SAME, error
from tests.support.models import small_decoder, tokens

K, V, M_K, M_V = (normal(3, 2, 4, seed=s) for s in range(4))
LOGITS = normal(3, 4, seed=4)
TABLE = (normal(3, 1, 2, seed=5).cos(), normal(3, 1, 2, seed=5).sin())
PLACE = Placement(0.1, TABLE)


def test_the_equation() -> None:
    k, v = inject_kv(K, V, LOGITS, M_K, M_V, PLACE)
    for n in range(3):
        for h in range(2):
            local, recurrent = (2 / (1 + torch.exp(-LOGITS[n, h + i])) for i in (0, 2))
            assert error(v[n, h], local * V[n, h] + recurrent * M_V[n, h]) <= SAME
            mixed = local * K[n, h] + recurrent * M_K[n, h]
            one, two = (mixed / (mixed.square().mean() + 0.1).sqrt()).chunk(2)
            cos, sin = (part[n, 0] for part in TABLE)
            turned = torch.cat([one * cos + two * sin, two * cos - one * sin])
            assert error(k[n, h], turned) <= SAME


@interpreted
def test_a_decoder_injects_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would on a CUDA device: every block in one launch for its keys and values."""
    model, frame = small_decoder(route=LRT(), blocks=2), Frame(tokens(4))

    def passes() -> list[torch.Tensor]:
        model.zero_grad()
        first = model.sweep(frame, frame.positions)
        memory = model.memory(first.carried, frame, frame.positions)
        hidden = model.sweep(frame, frame.positions, memory).hidden
        (hidden * normal(*hidden.shape)).sum().backward()
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [hidden.detach(), *found]

    expected = passes()
    # The package's attribute of this name is the function, not its module.
    monkeypatch.setitem(inject_kv.__globals__, "choose", lambda *given: "triton")
    for actual, wanted in zip(passes(), expected, strict=True):
        assert error(actual, wanted) <= SAME


@interpreted
@pytest.mark.parametrize("full", [False, True], ids=["heads alone", "memory, rotation"])
def test_registration(full: bool) -> None:
    k, *rest = (x.clone().requires_grad_() for x in (K, V, LOGITS, M_K, M_V))
    tables = [x.squeeze(1) for x in TABLE]
    args = (k, *rest, *tables, 1e-6) if full else (k, *[None] * 6, 1e-6)
    assert set(torch.library.opcheck(_op, args).values()) == {"SUCCESS"}


WRONG = {
    r"k has shape \(4,\): give": {"k": normal(4)},
    "k is not contiguous along its last axis": {"k": normal(3, 4, 2).mT},
    "k is torch.int64: give one of": {"k": K.long()},
    r"v has shape \(3, 4\), not \(3, 2, 4\)": {"v": LOGITS},
    "v is torch.float32, k torch.float64": {"v": V.float()},
    r"logits has shape \(3, 2\), not \(3, 4\)": {"logits": LOGITS[:, :2]},
    "memory_k is on meta": {"memory_k": M_K.to("meta")},
    "memory_v is None and memory_k is not": {"memory_v": None},
    "memory_k is None and memory_v is not": {"memory_k": None},
    r"place.rotary, cos has shape \(2, 1, 2\), not \(3, 1, 2\)": {
        "place": Placement(None, (TABLE[0][:2], TABLE[1]))
    },
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    given = {"k": K, "v": V, "logits": LOGITS, "memory_k": M_K, "memory_v": M_V, "place": PLACE}
    with pytest.raises(ValueError, match=message):
        inject_kv(**given | {"backend": backend} | WRONG[message])


def test_rotation_needs_halves() -> None:
    with pytest.raises(ValueError, match="x has 3 features a head: rotation needs an even number"):
        place_heads(K[..., :3], PLACE)
