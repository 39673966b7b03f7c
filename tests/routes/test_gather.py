"""The gather's queries, and the weights that it says it used."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.layers import rms_norm
from lrt_lab.routes import Householder
from lrt_lab.routes.retain import Gather
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import B, T, documents, small_decoder, tokens

QUERIES = ("pairwise", "shared", "input")


def seen(decoder: Decoder) -> tuple[Gather, list, torch.Tensor, torch.Tensor]:
    """The gather, the bank and the top state of a second pass, and what it made of them."""
    frame, found = Frame(tokens(), documents(5, 7)), []
    memory = decoder.memory(decoder.sweep(frame, frame.positions).carried, frame, frame.positions)
    gather = decoder.route.gather
    handle = gather.register_forward_pre_hook(lambda _, inputs: found.append(inputs))
    carried = decoder.sweep(frame, frame.positions, memory).carried
    handle.remove()
    ((bank, top),) = found
    return gather, bank, top, carried


@pytest.mark.parametrize("queries", QUERIES)
@torch.no_grad()
def test_a_read_by_hand(queries: str) -> None:
    decoder = small_decoder(AttentionResiduals(), Householder(queries=queries, scale=3.0))
    gather, bank, top, carried = seen(decoder)
    values = torch.stack([value for value, _ in bank])
    query = {
        "pairwise": lambda: gather.query.unsqueeze(1).unsqueeze(1),
        "shared": lambda: gather.query,
        "input": lambda: torch.stack([top @ q.T for q in gather.query], dim=-2),
    }[queries]()
    logits = (query * rms_norm(values).unsqueeze(-2)).sum(-1) + gather.bias[:, None, None]
    present = torch.stack(
        [torch.ones(B, T).bool() if mask is None else mask for _, mask in bank]
    ).unsqueeze(-1)
    weights = (logits / 3.0).masked_fill(~present, -torch.inf).softmax(0)
    assert error((weights.unsqueeze(-1) * values.unsqueeze(-2)).sum(0), carried) <= SAME
    assert error(gather.weights(bank, top), weights.permute(1, 2, 3, 0)) <= SAME
    assert not gather.weights(bank, top)[:, [0, 5], :, 1:3].any()


@torch.no_grad()
def test_only_input_queries_depend_on_the_position() -> None:
    for queries in QUERIES:
        gather, bank, top, _ = seen(small_decoder(route=Householder(queries=queries)))
        moved = gather.weights(bank, top + 1)
        change = error(moved, gather.weights(bank, top))
        assert change > DIFFERENT if queries == "input" else change == 0


@pytest.mark.parametrize(
    ("queries", "count"),
    [("pairwise", 2 * 11 * 8), ("shared", 2 * 8), ("input", 2 * 8 * 8)],
)
def test_query_parameters(queries: str, count: int) -> None:
    gather = small_decoder(route=Householder(queries=queries)).route.gather
    assert gather.query.numel() == count
    assert gather.bias.numel() == 2 * 11
