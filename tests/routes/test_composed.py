"""What is retained, how it changes and who reads it are independent choices."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from lrt_lab.backbones import (
    MHC,
    AttentionResiduals,
    HyperConnections,
    MUDDFormer,
    PairwiseAttentionResiduals,
    PreNorm,
)
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT, GatherFFN, Householder, Route
from lrt_lab.schedules import Jacobi, Serial
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import BLOCKS, WIDTH, T, documents, run, small_decoder, tokens

CHANGES = (LRT, GatherFFN, Householder)
RETAIN = ("block", "gather", "bank")
ENTERS = ("injection", "read", "source")


@pytest.mark.parametrize(
    ("change", "retain", "enters"), list(product(CHANGES, RETAIN, ENTERS)), ids=str
)
@torch.no_grad()
def test_every_combination_is_a_recurrence(change: type, retain: str, enters: str) -> None:
    decoder = small_decoder(AttentionResiduals(), change(retain=retain, enters=enters))
    frame = Frame(tokens(6), documents(2, 4))
    (truth,) = run(Serial(), decoder, frame)
    passes = run(Jacobi(6), decoder, frame)
    assert error(passes[-1].hidden, truth.hidden) <= SAME
    assert error(passes[0].hidden[:, 3:], truth.hidden[:, 3:]) > DIFFERENT


def left(decoder: Decoder) -> tuple[Tensor, Tensor]:
    """What leaves, and the stream before every unit and after the last one."""
    frame = Frame(tokens())
    units = list(range(decoder.shape.units + 1))
    out = decoder.sweep(frame, frame.positions, save=units)
    return out.carried, torch.stack([out.saved[unit].x for unit in units])


@pytest.mark.parametrize("route", [LRT, GatherFFN, Householder])
@torch.no_grad()
def test_one_block_or_the_whole_bank_leaves(route: type) -> None:
    carried, streams = left(small_decoder(PreNorm(), route(retain="block", source=2)))
    assert torch.equal(carried.squeeze(-2), streams[4])
    carried, streams = left(small_decoder(PreNorm(), route(retain="bank", enters="source")))
    assert error(carried, torch.cat([streams[:1], streams.diff(dim=0)]).movedim(0, -2)) <= SAME


@pytest.mark.parametrize("enters", ENTERS)
@torch.no_grad()
def test_a_learned_write_may_keep_what_arrived(enters: str) -> None:
    """With all weight on the memory it never changes, however it is read."""
    decoder = small_decoder(PreNorm(), LRT(retain="gather", enters=enters))
    frame = Frame(tokens())
    first = decoder.sweep(frame, frame.positions)
    memory = decoder.memory(first.carried, frame, frame.positions)
    decoder.route.gather.bias[1] = 1e6
    second = decoder.sweep(frame, frame.positions, memory)
    assert error(second.carried[:, 1:], first.carried[:, :-1]) <= SAME
    decoder.route.gather.bias[1] = -1e6
    other = decoder.sweep(frame, frame.positions, memory)
    assert error(other.carried[:, 1:], first.carried[:, :-1]) > DIFFERENT


@torch.no_grad()
def test_several_vectors_are_injected_in_a_mixture_per_block() -> None:
    decoder = small_decoder(PreNorm(), LRT(retain="bank"))
    route, frame = decoder.route, Frame(tokens())
    memory = decoder.memory(decoder.sweep(frame, frame.positions).carried, frame, frame.positions)
    assert route.choice.shape == (BLOCKS, 2 * BLOCKS + 1)
    route.choice[1] = 0
    assert error(route.injected(memory, 1), memory.value.mean(-2)) <= SAME
    route.choice[2] = torch.eye(2 * BLOCKS + 1)[5] * 1e6
    assert error(route.injected(memory, 2), memory.value[:, :, 5]) <= SAME
    one, two = route.project(memory, 1), route.project(memory, 2)
    assert error(one[0], two[0]) > DIFFERENT
    assert route.project(memory, 1)[0] is one[0]


def shown(backbone, route: Route, readers: list[int]) -> tuple[list[int], Decoder]:
    """Units whose read changes when a first memory arrives, attention seeing only its own."""
    decoder, frame = small_decoder(backbone, route), Frame(tokens())
    for unit in range(decoder.shape.units):
        # Without outputs nothing but a read itself can change.
        body = decoder.unit(unit).body
        (body.out if unit % 2 == 0 else body.down).zero_()
    memory = decoder.memory(decoder.sweep(frame, frame.positions).carried, frame, frame.positions)
    units = list(range(decoder.shape.units + 1))
    plain, routed = (
        decoder.sweep(frame, frame.positions, m, save=units).saved for m in (None, memory)
    )
    found = [
        unit
        for unit in units
        if error(
            decoder.backbone.hidden(routed[unit], unit), decoder.backbone.hidden(plain[unit], unit)
        )
        > DIFFERENT
    ]
    return found, decoder


@pytest.mark.parametrize("readers", [[0], [3], [2, 5, 8], [8]], ids=str)
@pytest.mark.parametrize(
    "backbone",
    [AttentionResiduals(), AttentionResiduals(heads=2), PairwiseAttentionResiduals()],
    ids=["AttentionResiduals", "heads=2", "Pairwise"],
)
@pytest.mark.parametrize("route", [LRT, Householder])
@torch.no_grad()
def test_only_the_readers_see_the_sources(backbone, route: type, readers: list[int]) -> None:
    found, _ = shown(backbone, route(enters="source", readers=readers), readers)
    assert found == readers


@torch.no_grad()
def test_all_readers_named_are_all_readers() -> None:
    named, free = (
        small_decoder(AttentionResiduals(), Householder(readers=readers))
        for readers in (list(range(2 * BLOCKS + 1)), None)
    )
    frame = Frame(tokens(4))
    one, two = (run(Serial(), decoder, frame)[0].hidden for decoder in (named, free))
    assert torch.equal(one, two)


@pytest.mark.parametrize("prepost", [False, True])
@torch.no_grad()
def test_muddformer_reads_sources_before_the_blocks_named(prepost: bool) -> None:
    decoder = small_decoder(MUDDFormer(prepost=prepost), LRT(enters="source", readers=[4, 8]))
    frame = Frame(tokens())
    names = {n for n, _ in decoder.named_parameters() if n.endswith("slot_prior")}
    assert names == {f"backbone.aggregates.{block}.slot_prior" for block in (2, 4)}
    memory = decoder.memory(decoder.sweep(frame, frame.positions).carried, frame, frame.positions)
    units = list(range(9))
    plain, routed = (
        decoder.sweep(frame, frame.positions, m, save=units).saved for m in (None, memory)
    )
    same = [error(routed[u].newest, plain[u].newest) <= SAME for u in units]
    # Block 2 reads the memory; from its own output on everything has heard of it.
    assert same == [True] * 6 + [False] * 3
    (truth,) = run(Serial(), decoder, frame)
    assert error(run(Jacobi(T), decoder, frame)[-1].hidden, truth.hidden) <= SAME


@pytest.mark.parametrize(
    "backbone", [PreNorm(), HyperConnections(), MHC()], ids=lambda b: type(b).__name__
)
def test_a_stream_cannot_hide_a_source(backbone) -> None:
    line = (
        rf"^route.readers=\[2\]: {type(backbone).__name__} adds a route's sources to its stream,"
        " which every unit reads; leave readers at null, or choose AttentionResiduals$"
    )
    with pytest.raises(UserError, match=line):
        small_decoder(backbone, LRT(enters="source", readers=[2]))


def test_muddformer_reads_before_blocks_only() -> None:
    line = r"^route.readers=\[2, 3\]: MUDDFormer reads .* leave out the FFNs' units \[3\]$"
    with pytest.raises(UserError, match=line):
        small_decoder(MUDDFormer(), LRT(enters="source", readers=[3, 2]))


@pytest.mark.parametrize("readers", [[], [9], [-1, 2]], ids=str)
def test_readers_are_units_or_the_head(readers: list[int]) -> None:
    line = r"^route.readers=.*: give units from 0 to 7, 8 for the head, or null for all of them$"
    with pytest.raises(UserError, match=line):
        small_decoder(AttentionResiduals(), LRT(enters="source", readers=readers))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"retain": "all"}, "route.retain='all': give block, gather or bank"),
        (
            {"retain": "bank", "source": 2},
            "route.source=2 is a block to retain: with route.retain=bank leave it at null",
        ),
        (
            {"retain": "block", "enters": "injection", "readers": [1]},
            "route.readers=[1]: with route.enters=injection every block receives; leave it at null,"
            " or set route.enters=source",
        ),
    ],
    ids=["retain", "source", "readers"],
)
@pytest.mark.parametrize("route", CHANGES)
def test_choices_that_contradict_each_other(route: type, options: dict, line: str) -> None:
    with pytest.raises(UserError) as raised:
        route(**options)
    assert str(raised.value) == line


def test_sources_are_as_many_as_what_is_retained() -> None:
    for route, kept in ((GatherFFN(retain="bank"), 9), (Householder(count=3), 3)):
        decoder = small_decoder(AttentionResiduals(), route)
        assert decoder.route.slots == kept and decoder.route.carries == (kept, WIDTH)
    assert len(decoder.route.turn) == 3
