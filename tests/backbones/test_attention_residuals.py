"""Attention Residuals: whole stacks against published code, heads, the start, reads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lrt_kernels import depth_read
from lrt_lab.backbones import AttentionResiduals, PairwiseAttentionResiduals
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape, initialize
from tests.backbones.stacks import Stack, stack
from tests.support.compare import DIFFERENT, SAME, error, rms_error
from tests.support.golden import golden
from tests.support.models import small_decoder, tokens

FAR = 2e-5


def with_queries(arrays: dict) -> tuple[Stack, torch.Tensor]:
    """The stack with the file's queries (readers, d): reader u < 8 is unit u, reader 8 the head."""
    size, gains = int(arrays.get("block_size_sublayers", 1)), "key_norm_weight" in arrays
    backbone = AttentionResiduals(size, key_gain=gains, eps=float(arrays["eps"]))
    decoder, frame = stack(backbone, arrays)
    with torch.no_grad():
        if "query" in arrays:
            decoder.backbone.query.copy_(arrays["query"])
        if gains:
            decoder.backbone.key_gain.copy_(arrays["key_norm_weight"])
    return decoder, frame


def unnormed_top(decoder: Stack, frame) -> tuple[torch.Tensor, tuple, list[torch.Tensor]]:
    """The head's read, the bank and every unit's read."""
    units = decoder.shape.units
    saved = decoder.sweep(frame, frame.positions, save=tuple(range(units + 1))).saved
    reads = [decoder.backbone.read(saved[u], u) for u in range(units)]
    return decoder.backbone.finish(saved[units]), saved[units].values, reads


@pytest.mark.parametrize("form", ["full_stack", "block_stack_bs2layers"])
def test_the_whole_stack(form: str) -> None:
    expected = golden(f"attnres_{form}_fp32")
    decoder, frame = with_queries(expected)
    top, bank, reads = unnormed_top(decoder, frame)
    out = decoder.norm(top)
    assert rms_error(top, expected["h_final"]) <= FAR
    assert rms_error(out, expected["out"]) <= FAR
    assert torch.equal(out, decoder.sweep(frame, frame.positions).hidden)
    for unit, read in enumerate(reads):
        assert rms_error(read, expected["layer_inputs"][unit]) <= FAR
    # In blocks, the embedding and the first block are sealed; the last one is still live in Kimi's.
    sources = expected.get("sources")
    if sources is None:
        sources = torch.cat([expected["sealed_blocks"], expected["live_last"].unsqueeze(0)])
    assert len(bank) == len(sources)
    for value, source in zip(bank, sources, strict=True):
        assert rms_error(value, source) <= FAR
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


@pytest.mark.parametrize("form", ["full", "block4"])
def test_an_independent_peer(form: str) -> None:
    expected = golden(f"attnres_{form}_flashattnres_fp32")
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


def test_how_many_sources_a_reader_has() -> None:
    expected = golden("attnres_block_stack_bs2layers_fp32")
    decoder, frame = with_queries(expected)
    saved = decoder.sweep(frame, frame.positions, save=tuple(range(9))).saved
    assert [len(saved[unit].values) for unit in range(9)] == expected["num_sources"].tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11])
