"""Contraction diagnostic: linear recurrences whose rate, radius and gradients are known."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lrt_lab.backbones import AttentionResiduals
from lrt_lab.data.batch import IGNORED
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT, Householder
from lrt_lab.training.carried import directions, rollout, slots
from lrt_lab.training.contraction import (
    LAGS,
    diagnose,
    gradients,
    jacobi,
    magnitudes,
    radius,
    rate,
    verdict,
)
from lrt_lab.training.loss import token_losses
from tests.support.compare import SAME, error
from tests.support.linear import linear_decoder, scalar
from tests.support.models import VOCAB, B, documents, small_decoder, tokens
from tests.support.registry import ROUTES, Case, plain

LENGTH = 40


def turning(a: float) -> Tensor:
    """A rotation by one radian times a: eigenvalues a e^{+-i}."""
    c, s = math.cos(1.0), math.sin(1.0)
    return a * torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def diagnosed(decoder: Decoder, length: int = LENGTH, *lengths: int) -> dict[str, Any]:
    ids = torch.ones(B, length + 1, dtype=torch.long)
    frame = Frame(ids[:, :-1], documents(*lengths) if lengths else None)
    return diagnose(decoder, frame, ids[:, 1:])


@pytest.mark.parametrize("a", [0.3, -0.7, 0.9, 1.2, -1.5])
def test_a_linear_recurrence_is_measured_as_what_it_is(a: float) -> None:
    row = diagnosed(linear_decoder(scalar(a)))
    found = row["passes"]
    ratios = [r for r, c in zip(found["ratio"], found["change"], strict=True) if r and c > 1e-9]
    assert len(ratios) > 10
    assert ratios == pytest.approx([abs(a)] * len(ratios), rel=1e-6)
    # The last change that counts is a hundred times what rounding leaves.
    assert found["rate"] == pytest.approx(abs(a), rel=1e-3)
    assert row["radius"]["mean"] == pytest.approx(abs(a), rel=1e-9)
    assert row["radius"]["largest"] == pytest.approx(abs(a), rel=1e-9)
    assert row["verdict"] == ("contracts" if abs(a) < 1 else "diverges")
    # Every change is larger than the one before, from the first one on.
    assert row["beyond"] == (None if abs(a) < 1 else 2)


def test_neither_growing_nor_shrinking_is_neutral_while_the_loss_bears_it() -> None:
    decoder = linear_decoder(scalar(1.0))
    row = diagnosed(decoder)
    assert (row["verdict"], row["beyond"]) == ("diverges", 1)
    torch.nn.init.zeros_(decoder.head)
    row = diagnosed(decoder)
    assert (row["verdict"], row["beyond"]) == ("neutral", None)


@pytest.mark.parametrize("a", [0.8, 1.1])
def test_a_complex_pair_of_eigenvalues(a: float) -> None:
    row = diagnosed(linear_decoder(turning(a)))
    assert row["radius"]["mean"] == pytest.approx(a, rel=1e-6)
    assert row["passes"]["rate"] == pytest.approx(a, rel=1e-6)


def test_the_radius_is_that_of_the_whole_jacobian() -> None:
    """Of a route in a stack, every entry of its Jacobian written out."""
    decoder, ids = small_decoder(route=LRT()), tokens(9)
    frame, t = Frame(ids), 4
    with torch.no_grad():
        carried = torch.cat(rollout(decoder, frame)[1], dim=1)
        memory = decoder.memory(carried, frame, frame.positions)
        buffers = decoder.sweep(frame, frame.positions, memory).buffers

    def step(before: Tensor) -> Tensor:
        entering = decoder.receive(before, decoder.view(frame, range(t, t + 1), 9))
        return decoder.sweep(frame, range(t, t + 1), entering, buffers).carried

    assert error(step(carried[:, t - 1 : t]), carried[:, t : t + 1]) <= SAME
    whole = torch.autograd.functional.jacobian(step, carried[:, t - 1 : t]).squeeze()
    truth = [float(torch.linalg.eigvals(whole[row, :, row]).abs().max()) for row in range(B)]
    found = radius(decoder, frame, carried, buffers, [t], products=400)
    assert found["mean"] == pytest.approx(sum(truth) / B, rel=0.02)
    assert found["largest"] == pytest.approx(max(truth), rel=0.02)
    assert found["samples"] == B


def test_positions_that_a_pass_makes_exact_are_left_out() -> None:
    """In documents of 6 the sixth pass changes the last positions only, and the next one none."""
    found = diagnosed(linear_decoder(scalar(0.5)), 24, *[6] * 4)["passes"]
    assert found["ratio"][2:6] == pytest.approx([0.5] * 4)
    assert found["size"][6:] == [None] * 26


def test_gradients_shrink_by_a_for_every_position() -> None:
    decoder = linear_decoder(scalar(0.8))
    reach = diagnosed(decoder)["gradient"]
    assert len(reach["memory"]) == LENGTH - 1 and len(reach["embedding"]) == LENGTH
    ratios = [b / a for a, b in zip(reach["memory"], reach["memory"][1:], strict=False)]
    assert ratios == pytest.approx([0.8] * len(ratios))
    assert reach["embedding"] == [0.0] * LENGTH


def test_the_gradient_of_an_embedding_is_that_of_the_late_loss() -> None:
    """Against the change of the loss when the token's own row of the table moves."""
    decoder, g = small_decoder(route=LRT()), torch.Generator().manual_seed(3)
    ids = torch.randperm(VOCAB, generator=g)[:10].expand(1, -1)
    frame, targets, lag = Frame(ids[:, :-1]), ids[:, 1:], 6
    hidden, _ = rollout(decoder, frame)
    loss = token_losses(decoder, hidden, targets)[0, -1]
    (table,) = torch.autograd.grad(loss, [decoder.embedding])
    truth = float(table[ids[0, 8 - lag]].norm())
    assert gradients(decoder, frame, targets, True)["embedding"][lag] == pytest.approx(truth)
    assert "view" not in vars(decoder)


