"""The lattice's edges are the gradients that are not zero, on tiny instances."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, HyperConnections, MUDDFormer, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention, SimplicialAttention
from lrt_lab.routes import LRT, T2MLR, Coconut, FullBandwidth, Householder, NoRoute
from lrt_lab.training.lattice import Lattice, lattice
from tests.support.cut import Cut
from tests.support.models import small_decoder, tokens
from tests.support.registry import BACKBONES, MIXERS, PAIRS, Case, plain

LENGTH, WIDTH, BLOCKS, UNITS = 4, 12, 3, 6


def traced(backbone=None, route=None, mixer=None, **options) -> Lattice:
    with torch.device("meta"):
        return lattice(
            Decoder(WIDTH, BLOCKS, 11, backbone, route, mixer or Attention(heads=2), **options)
        )


def frame(route) -> Frame:
    ids = tokens(LENGTH)
    return Frame(ids, silent=torch.ones_like(ids).bool() if route.traits.silent else None)


def compare(backbone, route, mixer, **options) -> None:
    drawn = traced(backbone, route, mixer, **options)
    decoder = small_decoder(
        backbone, route, width=WIDTH, blocks=BLOCKS, mixer=mixer, ffn=None, **options
    )
    cut = Cut(decoder, frame(decoder.route))
    readers = range(UNITS + 1)
    assert tuple(cut.depth(reader) for reader in readers) == drawn.depth
    assert tuple(cut.hears(reader) for reader in readers) == drawn.hears
    for unit, back in enumerate(drawn.lookback):
        for t in (1, LENGTH - 1):
            first = 0 if back is None else max(0, t - back)
            assert cut.positions(unit, t) == list(range(first, t + 1))
    if cut.carried is not None:
        assert cut.heights(cut.carried) == drawn.leaves


@pytest.mark.parametrize(
    ("backbone", "route"),
    [pair for pair in PAIRS if plain(*pair) or plain(pair[0]) and pair[0].name == "PreNorm"],
    ids=str,
)
def test_edges_of_depth_and_time_are_gradients(backbone: Case, route: Case) -> None:
    compare(backbone(), route(), Attention(heads=2, kv_heads=1))


@pytest.mark.parametrize("backbone", [b for b in BACKBONES if not plain(b)], ids=str)
def test_edges_of_variants_are_gradients(backbone: Case) -> None:
    compare(backbone(), LRT(), Attention(heads=2, kv_heads=1))


WINDOWS = [
    Case("Attention(window=1)", Attention, (("window", 1),)),
    Case("SimplicialAttention(2, 3)", SimplicialAttention, (("window", 2), ("pair_window", 3))),
]


@pytest.mark.parametrize("attend", ["all", "own"])
@pytest.mark.parametrize("mixer", [*MIXERS, *WINDOWS], ids=str)
def test_edges_between_positions_are_gradients(mixer: Case, attend: str) -> None:
    for backbone in (PreNorm(), MUDDFormer()):
        compare(backbone, LRT(), mixer(heads=2), attend=attend)


def test_positions_of_memory_are_gradients() -> None:
    for kind, across in (("recurrent", 1), ("self", 0)):
        decoder = small_decoder(route=LRT(memory=kind))
        ids = tokens(LENGTH)
        carried = torch.ones(2, LENGTH, *decoder.route.carries).double().requires_grad_()
        memory = decoder.memory(carried, Frame(ids), range(LENGTH))
        (found,) = torch.autograd.grad(memory.value[:, 2].sum(), carried)
        assert found[0].flatten(1).any(-1).nonzero().flatten().tolist() == [2 - across]
        assert traced(route=LRT(memory=kind)).across == across


EVEN = {0, 2, 4}


@pytest.mark.parametrize(
    ("route", "port", "readers", "tap"),
    [
        pytest.param(NoRoute(), "enter", set(), "", id="none"),
        pytest.param(LRT(source=2), "enter", EVEN, "before unit 4", id="LRT"),
        pytest.param(LRT(source=2), "keys_values", EVEN, "before unit 4", id="LRT-kv"),
        pytest.param(LRT(enters="read"), "read", EVEN, "the top state", id="LRT-read"),
        pytest.param(T2MLR(first=1, last=1), "enter", {2}, "before unit 4", id="T2MLR"),
        pytest.param(
            FullBandwidth(), "embed", set(range(7)), "the normed top state", id="FullBandwidth"
        ),
        pytest.param(Coconut(), "embed", set(range(7)), "the normed top state", id="Coconut"),
        pytest.param(Householder(readers=[0, 3]), "sources", {0, 3}, "the bank", id="Householder"),
    ],
)
def test_memory_enters_where_each_paper_has_it(
    route, port: str, readers: set[int], tap: str
) -> None:
    drawn = traced(AttentionResiduals(), route)
    assert {r for r, ports in enumerate(drawn.enters) if port in ports} == readers
    assert drawn.tap == tap


@pytest.mark.parametrize(
    ("backbone", "kept"),
    [
        pytest.param(PreNorm(), lambda u: {u}, id="stream"),
        pytest.param(PreNorm(stream_scales=True), lambda u: {0, u}, id="stream-and-input"),
        pytest.param(HyperConnections(), lambda u: {u}, id="streams"),
        pytest.param(AttentionResiduals(), lambda u: set(range(u + 1)), id="all"),
        pytest.param(
            AttentionResiduals(block_size=2), lambda u: {*range(0, u + 1, 2), u}, id="blocks"
        ),
        pytest.param(MUDDFormer(), lambda u: {*range(0, u + 1, 2), u}, id="MUDDFormer"),
    ],
)
def test_a_backbone_keeps_what_its_paper_keeps(backbone, kept) -> None:
    assert traced(backbone).kept == tuple(frozenset(kept(u)) for u in range(UNITS + 1))
