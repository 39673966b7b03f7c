"""Where gradients flow, and that they stay finite where memory is absent."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Interleaved, Jacobi, Serial
from tests.support.compare import SAME, error
from tests.support.models import documents, run, small_decoder, tokens
from tests.support.registry import RECURRENT, Case, each_near_pair, each_recurrent_pair, each_trial


def total(decoder: Decoder, passes) -> Tensor:
    return sum(p.weight * decoder.logits(p.hidden).square().mean() for p in passes)


@each_near_pair
def test_subsets_send_gradients_through_the_first_pass_keys_and_values(
    backbone: Case, route: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The carried state is cut: the buffers are the only way back to what the first pass left."""
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    first: list[Tensor] = []
    memory = Decoder.memory

    def cut(self: Decoder, carried: Tensor, *rest) -> object:
        return memory(self, carried.detach(), *rest)

    monkeypatch.setattr(Decoder, "memory", cut)
    passes = Interleaved(3).passes(decoder, frame, Clock())
    sweep = Decoder.sweep

    def kept(self: Decoder, *args, **options):
        out = sweep(self, *args, **options)
        if not first:
            for buffer in out.buffers.values():
                parts = [getattr(buffer, f.name) for f in fields(buffer)]
                first.extend(part for part in parts if isinstance(part, Tensor))
        return out

    monkeypatch.setattr(Decoder, "sweep", kept)
    refined = list(passes)[1]
    gradients = torch.autograd.grad(refined.hidden.square().sum(), first)
    reached = [g.flatten(2).ne(0).any(-1).any(0).nonzero().flatten().tolist() for g in gradients]
    assert len(reached) == 2 * decoder.shape.blocks
    # Subset 0 has written its own positions anew and reads the others' as the first pass left them.
    stale = [t for t in range(9) if t % 3]
    assert all(set(stale) <= set(positions) for positions in reached)
    # The last block's have no other way to go; those below also shaped the first pass above them.
    assert reached[-2:] == [stale, stale]


@each_trial
def test_gradients_are_finite_at_document_starts(
    backbone: Case, route: Case, schedule: Case
) -> None:
    decoder = small_decoder(backbone(), route())
    frame = Frame(tokens(8), documents(1, 1, 4, 2))
    total(decoder, run(schedule(), decoder, frame)).backward()
    for name, target in decoder.named_parameters():
        if target.grad is not None:
            assert torch.isfinite(target.grad).all(), name


@each_recurrent_pair
def test_every_parameter_learns_once_memory_enters(backbone: Case, route: Case) -> None:
    decoder = small_decoder(backbone(), route())
    # A memory that is itself gathered by the next one takes two feedback passes to arrive.
    total(decoder, run(Jacobi(3), decoder, Frame(tokens()))).backward()
    still = [n for n, p in decoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


@each_near_pair
def test_exact_gradients_do_not_depend_on_the_schedule(backbone: Case, route: Case) -> None:
    """Serially, by enough passes, by single-position subsets: the last state has one derivative."""
    length, gradients = 6, []
    enough = 1 + route().traits.feedback(length)
    for schedule in (Serial(), Jacobi(enough), Interleaved(length)):
        decoder = small_decoder(backbone(), route())
        final = run(schedule, decoder, Frame(tokens(length)))[-1].hidden[:, -1]
        final.square().sum().backward()
        gradients.append(decoder.embedding.grad)
    assert error(gradients[1], gradients[0]) <= SAME
    assert error(gradients[2], gradients[0]) <= SAME


@pytest.mark.parametrize("route", RECURRENT, ids=str)
def test_no_gradient_leaks_through_a_document_start(route: Case) -> None:
    decoder = small_decoder(route=route())
    ids = torch.arange(12).view(1, 12)
    frame = Frame(ids, documents(5, 7, rows=1))
    hidden = run(Jacobi(4), decoder, frame)[-1].hidden
    hidden[:, 5:].square().sum().backward()
    assert not decoder.embedding.grad[:5].any()
    assert decoder.embedding.grad[5:12].any(-1).all()
