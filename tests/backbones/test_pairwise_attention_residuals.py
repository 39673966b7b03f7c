"""Pairwise queries and biases: the reader's equation, slots, the start, tables that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels import depth_read
from lrt_lab.backbones import PairwiseAttentionResiduals
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.layers import Shape, initialize
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.golden import golden


def built(backbone: PairwiseAttentionResiduals, shape: Shape, slots: int) -> None:
    backbone.setup(shape, slots)
    backbone.double()
    g = torch.Generator().manual_seed(0)
    for target in backbone.parameters():
        target.data = torch.randn(target.shape, generator=g, dtype=torch.float64)


def random(seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 6, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_a_reader_of_nineteen_sources(reader: int) -> None:
    """Bank (B, source, d): the embedding, 16 unit outputs, two slots; the head takes each reader.

    q (reader, source, d) and bias (reader, source) go to the rows by source, slots to their own.
    """
    expected = golden("s3e42_reader")
    bank, query, bias = expected["bank"], expected["q"][reader], expected["bias"][reader]
    backbone = PairwiseAttentionResiduals(eps=float(expected["eps"]))
    built(backbone, Shape(bank.shape[-1], 8, 1), 2)
    with torch.no_grad():
        for source in range(17):
            row = backbone.pairs(source).stop - 1
            backbone.pair_query[row], backbone.pair_bias[row] = query[source], bias[source]
        backbone.slot_query[:, -1], backbone.slot_bias[:, -1] = query[17:], bias[17:]
    sources = bank.unsqueeze(1).unbind(2)
    present = torch.ones(2, 1, dtype=torch.bool)
    state = backbone.start(sources[0], [(sources[17], present), (sources[18], present)])
    for unit in range(16):
        state = backbone.write(state, unit, sources[unit + 1])
    assert_close(backbone.finish(state).squeeze(1), expected["h"][:, reader], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_reader_has_its_own_queries(size: int) -> None:
    backbone = PairwiseAttentionResiduals(scale=3.0, block_size=size)
    built(backbone, Shape(6, 2, 1), 1)
    embedding, z, *outputs = (random(seed) for seed in range(6))
    present = torch.tensor([[True, False, True], [False, True, True]])
    state = backbone.start(embedding, [(z, present)])
    for reader in range(1, 5):
        state = backbone.write(state, reader - 1, outputs[reader - 1])
        before = outputs[:reader]
        blocks = [sum(before[i : i + size]) for i in range(0, reader, size)]
        rows = [
            backbone.pairs(j).start + reader - backbone.first[j] for j in range(len(blocks) + 1)
        ]
        own = backbone.slot_query[0, reader], backbone.slot_bias[0, reader]
        query = torch.stack([own[0], *backbone.pair_query[rows]])
        bias = torch.stack([own[1], *backbone.pair_bias[rows]])
        masks = [present, *[None] * len(rows)]
        wanted = depth_read([z, embedding, *blocks], query, bias, 3.0, backbone.eps, masks)
        assert error(backbone.hidden(state, reader), wanted) <= SAME


def test_biases_alone_move_weight() -> None:
    backbone = PairwiseAttentionResiduals()
    built(backbone, Shape(6, 1, 1), 0)
    with torch.no_grad():
        backbone.pair_query.zero_()
        backbone.pair_bias.zero_()
    x, y = random(0), random(1)
    state = backbone.write(backbone.start(x, []), 0, y)
    assert error(backbone.hidden(state, 1), (x + y) / 2) <= SAME
    with torch.no_grad():
        backbone.pair_bias[backbone.pairs(0)] = 16.0
    state = backbone.write(backbone.start(x, []), 0, y)
    share = torch.sigmoid(torch.tensor(1.0)).double()
    assert error(backbone.hidden(state, 1), share * x + (1 - share) * y) <= 1e-7


def test_the_start_is_the_mean_of_the_sources() -> None:
    backbone = PairwiseAttentionResiduals().double()
    backbone.setup(Shape(6, 1, 1), 1)
    initialize(backbone, 1)
    x, z, y = random(0), random(1), random(2)
    state = backbone.start(x, [(z, torch.ones(2, 3, dtype=torch.bool))])
    state = backbone.write(state, 0, y)
    assert error(backbone.hidden(state, 1), (x + y + z) / 3) <= 1e-7
    assert error(backbone.hidden(state, 1), x + y + z) > DIFFERENT


def test_a_table_of_another_depth_does_not_fit() -> None:
    shallow, deep, blocks = (
        Decoder(8, depth, 4, backbone=PairwiseAttentionResiduals(block_size=size))
        for depth, size in ((2, 1), (3, 1), (2, 2))
    )
    for other in (deep, blocks):
        with pytest.raises(UserError, match="a pairwise table of 15 rows does not fit") as raised:
            other.load_state_dict(shallow.state_dict(), strict=False)
        assert "\n" not in str(raised.value)
    shallow.load_state_dict(shallow.state_dict())


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_the_scale_is_positive(scale: float) -> None:
    with pytest.raises(UserError, match="it divides the logits; give a positive"):
        PairwiseAttentionResiduals(scale=scale)
