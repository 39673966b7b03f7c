"""Depth, tokens, time: each path can be switched off alone, and then carries nothing."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import MUDDFormer, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.schedules import Interleaved, Jacobi
from lrt_lab.training.run import Run
from tests.support.compare import SAME, error
from tests.support.cut import Cut
from tests.support.models import exact, run, small_decoder, tokens
from tests.support.registry import BACKBONES, MIXERS, Case

LENGTH, SIZES = 5, {"width": 12, "blocks": 3}
UNITS = 6


def narrows(backbone: Case) -> bool:
    try:
        backbone().narrow()
    except UserError:
        return False
    return True


CHOOSING = [backbone for backbone in BACKBONES if narrows(backbone)]
SOURCES = [backbone for backbone in CHOOSING if backbone.part is not MUDDFormer]


def heard(decoder: Decoder, schedule) -> list[int]:
    """The positions whose tokens the last one depends on."""
    ids = torch.arange(2 * LENGTH).view(2, LENGTH)
    hidden = run(schedule, decoder, Frame(ids))[-1].hidden[:, -1]
    (gradient,) = torch.autograd.grad(hidden.square().sum(), decoder.embedding)
    own = gradient[: 2 * LENGTH].view(2, LENGTH, -1)
    return own.ne(0).any(-1).any(0).nonzero().flatten().tolist()


@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_without_tokens_only_memory_moves_on(mixer: Case) -> None:
    for route, passes, reached in ((NoRoute(), 3, [4]), (LRT(), 1, [4]), (LRT(), 3, [2, 3, 4])):
        decoder = small_decoder(PreNorm(), route, mixer=mixer(heads=2), attend="own", **SIZES)
        assert heard(decoder, Jacobi(passes)) == reached
        decoder.attend = "all"
        assert heard(decoder, Jacobi(passes)) == [0, 1, 2, 3, 4]
        cut = Cut(decoder, Frame(tokens(LENGTH)))
        assert all(cut.depth(reader) for reader in range(1, UNITS + 1))


@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_decoding_without_tokens_equals_training(mixer: Case) -> None:
    options = {"mixer": mixer(heads=2), "attend": "own", **SIZES}
    decoder, frame = small_decoder(MUDDFormer(), LRT(), **options), Frame(tokens(LENGTH))
    with torch.no_grad():
        passes = run(Jacobi(LENGTH), decoder, frame), run(Interleaved(LENGTH), decoder, frame)
    assert error(passes[0][-1].hidden, exact(decoder, frame)) <= SAME
    assert error(passes[1][-1].hidden, exact(decoder, frame)[:, -1:]) <= SAME


@pytest.mark.parametrize("backbone", SOURCES, ids=str)
def test_without_depth_a_unit_reads_the_newest_source(backbone: Case) -> None:
    block = getattr(backbone(), "block_size", 1)
    for route in (NoRoute(), LRT(), LRT(enters="source")):
        decoder = small_decoder(backbone(), route, depth="newest", **SIZES)
        cut = Cut(decoder, Frame(tokens(LENGTH)))
        for reader in range(UNITS + 1):
            # The outputs of the newest block, which is one source.
            first = 0 if not reader else (reader - 1) // block * block + 1
            assert cut.depth(reader) == frozenset(range(first, reader + 1))
        assert cut.hears(0) == cut.hears(2) == (not isinstance(route, NoRoute))
        assert cut.positions(2, LENGTH - 1) == list(range(LENGTH))


@pytest.mark.parametrize("backbone", [b for b in CHOOSING if b.part is MUDDFormer], ids=str)
def test_without_depth_a_block_reads_the_newest_output(backbone: Case) -> None:
    for route in (NoRoute(), LRT(enters="source")):
        decoder = small_decoder(backbone(), route, depth="newest", **SIZES)
        sources = [torch.randn(1, 2, 12).double().requires_grad_() for _ in range(4)]
        slots = [(torch.randn(1, 2, 12).double().requires_grad_(), torch.ones(1, 2).bool())]
        aggregate = decoder.backbone.aggregate(3)
        slots = slots if aggregate.slots else []
        inputs = [*sources, *(value for value, _ in slots)]
        reads = aggregate(torch.randn(1, 2, 12).double(), sources, slots)
        found = torch.autograd.grad(
            sum((read * torch.randn(12)).sum() for read in reads), inputs, allow_unused=True
        )
        reached = [gradient is not None and bool(gradient.any()) for gradient in found]
        assert reached == [False, False, False, True, *[True] * len(slots)]
        cut = Cut(decoder, Frame(tokens(LENGTH)))
        assert cut.hears(0) == bool(slots)
        assert cut.positions(2, LENGTH - 1) == list(range(LENGTH))


@pytest.mark.parametrize("backbone", [b for b in BACKBONES if not b.options], ids=str)
def test_without_a_route_nothing_is_heard(backbone: Case) -> None:
    cut = Cut(small_decoder(backbone(), NoRoute(), **SIZES), Frame(tokens(LENGTH)))
    assert cut.carried is None and not any(map(cut.hears, range(UNITS + 1)))
    assert cut.depth(UNITS) and cut.positions(0, LENGTH - 1) == list(range(LENGTH))


def test_what_cannot_be_switched_is_said() -> None:
    with pytest.raises(UserError, match="PreNorm does not choose among sources"):
        Decoder(depth="newest")
    with pytest.raises(UserError, match="model.attend='self': give all or own"):
        Decoder(attend="self")


def test_a_switch_that_is_on_leaves_a_run_what_it_was() -> None:
    def made(**options: str) -> Run:
        model = {"backbone": {"class_path": "AttentionResiduals"}, **options}
        return Run({"trainer": {"max_steps": 1}, "model": model})

    plain = made()
    assert not {"attend", "depth"} & set(plain.config["model"])
    assert plain.hash == made(attend="all", depth="all").hash
    for switch in ({"attend": "own"}, {"depth": "newest"}):
        assert plain.hash != made(**switch).hash
        assert made(**switch).price().train_flops_per_token < plain.price().train_flops_per_token
