"""No position hears of later ones, and the route does carry something, as far as its passes allow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Jacobi
from tests.support.models import B, T, attentions, documents, run, small_decoder, tokens
from tests.support.registry import BACKBONES, ROUTES, SCHEDULES, Case

WINDOWS = pytest.mark.parametrize("window", [None, 3], ids=lambda w: f"window {w}")


def own_ids() -> Tensor:
    """A token id of its own for every position, so that an embedding row's gradient is a position's."""
    return torch.arange(B * T).view(B, T)


@WINDOWS
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_a_changed_token_changes_no_earlier_position(
    backbone: Case, route: Case, schedule: Case, window: int | None
) -> None:
    mixer = Attention(heads=2, kv_heads=1, window=window)
    decoder = small_decoder(backbone(), route(), mixer=mixer)
    document = documents(3, 9)
    for changed in (4, 7):
        ids = tokens()
        ids[:, changed] = (ids[:, changed] + 1) % decoder.shape.vocab
        for reference in (None, document):
            with torch.no_grad():
                before = run(schedule(), decoder, Frame(tokens(), reference))
                after = run(schedule(), decoder, Frame(ids, reference))
            for one, other in zip(before, after, strict=True):
                earlier = [t < changed for t in one.positions]
                assert torch.equal(one.hidden[:, earlier], other.hidden[:, earlier]), one.name
                if changed in one.positions:
                    here = one.positions.index(changed)
                    assert not torch.equal(one.hidden[:, here], other.hidden[:, here]), one.name


@WINDOWS
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_no_gradient_reaches_later_tokens(
    backbone: Case, route: Case, schedule: Case, window: int | None
) -> None:
    mixer = Attention(heads=2, kv_heads=1, window=window)
    decoder = small_decoder(backbone(), route(), mixer=mixer)
    for scored in run(schedule(), decoder, Frame(own_ids())):
        for column, t in list(enumerate(scored.positions))[1:4]:
            top = scored.hidden[:, column].square().sum()
            (gradient,) = torch.autograd.grad(top, decoder.embedding, retain_graph=True)
            reached = gradient[: B * T].view(B, T, -1).ne(0).any(-1)
            assert reached[:, t].all()
            assert not reached[:, t + 1 :].any()


@pytest.mark.parametrize("feedback", [0, 1, 2, 4])
@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_the_state_path_reaches_as_far_as_its_passes(
    backbone: Case, route: Case, feedback: int
) -> None:
    """With attention confined to its own position, a token is heard ``feedback`` positions on, no further."""
    decoder = small_decoder(backbone(), route())
    for attention in attentions(decoder):
        attention.own_only = True
    hidden = run(Jacobi(feedback + 1), decoder, Frame(own_ids()))[-1].hidden
    t = T - 3
    (gradient,) = torch.autograd.grad(hidden[:, t].square().sum(), decoder.embedding)
    reached = gradient[: B * T].view(B, T, -1).ne(0).any(-1)
    distance = feedback if route.part.traits.recurrent else 0
    assert reached.tolist() == [[t - distance <= s <= t for s in range(T)]] * B


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_rows_do_not_hear_each_other(backbone: Case, route: Case) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    other = torch.cat([ids[:1], (ids[1:] + 1) % decoder.shape.vocab])
    with torch.no_grad():
        for one, two in zip(
            run(Jacobi(3), decoder, Frame(ids)), run(Jacobi(3), decoder, Frame(other)), strict=True
        ):
            assert torch.equal(one.hidden[0], two.hidden[0])
