"""MiddleJacobi: what it evaluates, how far gradients go back, and what it costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT, T2MLR, FullBandwidth, Householder
from lrt_lab.schedules import Clock, Jacobi, MiddleJacobi
from tests.support.compare import SAME, error
from tests.support.models import T, exact, run, small_decoder, tokens

BACKBONES = pytest.mark.parametrize(
    "backbone", [PreNorm(), AttentionResiduals()], ids=["PreNorm", "AttentionResiduals"]
)
ROUTES = pytest.mark.parametrize(
    "route", [T2MLR(), T2MLR(0, 3), LRT(), FullBandwidth(), Householder()], ids=lambda r: str(r)[:9]
)


@BACKBONES
@ROUTES
@torch.no_grad()
def test_enough_depth_reaches_the_exact_recurrence(backbone, route) -> None:
    decoder, frame = small_decoder(backbone, route), Frame(tokens())
    (only,) = run(MiddleJacobi(T - 1 + route.traits.offset), decoder, frame)
    assert error(only.hidden, exact(decoder, frame)) <= SAME


@BACKBONES
@ROUTES
@torch.no_grad()
def test_it_leaves_what_whole_passes_leave(backbone, route) -> None:
    """Nothing outside the interval takes part in the recurrence."""
    decoder, frame = small_decoder(backbone, route), Frame(tokens())
    (only,) = run(MiddleJacobi(4), decoder, frame)
    assert error(only.hidden, run(Jacobi(5), decoder, frame)[-1].hidden) <= SAME


def carried_gradients(backward: int | None, forward: int = 5) -> list[float]:
    """|dL/d(what each sweep left)|, in order, with the loss on the scored pass."""
    decoder, frame, left = small_decoder(route=T2MLR()), Frame(tokens()), []
    memory = decoder.memory

    def noted(carried: Tensor, *rest):
        # A leaf of its own where the graph was cut, so that its gradient can be asked for.
        carried = carried if carried.requires_grad else carried.requires_grad_()
        left.append(carried)
        return memory(carried, *rest)

    decoder.memory = noted  # type: ignore[method-assign]
    (only,) = MiddleJacobi(forward, backward).passes(decoder, frame, Clock())
    gradients = torch.autograd.grad(only.hidden.square().sum(), left, allow_unused=True)
    return [0.0 if g is None else float(g.norm()) for g in gradients]


@pytest.mark.parametrize("backward", [0, 1, 2, 4, 5, None])
def test_gradients_cross_so_many_feedback_edges(backward: int | None) -> None:
    """Cut states are leaves here: a leaf is reached one edge before what made it would be."""
    edges = 5 if backward is None else backward
    reached = [norm > 0 for norm in carried_gradients(backward)]
    assert reached == [False] * (4 - edges) + [True] * min(5, edges + 1)


def test_truncation_at_the_whole_depth_is_none() -> None:
    gradients = []
    for backward in (5, 7, None):
        decoder = small_decoder(route=T2MLR())
        run(MiddleJacobi(5, backward), decoder, Frame(tokens()))[0].hidden.sum().backward()
        gradients.append([p.grad for p in decoder.parameters() if p.grad is not None])
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


def test_the_entry_keeps_its_graph_at_depth_zero() -> None:
    """Truncated to nothing, the scored sweep still teaches the blocks below the interval."""
    decoder = small_decoder(route=T2MLR(1, 2))
    run(MiddleJacobi(4, 0), decoder, Frame(tokens()))[0].hidden.sum().backward()
    assert decoder.units[0].body.query.grad.any()
    assert decoder.route.projection.grad.any()


@pytest.mark.parametrize(("first", "last"), [(12, 17), (0, 29), (4, 4)])
def test_the_published_cost(first: int, last: int) -> None:
    with torch.device("meta"):
        decoder = Decoder(8, 30, 5, route=T2MLR(first, last), mixer=Attention(heads=1))
    expected = 2 + 15 * (last - first + 1) / 30
    assert MiddleJacobi().cost(100, decoder) == pytest.approx(100 * expected)


def test_refusals() -> None:
    with pytest.raises(UserError, match=r"^schedule.forward=0: memory is fed back at least once$"):
        MiddleJacobi(0)
    line = r"^schedule.backward=-1: give 0 or more, or null for all edges$"
    with pytest.raises(UserError, match=line):
        MiddleJacobi(2, -1)
