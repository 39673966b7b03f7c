"""GatherFFN by hand, and its share of the parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.layers import rms_norm
from lrt_lab.routes import GatherFFN, NoRoute
from tests.support.compare import SAME, error
from tests.support.models import small_decoder, tokens


@torch.no_grad()
def test_one_position_by_hand() -> None:
    """The bank of PreNorm is the embedding and the differences of the stream."""
    decoder, frame = small_decoder(route=GatherFFN()), Frame(tokens(2))
    units = decoder.shape.units
    out = decoder.sweep(frame, frame.positions, save=list(range(units + 1)))
    streams = torch.stack([out.saved[unit].x for unit in range(units + 1)])
    bank = torch.cat([streams[:1], streams.diff(dim=0)])
    # Source 1 is the memory, which is absent here.
    own = [0, *range(2, units + 2)]
    query, bias = decoder.route.gather.query[own, 0], decoder.route.gather.bias[own, 0]
    logits = torch.einsum("sbpd,sd->sbp", rms_norm(bank), query) + bias[:, None, None]
    gathered = (torch.softmax(logits, dim=0).unsqueeze(-1) * bank).sum(0)
    assert error(out.carried[:, :, 0], gathered) <= SAME
    memory = decoder.memory(out.carried, frame, frame.positions)
    gated = rms_norm(gathered[:, 0]) * decoder.embedding[frame.ids[:, 1]]
    (ffn,) = decoder.route.ffn
    expected = F.relu(gated @ ffn.up.T).square() @ ffn.down.T
    assert error(memory.value[:, 1, 0], expected) <= SAME
    assert not memory.value[:, 0].any()


@torch.no_grad()
def test_memory_joins_the_stream_as_it_is() -> None:
    decoder, frame = small_decoder(route=GatherFFN()), Frame(tokens())
    memory = decoder.memory(decoder.sweep(frame, frame.positions).carried, frame, frame.positions)
    plain, routed = (
        decoder.sweep(frame, frame.positions, m, save=[0]).saved[0].x for m in (None, memory)
    )
    assert error(routed - plain, memory.value[:, :, 0]) <= SAME


def test_parameter_count() -> None:
    routed, plain = (
        sum(p.numel() for p in Decoder(16, 4, 40, route=route).parameters())
        for route in (GatherFFN(hidden=24), NoRoute())
    )
    assert routed - plain == (8 + 2) * (16 + 1) + 2 * 16 * 24