def test_magnitudes_by_position() -> None:
    state = torch.arange(1.0, 41.0).view(1, 40, 1).expand(2, -1, 3)
    found = magnitudes([state, 2 * state], state)
    assert found["position"][0] == 1.0 and len(found["position"]) == 14
    assert found["units"][0][-1] == pytest.approx(40.0)
    assert found["units"][1] == pytest.approx([2 * x for x in found["units"][0]])
    assert found["carried"] == found["units"][0]


@pytest.mark.parametrize("rank", [1, 3])
def test_directions(rank: int) -> None:
    vectors = (
        torch.eye(rank, 5).repeat(4, 1).unsqueeze(0) * torch.arange(1.0, 1 + 4 * rank)[:, None]
    )
    found = directions(vectors)
    assert found["rank"] == pytest.approx(rank)
    assert found["width"] == 5
    # Of 4 r vectors each is like three others.
    assert found["cosine"] == pytest.approx(3 / (4 * rank - 1))


FLAT = [3.0, 2.0, 2.0, 2.0, 2.0]
VERDICTS = {
    "shrinking": (FLAT, 0.5, ("contracts", None)),
    "shrinking-to-a-worse-loss": ([2.0, 2.0, 3.0, 3.0, 3.0], 0.5, ("contracts", None)),
    "steady": (FLAT, 1.01, ("neutral", None)),
    "steady-and-worse": ([3.0, 2.0, 2.01, 2.5, 2.6], 1.0, ("diverges", 3)),
    "growing": (FLAT, 1.2, ("diverges", 3)),
    "no-number": ([3.0, 2.0, math.nan, math.nan, math.nan], 0.5, ("diverges", 2)),
    "nothing-left-to-shrink": (FLAT, None, ("contracts", None)),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_verdicts(case: str) -> None:
    losses, shrinks, expected = VERDICTS[case]
    assert verdict(losses, [None, 3.0, 1.0, 2.0, 4.0], shrinks) == expected


def test_rates() -> None:
    halving = [None, *(2.0**-k for k in range(40))]
    assert rate(halving, halving, 1e-6) == pytest.approx(0.5)
    # Rounding is no neutral recurrence.
    settled = [None, 1.0, 0.1, 1e-2, 1e-3, *[1e-9] * 9]
    assert rate(settled, settled, 1e-6) == pytest.approx(0.1)
    assert rate([None, 0.0, 0.0], [None, 0.0, 0.0], 1e-6) == 0.0
    assert rate([None, 1.0, 1e-9], [None, 1.0, 1e-9], 1e-6) is None
    assert rate([None, 1.0, math.inf], [None, 1.0, 1.0], 1e-6) == math.inf


@pytest.mark.parametrize("route", [r for r in ROUTES if plain(r)], ids=str)
def test_every_route_is_diagnosed_and_left_alone(route: Case) -> None:
    decoder, ids = small_decoder(route=route()), tokens(17)
    before = torch.get_rng_state()
    row = diagnose(decoder, Frame(ids[:, :-1], documents(10, 6)), ids[:, 1:], passes=6)
    json.dumps(row, allow_nan=False)
    assert len(row["state"]["units"]) == decoder.shape.units + 1
    assert len(row["gradient"]["embedding"]) == min(LAGS, 16)
    carries = route().traits.recurrent and not route().traits.silent
    for name in ("passes", "radius", "directions"):
        assert (row[name] is not None) == carries
    assert (row["slots"] is not None) == ("gather" in dict(decoder.route.named_children()))
    assert (row["gradient"]["memory"] is not None) == carries
    assert (row["verdict"] == "nothing is carried") != carries
    if carries:
        assert row["passes"]["change"][1] > 0 and row["radius"]["mean"] > 0
    assert all(p.grad is None for p in decoder.parameters())
    assert torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def test_what_slots_gather_from() -> None:
    """Large biases: slot 0 takes the embedding, slot 1 unit 3 and what arrived in slot 0."""
    route = Householder(gate="none", scale=1.0)
    decoder, frame = small_decoder(AttentionResiduals(), route), Frame(tokens(), documents(5, 7))
    decoder.route.gather.query.zero_()
    decoder.route.gather.bias.zero_()[0, 0] = 50
    decoder.route.gather.bias[[1, 6], 1] = 50
    carried = torch.cat(rollout(decoder, frame)[1], dim=1)
    memory = decoder.memory(carried, frame, frame.positions)
    found = slots(decoder, frame, memory)
    names = ["embedding", "slot 0", "slot 1", *(f"unit {unit}" for unit in range(8))]
    assert found["sources"] == names
    shares = [dict(zip(names, weights, strict=True)) for weights in found["weights"]]
    assert shares[0]["embedding"] == pytest.approx(1)
    assert shares[1]["slot 0"] == shares[1]["unit 3"] == pytest.approx(0.5)
    # The embedding is normed, and a reflection keeps it so.
    assert found["position"] == list(range(12))
    assert found["size"][0] == pytest.approx([0.0 if t in (0, 5) else 1.0 for t in range(12)], 1e-3)
    assert slots(small_decoder(route=LRT()), frame, memory) is None


def test_passes_end_at_the_exact_loss() -> None:
    decoder, ids = small_decoder(route=LRT()), tokens(13)
    frame, targets = Frame(ids[:, :-1]), ids[:, 1:]
    row = diagnose(decoder, frame, targets, passes=12)
    assert row["passes"]["loss"][-1] == pytest.approx(row["loss"], rel=1e-12)
    assert jacobi(decoder, frame, targets, 3)["loss"] == row["passes"]["loss"][:3]


def test_positions_that_are_not_predicted_do_not_count() -> None:
    decoder, ids = small_decoder(route=LRT()), tokens(13)
    frame, targets = Frame(ids[:, :-1]), ids[:, 1:].clone()
    hidden, _ = rollout(decoder, frame)
    truth = float(token_losses(decoder, hidden, targets)[:, 6:].mean().detach())
    targets[:, :6] = IGNORED
    row = diagnose(decoder, frame, targets, passes=12)
    assert row["loss"] == pytest.approx(truth)
    assert row["passes"]["loss"][-1] == pytest.approx(truth)