def test_blocks_are_sums_of_units(size: int) -> None:
    """Any size, a ragged last block included, against the schedule written out."""
    expected = golden("attnres_full_stack_fp32")
    decoder, frame = with_queries({**expected, "block_size_sublayers": size})
    top, _, reads = unnormed_top(decoder, frame)
    queries = decoder.backbone.query * decoder.backbone.key_gain
    outputs: list[torch.Tensor] = []
    for unit in range(9):
        blocks = [sum(outputs[i : i + size]) for i in range(0, len(outputs), size)]
        expected_read = depth_read([expected["embed"], *blocks], queries[unit])
        got = top if unit == 8 else reads[unit]
        assert error(got, expected_read) <= 1e-5
        if unit < 8:
            module = decoder.units[unit]
            outputs.append(torch.tanh(F.linear(module.norm(expected_read), module.body.weight)))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_heads_mix_their_own_features(heads: int, size: int) -> None:
    backbone = random_backbone(AttentionResiduals(size, heads))
    embedding, z, *outputs = (random(seed) for seed in range(6))
    present = torch.tensor([[True, False, True], [False, True, True]])
    state = backbone.start(embedding, [(z, present)])
    for unit, y in enumerate(outputs):
        state = backbone.write(state, unit, y)
    blocks = [sum(outputs[i : i + size]) for i in range(0, 4, size)]
    values = torch.stack([embedding, z, *blocks])
    keys = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + backbone.eps)
    products = (keys * backbone.query[-1] * backbone.key_gain[-1]).unflatten(-1, (heads, -1))
    logits = products.sum(-1, keepdim=True)
    logits[1] = logits[1].masked_fill(~present[..., None, None], -torch.inf)
    expected = (logits.softmax(0) * values.unflatten(-1, (heads, -1))).sum(0).flatten(-2)
    assert error(backbone.finish(state), expected) <= SAME


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_a_read_is_never_longer_than_its_longest_source(scale: float, size: int) -> None:
    """One head: a mean lies inside the ball of what it averages. Sums, PreNorm's, do not."""
    backbone = random_backbone(AttentionResiduals(size))
    with torch.no_grad():
        backbone.query.mul_(scale)
    state = backbone.start(random(0), [])
    for unit in range(4):
        state = backbone.write(state, unit, 2.0**unit * random(unit + 1))
        longest = torch.stack([value.norm(dim=-1) for value in state.values]).amax(0)
        assert (backbone.hidden(state, unit + 1).norm(dim=-1) <= longest * (1 + 1e-12)).all()


def test_zero_queries_read_the_mean() -> None:
    expected = golden("attnres_full_zero_query_fp32")
    decoder, frame = with_queries(expected)
    top, bank, reads = unnormed_top(decoder, frame)
    assert rms_error(top, expected["h_final"]) <= FAR
    for source, value in enumerate(bank):
        assert rms_error(value, expected["sources"][source]) <= FAR
    for unit, read in enumerate(reads):
        assert rms_error(read, torch.stack(bank[: unit + 1]).mean(0)) <= FAR


@pytest.mark.parametrize("size", [2, 3])
def test_zero_queries_read_the_mean_of_blocks(size: int) -> None:
    backbone = AttentionResiduals(size).double()
    backbone.setup(Shape(6, 2, 1), 0)
    initialize(backbone, 1)
    embedding, *outputs = (random(seed) for seed in range(4))
    state = backbone.start(embedding, [])
    for unit, y in enumerate(outputs):
        state = backbone.write(state, unit, y)
    blocks = [sum(outputs[i : i + size]) for i in range(0, 3, size)]
    mean = torch.stack([embedding, *blocks]).mean(0)
    assert error(backbone.hidden(state, 3), mean) <= 1e-7


def random_backbone(backbone: AttentionResiduals) -> AttentionResiduals:
    backbone.setup(Shape(6, 2, 1), 1)
    g = torch.Generator().manual_seed(0)
    for target in backbone.parameters():
        target.data = torch.randn(target.shape, generator=g, dtype=torch.float64)
    return backbone


@pytest.fixture
def backbone() -> AttentionResiduals:
    return random_backbone(AttentionResiduals())


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


@pytest.mark.parametrize(
    "options, says",
    [
        ({"block_size": 0}, "block_size=0: give the units per block, at least 1 (full)"),
        ({"block_size": -2}, "block_size=-2"),
        ({"heads": 0}, "heads=0: give at least 1"),
        ({"heads": 4}, "heads=4 does not divide model.width=6"),
    ],
    ids=str,
)
def test_invalid_options_get_one_line(options: dict, says: str) -> None:
    with pytest.raises(UserError) as raised:
        AttentionResiduals(**options).setup(Shape(6, 2, 1), 0)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("mode", ["mixed", "true"])
@pytest.mark.parametrize("part", [AttentionResiduals, PairwiseAttentionResiduals])
def test_logits_are_wide_and_nothing_decays(part: type[AttentionResiduals], mode: str) -> None:
    dtype = torch.bfloat16 if mode == "true" else torch.float32
    decoder, frame = small_decoder(part()).to(dtype), Frame(tokens())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "mixed"):
        sweep = decoder.sweep(frame, frame.positions, save=(8,))
    assert sweep.hidden.dtype == dtype
    logits = [logit.dtype for source in sweep.saved[8].sources for logit in source.logits]
    assert set(logits) == {torch.float32}
    sweep.hidden.float().square().sum().backward()
    for name, target in decoder.backbone.named_parameters():
        assert target.role == "connection", name
        assert target.dtype == target.grad.dtype == torch.float32, name
