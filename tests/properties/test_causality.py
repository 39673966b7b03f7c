"""No position hears of later ones; the route carries something, as far as its passes allow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from lrt_lab.schedules import Jacobi
from tests.support.models import B, T, documents, run, small_decoder, tokens
from tests.support.registry import RECURRENT, Case, each_near_pair, each_trial

WINDOWS = pytest.mark.parametrize("window", [None, 3], ids=lambda w: f"window {w}")


def own_ids(length: int = T) -> Tensor:
    """A token id for every position: an embedding row's gradient is then that position's."""
    return torch.arange(B * length).view(B, length)


def heard(top: Tensor, embedding: Tensor, ids: Tensor) -> Tensor:
    """Which positions' tokens a number depends on, ``(B, T)`` bool."""
    (gradient,) = torch.autograd.grad(top, embedding, retain_graph=True)
    return gradient[: ids.numel()].view(*ids.shape, -1).ne(0).any(-1)


@WINDOWS
@each_trial
def test_a_changed_token_changes_no_earlier_position(
    backbone: Case, route: Case, schedule: Case, window: int | None
) -> None:
    mixer = Attention(heads=2, kv_heads=1, window=window)
    decoder = small_decoder(backbone(), route(), mixer=mixer)
    for changed, document in ((4, None), (7, documents(3, 9))):
        ids = tokens()
        ids[:, changed] = (ids[:, changed] + 1) % decoder.shape.vocab
        with torch.no_grad():
            before = run(schedule(), decoder, Frame(tokens(), document))
            after = run(schedule(), decoder, Frame(ids, document))
        for one, other in zip(before, after, strict=True):
            earlier = [t < changed for t in one.positions]
            assert torch.equal(one.hidden[:, earlier], other.hidden[:, earlier]), one.name
            if changed in one.positions:
                here = one.positions.index(changed)
                assert not torch.equal(one.hidden[:, here], other.hidden[:, here]), one.name


@WINDOWS
@each_trial
def test_no_gradient_reaches_later_tokens(
    backbone: Case, route: Case, schedule: Case, window: int | None
) -> None:
    mixer = Attention(heads=2, kv_heads=1, window=window)
    decoder = small_decoder(backbone(), route(), mixer=mixer)
    ids = own_ids(8)
    for scored in run(schedule(), decoder, Frame(ids)):
        t = scored.positions[1]
        reached = heard(scored.hidden[:, 1].square().sum(), decoder.embedding, ids)
        assert reached[:, t].all()
        assert not reached[:, t + 1 :].any()


@pytest.mark.parametrize("feedback", [0, 1, 2, 4])
@each_near_pair
def test_the_state_path_reaches_as_far_as_its_passes(
    backbone: Case, route: Case, feedback: int
) -> None:
    """With attention confined to its own position, a token is heard ``feedback`` positions on."""
    decoder = small_decoder(backbone(), route())
    decoder.attend = "own"
    ids, t = own_ids(), T - 3
    hidden = run(Jacobi(feedback + 1), decoder, Frame(ids))[-1].hidden
    reached = heard(hidden[:, t].square().sum(), decoder.embedding, ids)
    distance = route().traits.lookback + (feedback if route in RECURRENT else 0)
    assert reached.tolist() == [[t - distance <= s <= t for s in range(T)]] * B


@each_near_pair
def test_rows_do_not_hear_each_other(backbone: Case, route: Case) -> None:
    decoder, ids = small_decoder(backbone(), route()), tokens()
    other = torch.cat([ids[:1], (ids[1:] + 1) % decoder.shape.vocab])
    with torch.no_grad():
        for one, two in zip(
            run(Jacobi(3), decoder, Frame(ids)), run(Jacobi(3), decoder, Frame(other)), strict=True
        ):
            assert torch.equal(one.hidden[0], two.hidden[0])
