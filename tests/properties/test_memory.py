"""A zero memory, an absent one and none at all."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.frame import Frame, Memory
from lrt_lab.schedules import Jacobi
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import documents, run, small_decoder, tokens
from tests.support.registry import BACKBONES, RECURRENT, Case, each_recurrent_pair, plain


@each_recurrent_pair
def test_zero_memory_is_no_memory_where_the_traits_say_so(backbone: Case, route: Case) -> None:
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens())
    with torch.no_grad():
        none = decoder.sweep(frame, frame.positions)
        left = decoder.memory(torch.zeros_like(none.carried), frame, frame.positions)
        # What enters need not have the shape of what left.
        zero, present = torch.zeros_like(left.value), torch.ones_like(frame.ids, dtype=torch.bool)
        absent = Memory(zero, ~present)
        entering = [Memory(zero, present), left]
        off = [
            error(decoder.sweep(frame, frame.positions, m).hidden, none.hidden) for m in entering
        ]
        off.append(error(decoder.sweep(frame, frame.positions, absent).hidden, none.hidden))
    traits = route().traits
    if traits.zero_is_none is not None:
        assert (off[0] <= SAME) == traits.zero_is_none
    assert (off[2] <= SAME) == traits.absent_is_none
    assert max(off[1:]) <= SAME or not traits.absent_is_none or not traits.zero_is_none


@each_recurrent_pair
def test_memory_matters_where_it_is_kept_and_only_there(backbone: Case, route: Case) -> None:
    """A position that is told to run without memory does; those before it do not notice."""
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens(), documents(5, 7))
    keep = torch.ones_like(frame.ids, dtype=torch.bool)
    keep[:, 7] = False
    with torch.no_grad():
        carried = decoder.sweep(frame, frame.positions).carried
        whole = decoder.memory(carried, frame, frame.positions)
        mixed = decoder.memory(carried, frame, frame.positions, keep)
        subset = decoder.memory(carried, frame, range(1, 12, 3), keep)
        one, two = (decoder.sweep(frame, frame.positions, m).hidden for m in (whole, mixed))
    assert whole.present.tolist() == [[t not in (0, 5) for t in frame.positions]] * 2
    assert mixed.present.tolist() == [[t not in (0, 5, 7) for t in frame.positions]] * 2
    assert not mixed.value[:, [0, 5, 7]].any()
    assert torch.equal(subset.value, mixed.value[:, 1::3])
    assert torch.equal(subset.present, mixed.present[:, 1::3])
    assert torch.equal(one[:, :7], two[:, :7])
    assert error(one[:, 7], two[:, 7]) > DIFFERENT


#: Routes that add depth sources, which only their setup knows.
SLOTTED = [r for r in RECURRENT if small_decoder(route=r()).route.slots]


@pytest.mark.parametrize(
    ("backbone", "route"),
    [(b, r) for b in BACKBONES for r in SLOTTED if plain(b) or plain(r)],
    ids=str,
)
@torch.no_grad()
def test_absent_slots_take_no_share(backbone: Case, route: Case) -> None:
    """They are left out of every softmax: a zero vector would take its weight."""
    decoder, frame = small_decoder(backbone(), route()), Frame(tokens(), documents(5, 7))
    before = run(Jacobi(2), decoder, frame)
    asked = [p for name, p in decoder.backbone.named_parameters() if "slot" in name]
    for target in [*asked, *decoder.route.parameters()]:
        target.add_(1.0)
    after = run(Jacobi(2), decoder, frame)
    assert torch.equal(after[0].hidden, before[0].hidden)
    starts = [0, 5]
    assert error(after[1].hidden[:, starts], before[1].hidden[:, starts]) <= SAME


@pytest.mark.parametrize("route", RECURRENT, ids=str)
def test_what_enters_is_what_left_the_position_before(route: Case) -> None:
    decoder, frame = small_decoder(route=route()), Frame(tokens())
    with torch.no_grad():
        carried = decoder.sweep(frame, frame.positions).carried
        moved = carried.clone()
        moved[:, 4] += 1
        before, after = (decoder.memory(c, frame, frame.positions).value for c in (carried, moved))
    changed = (before != after).flatten(2).any(-1).any(0)
    assert changed.nonzero().flatten().tolist() == [5]
    assert carried.shape[2:] == decoder.route.carries
