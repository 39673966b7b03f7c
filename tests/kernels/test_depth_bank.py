"""Sources scored ahead and sources scored as they are read give the same reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lrt_kernels
from lrt_kernels import read_scored, score_source
from lrt_lab.backbones import AttentionResiduals, PairwiseAttentionResiduals
from lrt_lab.frame import Frame
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error
from tests.support.models import small_decoder

pytestmark = interpreted

READERS, WIDTH = 3, 4


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_both_ways_of_reading(biased: bool) -> None:
    inputs = [normal(2, 3, WIDTH, seed=j) for j in range(3)]
    inputs += [normal(3, READERS, WIDTH, seed=5), normal(3, READERS, seed=6)]
    masks = [None, normal(2, 3, seed=7) > 0, None]

    def call(backend: str):
        def reads(*x: Tensor) -> Tensor:
            query, bias = x[3], x[4] if biased else [None] * 3
            sources = [
                score_source(x[j], query[j], bias[j], 2.0, backend=backend) for j in range(3)
            ]
            return torch.stack([read_scored(sources, [i] * 3, masks) for i in range(READERS)])

        return reads

    both = (value_and_gradients(call(backend), inputs) for backend in ("triton", "reference"))
    for actual, expected in zip(*both, strict=True):
        assert error(actual, expected) <= SAME


def test_heads_are_read_by_the_reference() -> None:
    source = score_source(normal(2, WIDTH), normal(6, WIDTH), heads=2, backend="triton")
    assert source.logits is not None and source.logit(1).shape == (2, 2)


@pytest.mark.parametrize("backbone", [AttentionResiduals, PairwiseAttentionResiduals])
def test_a_decoder_reads_by_the_kernels(backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would on a CUDA device."""
    model = small_decoder(backbone(block_size=2), blocks=2)
    frame = Frame(torch.tensor([[1, 2, 3]]))

    def sweep() -> list[Tensor]:
        model.zero_grad()
        hidden = model.sweep(frame, frame.positions).hidden
        (hidden * normal(*hidden.shape)).sum().backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        return [hidden.detach(), *(gradient.clone() for gradient in found)]

    expected = sweep()
    module = lrt_kernels.depth_bank
    monkeypatch.setattr(module, "choose", lambda op, requested, device: "triton")
    calls = []
    read = module.depth_read
    monkeypatch.setattr(module, "depth_read", lambda *a, **k: calls.append(a) or read(*a, **k))
    for actual, wanted in zip(sweep(), expected, strict=True):
        assert error(actual, wanted) <= SAME
    assert len(calls) == len(model.units)
