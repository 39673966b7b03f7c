"""The gated product: its equation, its registration, its errors."""

from __future__ import annotations

import pytest
import torch

from lrt_kernels import gated_product
from lrt_kernels.gated_product import _op
from tests.kernels.interpreter import interpreted, normal
from tests.support.compare import SAME, error

PRODUCT, LOGITS = normal(3, 4, seed=1), normal(3, 4, seed=2)


def test_the_equation() -> None:
    u = PRODUCT / (1 + torch.exp(-LOGITS))
    assert error(gated_product(PRODUCT, LOGITS), u) <= SAME
    normed = u / (u.square().mean(-1, keepdim=True) + 0.1).sqrt()
    assert error(gated_product(PRODUCT, LOGITS, 0.1), normed) <= SAME


@interpreted
@pytest.mark.parametrize("norm_eps, dtype", [(None, torch.float32), (1e-6, torch.float64)])
def test_registration(norm_eps: float | None, dtype: torch.dtype) -> None:
    leaves = [x.clone().requires_grad_() for x in (PRODUCT, LOGITS)]
    found = torch.library.opcheck(_op, (*leaves, norm_eps, dtype))
    assert set(found.values()) == {"SUCCESS"}


WRONG = {
    r"product has shape \(\): give": {"product": torch.tensor(1.0)},
    "product is not contiguous along its last axis": {"product": normal(4, 3).mT},
    "product is torch.int64: give one of": {"product": PRODUCT.long()},
    r"logits has shape \(2, 4\), not \(3, 4\)": {"logits": LOGITS[:2]},
    "logits is on meta": {"logits": LOGITS.to("meta")},
    "dtype=torch.int64: give": {"dtype": torch.int64},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    given = {"product": PRODUCT, "logits": LOGITS, "backend": backend}
    with pytest.raises(ValueError, match=message):
        gated_product(**given | WRONG[message])
