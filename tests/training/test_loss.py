"""The training loss with the head's scores in chunks, as on a CUDA device, and with all of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.data.batch import IGNORED
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT
from lrt_lab.schedules import Clock, Jacobi
from lrt_lab.training import loss
from tests.support.compare import SAME, error
from tests.support.models import small_decoder, tokens

FRAME = Frame(tokens(6))


def found(decoder: Decoder, targets: Tensor) -> list[Tensor]:
    decoder.zero_grad()
    total = loss.training_loss(decoder, Jacobi(2), FRAME, targets, Clock())
    total.backward()
    return [total.detach(), *(p.grad.clone() for p in decoder.parameters() if p.grad is not None)]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_chunks_are_the_same_loss(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = small_decoder(route=LRT())
    decoder.recompute = recompute
    targets = FRAME.ids.roll(-1, dims=1)
    targets[:, -2:] = IGNORED
    expected = found(decoder, targets)
    calls: list[Tensor] = []
    chunked = loss.linear_cross_entropy

    def noted(hidden: Tensor, *args) -> Tensor:
        calls.append(hidden)
        return chunked(hidden, *args)

    monkeypatch.setattr(loss, "linear_cross_entropy", noted)
    assert len(expected) == len(found(decoder, targets))
    assert not calls
    monkeypatch.setattr(loss, "CHUNKED", {"cpu"})
    for actual, wanted in zip(found(decoder, targets), expected, strict=True):
        assert error(actual, wanted) <= SAME
    assert len(calls) == 2


def test_a_model_that_alters_its_scores_has_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = small_decoder(route=LRT())
    logits = decoder.logits
    monkeypatch.setattr(decoder, "logits", lambda hidden: torch.tanh(logits(hidden)))
    expected = found(decoder, FRAME.ids)
    monkeypatch.setattr(loss, "CHUNKED", {"cpu"})
    assert all(map(torch.equal, found(decoder, FRAME.ids), expected))
