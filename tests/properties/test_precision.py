"""Low precision: dtypes come out as they went in, and values stay near the wide ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from tests.support.compare import rms_error
from tests.support.models import T, documents, randomise, run, small_decoder, tokens
from tests.support.registry import Case, each_near_pair, each_trial

#: Noise of the weights. A draw in which a recurrence is chaotic says nothing of precision: a wrong
#: dtype shows in every draw, so one calm draw is asked for.
DRAWS = (0, 1)


def calm_decoder(backbone: Case, route: Case, draw: int) -> Decoder:
    """Weak routers: strong random ones make a recurrence chaotic.

    Rounding the weights alone then moves the exact outputs of some backbones by half their size.
    """
    decoder = small_decoder(backbone(), route(), routing=0.2)
    randomise(decoder, seed=draw, routing=0.2)
    return decoder


def near(error: Callable[[int], float], far: float) -> bool:
    """Whether a draw's error stays within ``far``."""
    return any(error(draw) <= far for draw in DRAWS)


@pytest.mark.parametrize("dtype, far", [(torch.float32, 1e-5), (torch.bfloat16, 0.2)], ids=str)
@each_trial
def test_a_narrow_model(
    backbone: Case, route: Case, schedule: Case, dtype: torch.dtype, far: float
) -> None:
    def error(draw: int) -> float:
        decoder = calm_decoder(backbone, route, draw)
        frame = Frame(tokens(8), documents(3, 5))
        with torch.no_grad():
            wide = run(schedule(), decoder, frame)
            narrow = run(schedule(), decoder.to(dtype), frame)
        for one in narrow:
            assert one.hidden.dtype == dtype
            assert decoder.logits(one.hidden).dtype == dtype
        pairs = zip(wide, narrow, strict=True)
        return max(rms_error(other.hidden.double(), one.hidden) for one, other in pairs)

    assert near(error, far)


@each_trial
def test_autocast(backbone: Case, route: Case, schedule: Case) -> None:
    def error(draw: int) -> float:
        decoder = calm_decoder(backbone, route, draw).float()
        frame = Frame(tokens(8), documents(3, 5))
        wide = run(schedule(), decoder, frame)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = run(schedule(), decoder, frame)
            loss = sum(decoder.logits(p.hidden).float().square().mean() for p in narrow)
        loss.backward()
        for name, target in decoder.named_parameters():
            if target.grad is not None:
                assert target.grad.dtype == torch.float32
                assert torch.isfinite(target.grad).all(), name
        pairs = zip(wide, narrow, strict=True)
        return max(rms_error(other.hidden.float(), one.hidden) for one, other in pairs)

    assert near(error, 0.2)


@each_near_pair
def test_decoding_under_autocast(backbone: Case, route: Case) -> None:
    def error(draw: int) -> float:
        decoder, frame = calm_decoder(backbone, route, draw).float(), Frame(tokens(8))
        with torch.no_grad():
            wide, _ = decoder.serial(frame, decoder.cache(2, T))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                narrow, _ = decoder.serial(frame, decoder.cache(2, T))
        return rms_error(narrow.float(), wide)

    assert near(error, 0.2)
