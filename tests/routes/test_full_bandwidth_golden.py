"""Full-bandwidth against an independent reference on nanochat's trunk."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import FullBandwidth
from lrt_lab.schedules import Clock, Jacobi, PassMix, pass_mix
from tests.routes.nanochat_trunk import names, trunk
from tests.support.compare import error
from tests.support.golden import golden
from tests.support.models import exact, run

STATES = {"rtol": 1e-9, "atol": 1e-10}
ARRAYS = golden("fbt_nanochat_trunk")
IDS = ARRAYS["idx"]
BLOCKS = 3


@pytest.fixture
def decoder() -> Decoder:
    route = FullBandwidth(eps=torch.finfo(torch.float64).eps)
    fusion = {"route.value": ARRAYS["W_U"], "route.gate": ARRAYS["W_G"]}
    return trunk(ARRAYS, BLOCKS, 2, torch.float64, route, **fusion)


@pytest.fixture
def frame() -> Frame:
    """Memory is reset where a document starts, attention is not."""
    return Frame(IDS, memory_document=(IDS == 0).long().cumsum(1))


def cross_entropy(decoder: Decoder, hidden: Tensor) -> Tensor:
    return F.cross_entropy(decoder.logits(hidden).mT, ARRAYS["targets"])


def test_three_passes_with_plain_prefixes(
    decoder: Decoder, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = iter(ARRAYS["feedback_masks"])
    monkeypatch.setattr(pass_mix, "beyond_prefix", lambda *_: next(masks))
    schedule = PassMix([0, 0, 1], jitter=0.0)
    passes = list(schedule.passes(decoder.train(), frame, Clock()))
    for scored, hidden, logits in zip(
        passes, ARRAYS["pass_hidden"], ARRAYS["pass_logits"], strict=True
    ):
        assert_close(scored.hidden.detach(), hidden, **STATES)
        assert_close(decoder.logits(scored.hidden).detach(), logits, **STATES)
    losses = torch.stack([cross_entropy(decoder, scored.hidden) for scored in passes])
    assert_close(losses.detach(), ARRAYS["pass_losses"], **STATES)
    loss = (losses * losses.new_tensor([scored.weight for scored in passes])).sum()
    assert_close(loss.detach(), ARRAYS["loss"], **STATES)
    loss.backward()
    gradients = {name: p.grad for name, p in decoder.named_parameters()}
    for ours, theirs in names(BLOCKS).items():
        assert error(gradients[ours], ARRAYS[f"grad.{theirs}"]) <= 1e-9, ours
    assert error(gradients["route.value"], ARRAYS["grad_W_U"]) <= 1e-9
    assert error(gradients["route.gate"], ARRAYS["grad_W_G"]) <= 1e-9


@torch.no_grad()
def test_every_feedback_pass(decoder: Decoder, frame: Frame) -> None:
    expected = ARRAYS["jacobi_logits"]
    _, *fed_back = run(Jacobi(len(expected) + 1), decoder, frame)
    for scored, logits in zip(fed_back, expected, strict=True):
        assert_close(decoder.logits(scored.hidden), logits, **STATES)


@torch.no_grad()
def test_the_exact_recurrence(decoder: Decoder, frame: Frame) -> None:
    logits = decoder.logits(exact(decoder, frame))
    assert_close(logits, ARRAYS["exact_recurrence_logits"], **STATES)
