"""Coconut against its public release on GPT-2: a ragged batch, gradients, greedy decoding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Curriculum
from tests.routes.gpt2_body import gpt2
from tests.support.compare import error
from tests.support.golden import golden
from tests.support.models import exact, run

STATES = {"rtol": 1e-9, "atol": 1e-9}
ARRAYS = golden("coconut_tiny_gpt2")
LATENT = 29
VALID = ARRAYS["attention_mask"] == 1


@pytest.fixture
def model() -> tuple[Decoder, dict[str, nn.Parameter]]:
    return gpt2(ARRAYS)


@pytest.fixture
def frame() -> Frame:
    """Padding is a document of its own."""
    return Frame(
        ARRAYS["input_ids"],
        document=1 - ARRAYS["attention_mask"],
        position=ARRAYS["position_ids"],
        silent=ARRAYS["input_ids"] == LATENT,
    )


def counted_sweeps(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The positions of every sweep from now on."""
    calls, sweep = [], Decoder.sweep

    def counted(self: Decoder, frame: Frame, positions: range, *args, **options):
        calls.append(positions)
        return sweep(self, frame, positions, *args, **options)

    monkeypatch.setattr(Decoder, "sweep", counted)
    return calls


def test_the_ragged_batch_and_its_gradients(
    model: tuple[Decoder, dict[str, nn.Parameter]], frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, parameters = model
    calls = counted_sweeps(monkeypatch)
    (only,) = run(Curriculum(), decoder, frame)
    assert len(calls) == int(ARRAYS["forward_calls"])
    logits = decoder.logits(only.hidden)
    assert_close(logits[VALID].detach(), ARRAYS["logits"][VALID], **STATES)
    loss = F.cross_entropy(logits[:, :-1].mT, ARRAYS["labels"][:, 1:])
    assert_close(loss.detach(), ARRAYS["loss"], **STATES)
    loss.backward()
    for name, target in parameters.items():
        expected = ARRAYS[f"grad.transformer.{name}"]
        ours = target.grad.T if ".c_" in name and expected.dim() > 1 else target.grad
        assert error(ours, expected) <= 1e-9, name


@torch.no_grad()
def test_what_enters_silent_positions(model: tuple[Decoder, dict], frame: Frame) -> None:
    (only,) = run(Curriculum(), model[0], frame)
    rows, columns = frame.silent.nonzero(as_tuple=True)
    entered: Tensor = ARRAYS["inputs_embeds"][rows, columns]
    assert_close(only.hidden[rows, columns - 1], entered, **STATES)


@torch.no_grad()
def test_the_exact_recurrence(model: tuple[Decoder, dict], frame: Frame) -> None:
    logits = model[0].logits(exact(model[0], frame))
    assert_close(logits[VALID], ARRAYS["logits_full_recompute"][VALID], **STATES)


@torch.no_grad()
def test_greedy_decoding(model: tuple[Decoder, dict], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, prompt = model[0], ARRAYS["gen_prompt"]
    ids, expected = prompt, ARRAYS["gen_tokens"]
    new = Frame(prompt, position=torch.arange(10).unsqueeze(0), silent=prompt == LATENT)
    calls = counted_sweeps(monkeypatch)
    run(Curriculum(), decoder, new)
    cached = expected.shape[1] - prompt.shape[1] - 1
    assert len(calls) + cached == int(ARRAYS["gen_forward_calls"])
    cache = decoder.cache(1, 16)
    while True:
        hidden, cache = decoder.step(new, cache)
        token = decoder.logits(hidden[:, -1:]).argmax(-1)
        ids = torch.cat([ids, token], dim=1)
        if ids.shape == expected.shape:
            break
        new = Frame(token, position=torch.tensor([[cache.length]]))
    assert torch.equal(ids, expected)
