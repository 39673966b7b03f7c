"""LRT against its public release: recurrence, cache, passes, losses and every gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes.lrt import LRT
from lrt_lab.schedules import Interleaved, Jacobi, Pass, Schedule, SinglePass
from lrt_lab.schedules.interleaved import write_back
from tests.routes.lrt_refresh import RefreshedAttention, RefreshedDecoder
from tests.routes.lrt_release import BLOCKS, prefixed, release_model, targets
from tests.support.compare import error
from tests.support.golden import golden
from tests.support.models import merged, run

STATES = {"rtol": 1e-9, "atol": 1e-10}
LOGITS = 1e-6

RECURRENCE = golden("lrt_tiny_recurrence")
FILES = ["lrt_interleaved_S1", "lrt_interleaved_S2", "lrt_interleaved_S4"]
REFRESH = "lrt_interleaved_S2_refresh"


@pytest.fixture
def decoder() -> Decoder:
    return release_model(RECURRENCE)


@pytest.fixture
def frame() -> Frame:
    return Frame(RECURRENCE["idx"])


def furthest(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).detach().abs().max())


def token_losses(decoder: Decoder, scored: Pass) -> Tensor:
    """Cross entropy of a pass at its own positions, ``(B, P)``."""
    targets = RECURRENCE["targets"][:, list(scored.positions)]
    return F.cross_entropy(decoder.logits(scored.hidden).mT, targets, reduction="none")


def test_the_exact_recurrence(decoder: Decoder, frame: Frame) -> None:
    with torch.no_grad():
        hidden, cache = decoder.serial(frame, decoder.cache(2, 12))
        assert_close(hidden, RECURRENCE["seq_h_final"], **STATES)
        assert_close(cache.carried[:, :, 0], RECURRENCE["seq_h_final"][:, -1:], **STATES)
        assert furthest(decoder.logits(hidden), RECURRENCE["seq_logits"]) <= LOGITS
    for block in range(BLOCKS):
        buffer = cache.buffers[0][2 * block]
        assert_close(buffer.k, RECURRENCE[f"seq_cache_k{block}"], **STATES)
        assert_close(buffer.v, RECURRENCE[f"seq_cache_v{block}"], **STATES)


def test_no_memory(decoder: Decoder, frame: Frame) -> None:
    with torch.no_grad():
        (only,) = run(SinglePass(), decoder, frame)
        for name in ("zero_mem_logits", "logits_h_final_prev_None"):
            assert furthest(decoder.logits(only.hidden), RECURRENCE[name]) <= LOGITS


def test_every_refinement_pass(decoder: Decoder, frame: Frame) -> None:
    expected = RECURRENCE["multirefine_logits"]
    with torch.no_grad():
        passes = run(Jacobi(len(expected)), decoder, frame)
        for scored, logits in zip(passes, expected, strict=True):
            assert furthest(decoder.logits(scored.hidden), logits) <= LOGITS


@pytest.mark.parametrize("name", [*FILES, REFRESH])
def test_interleaved_losses_memory_and_gradients(name: str, frame: Frame) -> None:
    expected = golden(name)
    for given in ("idx", "targets"):
        assert torch.equal(expected[given], RECURRENCE[given])
    # No window: it is wider than the row.
    assert expected["window"] >= frame.length
    bodies = (RefreshedDecoder, RefreshedAttention) if expected["kv_refresh"] else ()
    decoder = release_model(RECURRENCE, *bodies)
    schedule: Schedule = Interleaved(int(expected["S"]))
    passes = run(schedule, decoder, frame)
    by_token = [token_losses(decoder, scored) for scored in passes]
    for scored, losses, theirs in zip(
        passes, by_token, expected["per_pass_token_losses"], strict=True
    ):
        assert furthest(losses, theirs[:, list(scored.positions)]) <= LOGITS
    losses = torch.stack([losses.mean() for losses in by_token])
    assert furthest(losses, expected["per_pass_losses"]) <= LOGITS
    weights = losses.new_tensor([scored.weight for scored in passes])
    loss = (weights * losses).sum()
    assert furthest(loss, expected["loss"]) <= LOGITS
    assert_close(merged(passes).detach(), expected["h_final"], **STATES)
    loss.backward()
    gradients = {n: p.grad for n, p in decoder.named_parameters()}
    for theirs, gradient in targets(prefixed(expected, "grad.")).items():
        assert error(gradients[theirs], gradient) <= 1e-6, theirs


@torch.no_grad()
def test_refreshed_keys_and_values_tell_nothing_of_later_tokens(frame: Frame) -> None:
    decoder, other = release_model(RECURRENCE, RefreshedDecoder, RefreshedAttention), frame.ids
    other = torch.where(torch.arange(12) == 6, (other + 1) % 24, other)
    for one, two in zip(
        run(Interleaved(3), decoder, frame), run(Interleaved(3), decoder, Frame(other)), strict=True
    ):
        earlier = [t < 6 for t in one.positions]
        assert torch.equal(one.hidden[:, earlier], two.hidden[:, earlier]), one.name
        later = [t >= 6 for t in one.positions]
        assert not torch.equal(one.hidden[:, later], two.hidden[:, later]), one.name


def test_the_file_holds_every_gradient() -> None:
    expected = golden(FILES[0])
    learned = prefixed(RECURRENCE, "param.")
    assert set(prefixed(expected, "grad.")) == set(learned)


def test_memory_is_the_state_that_the_head_reads(decoder: Decoder, frame: Frame) -> None:
    assert isinstance(decoder.route, LRT)
    with torch.no_grad():
        out = decoder.sweep(frame, frame.positions)
        assert torch.equal(out.carried[:, :, 0], out.hidden)
        again = write_back(out.carried, out.carried[:, 1::3], range(1, 12, 3))
        assert torch.equal(again, out.carried)
