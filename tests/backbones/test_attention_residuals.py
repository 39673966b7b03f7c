"""Attention Residuals: whole stacks against published code, the start, injection and sources."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals
from lrt_lab.layers import Shape
from tests.backbones.stacks import Stack, stack
from tests.support.compare import DIFFERENT, error, rms_error
from tests.support.golden import golden

FAR = 2e-5


def with_queries(arrays: dict) -> tuple[Stack, torch.Tensor]:
    """The stack with the file's queries (readers, d): reader u < 8 is unit u, reader 8 the head."""
    decoder, frame = stack(AttentionResiduals(eps=float(arrays["eps"])), arrays)
    with torch.no_grad():
        if "query" in arrays:
            decoder.backbone.query.copy_(arrays["query"])
        if "key_norm_weight" in arrays:
            decoder.backbone.key_gain.copy_(arrays["key_norm_weight"])
    return decoder, frame


def unnormed_top(decoder: Stack, frame) -> tuple[torch.Tensor, tuple, list[torch.Tensor]]:
    """The head's read, the bank and every unit's read."""
    units = decoder.shape.units
    saved = decoder.sweep(frame, frame.positions, save=tuple(range(units + 1))).saved
    reads = [decoder.backbone.read(saved[u], u) for u in range(units)]
    return decoder.backbone.finish(saved[units]), saved[units].values, reads


def test_the_whole_stack() -> None:
    expected = golden("attnres_full_stack_fp32")
    decoder, frame = with_queries(expected)
    top, bank, reads = unnormed_top(decoder, frame)
    out = decoder.norm(top)
    assert rms_error(top, expected["h_final"]) <= FAR
    assert rms_error(out, expected["out"]) <= FAR
    assert torch.equal(out, decoder.sweep(frame, frame.positions).hidden)
    for unit, read in enumerate(reads):
        assert rms_error(read, expected["layer_inputs"][unit]) <= FAR
    for source, value in enumerate(bank):
        assert rms_error(value, expected["sources"][source]) <= FAR
    loss = out.square().sum()
    loss.backward()
    assert rms_error(loss, expected["loss"]) <= FAR
    backbone, units = decoder.backbone, decoder.units
    gradients = {
        "embed": decoder.embedding.grad.view_as(expected["embed"]),
        "W": torch.stack([unit.body.weight.grad for unit in units]),
        "input_norm_weight": torch.stack([unit.norm.gain.grad for unit in units]),
        "key_norm_weight": backbone.key_gain.grad,
        "query": backbone.query.grad,
        "final_norm_weight": decoder.norm.gain.grad,
    }
    for name, gradient in gradients.items():
        assert rms_error(gradient, expected[f"grad_{name}"]) <= FAR, name
    # Unit 0 has one source to read.
    assert not backbone.query.grad[0].any()


def test_an_independent_peer() -> None:
    expected = golden("attnres_full_flashattnres_fp32")
    decoder, frame = with_queries(expected)
    top, _, _ = unnormed_top(decoder, frame)
    assert rms_error(top, expected["h_final"]) <= FAR
    loss = top.square().sum()
    loss.backward()
    assert rms_error(loss, expected["loss"]) <= FAR
    weight = torch.stack([unit.body.weight.grad for unit in decoder.units])
    assert rms_error(weight, expected["grad_W"]) <= FAR
    assert rms_error(decoder.backbone.query.grad, expected["grad_query"]) <= FAR
    embed = decoder.embedding.grad.view_as(expected["embed"])
    assert rms_error(embed, expected["grad_embed"]) <= FAR


def test_zero_queries_read_the_mean() -> None:
    expected = golden("attnres_full_zero_query_fp32")
    decoder, frame = with_queries(expected)
    top, bank, reads = unnormed_top(decoder, frame)
    assert rms_error(top, expected["h_final"]) <= FAR
    for source, value in enumerate(bank):
        assert rms_error(value, expected["sources"][source]) <= FAR
    for unit, read in enumerate(reads):
        assert rms_error(read, torch.stack(bank[: unit + 1]).mean(0)) <= FAR


@pytest.fixture
def backbone() -> AttentionResiduals:
    backbone = AttentionResiduals().double()
    backbone.setup(Shape(6, 2, 1), 1)
    g = torch.Generator().manual_seed(0)
    for target in backbone.parameters():
        target.data = torch.randn(target.shape, generator=g, dtype=torch.float64)
    return backbone


def random(seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 6, generator=g, dtype=torch.float64)


def test_an_injection_changes_one_read_and_nothing_else(backbone: AttentionResiduals) -> None:
    state = backbone.write(backbone.start(random(0), []), 0, random(1))
    plain = backbone.hidden(state, 1)
    entered = backbone.enter(state, 1, lambda x: 3 * x + 1)
    assert torch.equal(backbone.read(entered, 1), 3 * plain + 1)
    # The state from before, the hidden state and what comes after do not know of it.
    assert torch.equal(backbone.read(state, 1), plain)
    assert torch.equal(backbone.hidden(entered, 1), plain)
    y = random(2)
    after, without = backbone.write(entered, 1, y), backbone.write(state, 1, y)
    assert torch.equal(backbone.read(after, 2), backbone.read(without, 2))
    assert torch.equal(backbone.finish(after), backbone.finish(without))


def test_an_absent_source_takes_no_weight(backbone: AttentionResiduals) -> None:
    x, z, y = random(0), random(1), random(2)
    present = torch.tensor([[True, False, True], [False, True, True]])
    masked = backbone.write(backbone.start(x, [(z, present)]), 0, y)
    alone = backbone.write(backbone.start(x, []), 0, y)
    full = backbone.write(backbone.start(x, [(z, torch.ones_like(present))]), 0, y)
    for unit in (1, 4):
        got = backbone.hidden(masked, unit)
        expected = torch.where(
            present.unsqueeze(-1), backbone.hidden(full, unit), backbone.hidden(alone, unit)
        )
        assert error(got, expected) <= 1e-12
        # An absent source is not a zero one.
        zero = backbone.write(backbone.start(x, [(z * 0, torch.ones_like(present))]), 0, y)
        assert error(backbone.hidden(zero, unit), backbone.hidden(alone, unit)) > DIFFERENT


def test_the_start_is_not_prenorm(backbone: AttentionResiduals) -> None:
    with torch.no_grad():
        backbone.query.zero_()
    x, y = random(0), random(1)
    state = backbone.write(backbone.start(x, []), 0, y)
    assert error(backbone.hidden(state, 1), (x + y) / 2) <= 1e-12
