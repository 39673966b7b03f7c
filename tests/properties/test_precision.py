"""Low precision: dtypes come out as they went in, and values stay near the wide ones."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from tests.support.compare import rms_error
from tests.support.models import T, documents, run, small_decoder, tokens
from tests.support.registry import Case, each_near_pair, each_trial


def calm_decoder(backbone, route) -> Decoder:
    """Weak routers: strong random ones make a recurrence chaotic.

    Rounding the weights alone then moves the exact outputs of some backbones by half their size.
    """
    return small_decoder(backbone, route, routing=0.2)


@pytest.mark.parametrize("dtype, far", [(torch.float32, 1e-5), (torch.bfloat16, 0.2)], ids=str)
@each_trial
def test_a_narrow_model(
    backbone: Case, route: Case, schedule: Case, dtype: torch.dtype, far: float
) -> None:
    decoder, frame = calm_decoder(backbone(), route()), Frame(tokens(8), documents(3, 5))
    with torch.no_grad():
        wide = run(schedule(), decoder, frame)
        narrow = run(schedule(), decoder.to(dtype), frame)
    for one, other in zip(wide, narrow, strict=True):
        assert other.hidden.dtype == dtype
        assert decoder.logits(other.hidden).dtype == dtype
        assert rms_error(other.hidden.double(), one.hidden) <= far


@each_trial
def test_autocast(backbone: Case, route: Case, schedule: Case) -> None:
    decoder, frame = calm_decoder(backbone(), route()).float(), Frame(tokens(8), documents(3, 5))
    wide = run(schedule(), decoder, frame)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = run(schedule(), decoder, frame)
        loss = sum(decoder.logits(p.hidden).float().square().mean() for p in narrow)
    for one, other in zip(wide, narrow, strict=True):
        assert rms_error(other.hidden.float(), one.hidden) <= 0.2
    loss.backward()
    for name, target in decoder.named_parameters():
        if target.grad is not None:
            assert target.grad.dtype == torch.float32
            assert torch.isfinite(target.grad).all(), name


@each_near_pair
def test_decoding_under_autocast(backbone: Case, route: Case) -> None:
    decoder, frame = calm_decoder(backbone(), route()).float(), Frame(tokens(8))
    with torch.no_grad():
        wide, _ = decoder.serial(frame, decoder.cache(2, T))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow, _ = decoder.serial(frame, decoder.cache(2, T))
    assert rms_error(narrow.float(), wide) <= 0.2
