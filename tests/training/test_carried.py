"""What a model carries: the memory that enters, its slots and what they gather."""

from __future__ import annotations

import json

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals
from lrt_lab.frame import Frame
from lrt_lab.routes import Householder
from lrt_lab.training.carried import carried
from tests.support.linear import linear_decoder, scalar
from tests.support.models import documents, small_decoder, tokens
from tests.support.registry import ROUTES, Case


def test_a_linear_recurrence_is_carried_as_what_it_is() -> None:
    """m_t = a m_{t-1} + 1 in both entries: 1, 1 + a, 1 + a + a^2, .., all along one direction."""
    a, length = 0.5, 6
    found = carried(linear_decoder(scalar(a)), Frame(torch.ones(2, length, dtype=torch.long)))
    assert found is not None
    sizes = [0.0, *((1 - a**t) / (1 - a) for t in range(1, length))]
    assert found["position"] == list(range(length))
    assert found["size"] == [pytest.approx(sizes)]
    # Position 0 receives nothing, so it has no direction.
    assert found["positions"] == 2 * (length - 1)
    assert (found["rank"], found["cosine"], found["width"]) == (
        pytest.approx(1),
        pytest.approx(1),
        2,
    )
    assert found["sources"] is found["weights"] is None


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_every_route_says_what_it_carries(route: Case) -> None:
    decoder, frame = small_decoder(AttentionResiduals(), route()), Frame(tokens(), documents(5, 7))
    before = torch.get_rng_state()
    found = carried(decoder, frame)
    json.dumps(found, allow_nan=False)
    assert torch.equal(before, torch.get_rng_state())
    traits = decoder.route.traits
    assert (found is not None) == (traits.recurrent and not traits.silent)
    if found is None:
        return
    assert 1 <= found["rank"] <= found["width"] == decoder.shape.width
    assert all(size[0] == 0 < size[1] for size in found["size"])
    gathers = "gather" in dict(decoder.route.named_children())
    assert (found["weights"] is not None) == gathers
    if gathers:
        assert len(found["weights"]) == len(found["size"]) == decoder.route.kept
        assert [sum(row) for row in found["weights"]] == pytest.approx([1] * decoder.route.kept)


@torch.no_grad()
def test_slots_that_turn_keep_the_norm_of_what_they_gathered() -> None:
    """With large biases both slots gather the embedding, which is normed."""
    decoder = small_decoder(AttentionResiduals(), Householder(scale=1.0))
    decoder.route.gather.query.zero_()
    decoder.route.gather.bias.zero_()[0] = 50
    found = carried(decoder, Frame(tokens(), documents(5, 7)))
    assert found is not None
    for slot in (0, 1):
        shares = dict(zip(found["sources"], found["weights"][slot], strict=True))
        assert shares["embedding"] == pytest.approx(1)
        assert found["size"][slot] == pytest.approx([0.0, *[1.0] * 4, 0.0, *[1.0] * 6], abs=1e-3)


def test_a_diverged_model_carries_nothing_that_can_be_told() -> None:
    decoder = small_decoder(AttentionResiduals(), Householder())
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.fill_(torch.nan)
    assert carried(decoder, Frame(tokens())) is None
