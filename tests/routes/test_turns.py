"""What each way to turn a slot does, alone and inside the route."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lrt_lab.backbones import AttentionResiduals
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.routes import GatherFFN, Householder
from lrt_lab.routes.turns import TURNS
from tests.support.compare import SAME, error
from tests.support.models import documents, small_decoder, tokens

WIDTH = 12
#: Those that never change a norm.
TRUE = ("reflection", "double", "cayley")
each_turn = pytest.mark.parametrize("name", TURNS)
each_true_turn = pytest.mark.parametrize("name", TRUE)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def turned(name: str, g: Tensor, *vectors: Tensor, gates: float = 0.3) -> Tensor:
    """One turn of g; the slot before is a fixed draw."""
    how = TURNS[name]
    logits = [torch.full_like(g[..., :1], gates) for _ in how.gates]
    before = draw(*g.shape, seed=9).to(g.dtype) if how.before else None
    return how(g, vectors[: how.vectors], logits, before)


def vectors(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return draw(*shape, seed=1, dtype=dtype), draw(*shape, seed=2, dtype=dtype)


@each_true_turn
def test_norms_are_kept(name: str) -> None:
    g = draw(50, WIDTH)
    z = turned(name, g, *vectors(50, WIDTH))
    assert error(z.norm(dim=-1), g.norm(dim=-1)) <= 1e-12
    assert error(z, g) > 0.1


@each_true_turn
def test_bfloat16_keeps_norms_over_a_thousand_positions(name: str) -> None:
    # What remains is the state's own rounding, a random walk in steps of 2^-9 / sqrt(d): at s3e42's
    # width. A single reflection moves less and passes at 64 too (test_householder).
    state = draw(4, 1024, dtype=torch.bfloat16)
    before = state.double().norm(dim=-1)
    for step in range(1000):
        drawn = [draw(4, 1024, seed=step + 5000 * i, dtype=torch.bfloat16) for i in range(2)]
        state = turned(name, state, *drawn)
    assert ((state.double().norm(dim=-1) / before - 1).abs() < 1e-2).all()


@pytest.mark.parametrize(("name", "sign"), [("reflection", -1), ("double", 1), ("cayley", 1)])
def test_two_reflections_and_cayley_are_rotations(name: str, sign: int) -> None:
    u, v = (x.expand(WIDTH, -1) for x in vectors(1, WIDTH))
    assert torch.linalg.det(turned(name, torch.eye(WIDTH).double(), u, v)) == pytest.approx(sign)


@pytest.mark.parametrize("name", ["reflection", "generalised", "double", "delta"])
@pytest.mark.parametrize("factor", [-1.0, 3.0, 1e-200, 1e200])
def test_only_directions_count(name: str, factor: float) -> None:
    g, (u, v) = draw(50, WIDTH), vectors(50, WIDTH)
    assert error(turned(name, g, factor * u, v), turned(name, g, u, v)) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ["zero", "tiny", "perpendicular"])
@each_turn
def test_gradients_are_finite_where_a_direction_is_missing(
    name: str, case: str, dtype: torch.dtype
) -> None:
    state = draw(3, WIDTH, dtype=dtype)
    if case == "perpendicular":
        state[torch.arange(3), torch.arange(3)] = 0
    state.requires_grad_()
    pair = [
        {
            "zero": torch.zeros(3, WIDTH, dtype=dtype),
            "tiny": torch.full((3, WIDTH), 1e-37, dtype=dtype),
            "perpendicular": torch.eye(WIDTH, dtype=dtype)[:3],
        }[case].requires_grad_()
        for _ in range(2)
    ]
    z = turned(name, state, *pair)
    z.square().sum().backward()
    used = pair[: TURNS[name].vectors]
    assert all(torch.isfinite(x.grad).all() for x in used)
    assert torch.isfinite(z).all()
    if case == "zero" and name != "delta":
        assert torch.equal(z, state)


@each_turn
def test_gradients_agree_with_finite_differences(name: str) -> None:
    state = draw(3, 5).requires_grad_()
    pair = [x.requires_grad_() for x in vectors(3, 5)][: TURNS[name].vectors]
    assert torch.autograd.gradcheck(lambda g, *v: turned(name, g, *v), (state, *pair))


def test_a_generalised_reflection_lies_between_nothing_and_a_reflection() -> None:
    g, (v, _) = draw(50, WIDTH), vectors(50, WIDTH)
    n = v / v.norm(dim=-1, keepdim=True)
    for logit, strength in ((-40.0, 0.0), (0.0, 1.0), (math.log(3), 1.5), (40.0, 2.0)):
        expected = g - strength * n * (n * g).sum(-1, keepdim=True)
        assert error(turned("generalised", g, v, gates=logit), expected) <= SAME


def test_cayley_is_the_matrix_formula() -> None:
    g, (u, v) = draw(20, WIDTH), vectors(20, WIDTH)
    a = (u.unsqueeze(-1) * v.unsqueeze(-2) - v.unsqueeze(-1) * u.unsqueeze(-2)) / WIDTH
    one = torch.eye(WIDTH).double()
    expected = torch.linalg.solve(one + a, (one - a) @ g.unsqueeze(-1)).squeeze(-1)
    assert error(turned("cayley", g, u, v), expected) <= SAME


def test_a_delta_write_replaces_one_direction_of_what_is_kept() -> None:
    """With b = 1 and a = 1 the slot agrees with g along n, and with itself elsewhere."""
    g, (v, _), before = draw(20, WIDTH), vectors(20, WIDTH), draw(20, WIDTH, seed=9)
    n = v / v.norm(dim=-1, keepdim=True)
    keep = torch.full((20, 1), 40.0).double()
    z = TURNS["delta"](g, [v], [torch.zeros_like(keep), keep], before)
    along = [(n * x).sum(-1, keepdim=True) for x in (z, g, before)]
    assert error(along[0], along[1]) <= SAME
    assert error(z - n * along[0], before - n * along[2]) <= SAME
    forgotten = TURNS["delta"](g, [v], [torch.zeros_like(keep), -keep], before)
    assert error(forgotten, n * along[1]) <= SAME


@each_true_turn
@torch.no_grad()
def test_slots_are_as_long_as_what_was_gathered(name: str) -> None:
    decoder, frame = small_decoder(AttentionResiduals(), Householder(turn=name)), Frame(tokens())
    carried = decoder.sweep(frame, frame.positions).carried
    memory = decoder.memory(carried, frame, frame.positions)
    assert error(memory.value[:, 1:].norm(dim=-1), carried[:, :-1].norm(dim=-1)) <= 1e-12


@torch.no_grad()
def test_the_slot_that_arrived_travels_on_with_the_gathered_state() -> None:
    decoder = small_decoder(AttentionResiduals(), Householder(turn="delta"))
    route, frame = decoder.route, Frame(tokens(), documents(5, 7))
    first = decoder.sweep(frame, frame.positions).carried
    assert first.shape[-2:] == route.carries
    assert not first[:, :, 2:].any()
    memory = decoder.memory(first, frame, frame.positions)
    second = decoder.sweep(frame, frame.positions, memory).carried
    assert torch.equal(second[:, :, 2:], memory.value)
    # Kept for good and never written, it hands on what a document's first position received.
    route.gate_bias[0].fill_(-1e9)
    route.gate_bias[1].fill_(1e9)
    kept = decoder.memory(second, frame, frame.positions).value
    assert error(kept[:, 2:5], second[:, 1:4, 2:]) <= SAME


@pytest.mark.parametrize("turn", TURNS)
@torch.no_grad()
def test_parameter_counts(turn: str) -> None:
    d, vocab, units = 16, 40, 8
    route = small_decoder(AttentionResiduals(), Householder(turn=turn, gate="none"), width=d).route
    plain = 2 * d * d + 2 * (units + 3) * (d + 1)
    more = {"generalised": 2 * (d + 1), "double": 2 * d * d, "cayley": 2 * d * d}
    more["delta"] = 2 * more["generalised"]
    assert sum(p.numel() for p in route.parameters()) == plain + more.get(turn, 0)
    table = small_decoder(AttentionResiduals(), Householder(turn=turn), width=d).route
    assert sum(p.numel() for p in table.parameters()) == plain + more.get(turn, 0) + vocab * d


def steps(**options: object) -> tuple[Tensor, Tensor, Tensor]:
    """What left, what enters, and the raw embeddings, positions 1 on."""
    decoder, frame = small_decoder(AttentionResiduals(), GatherFFN(**options)), Frame(tokens())
    with torch.no_grad():
        carried = decoder.sweep(frame, frame.positions).carried
        value = decoder.memory(carried, frame, frame.positions).value
    return carried[:, :-1], value[:, 1:], decoder.embedding[frame.ids[:, 1:]].unsqueeze(-2).detach()


def test_each_step_of_the_baseline_adds_to_the_one_before() -> None:
    g, z, _ = steps(upto="gather")
    assert torch.equal(z, g)
    g, z, _ = steps(upto="norm", count=2)
    normed = g / (g.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert error(z, normed) <= SAME
    g, z, e = steps(upto="token")
    assert error(z, e * g / (g.square().mean(-1, keepdim=True) + 1e-6).sqrt()) <= SAME
    _, ungated, _ = steps(upto="token", gate="none")
    assert error(ungated, steps(upto="norm")[1]) <= SAME


def test_a_map_for_each_slot() -> None:
    decoder = small_decoder(AttentionResiduals(), GatherFFN(upto="linear", count=2))
    x = draw(2, 3, 2, decoder.shape.width)
    with torch.no_grad():
        z = decoder.route.mapped(x)
        by_hand = [x[:, :, s] @ w.T for s, w in enumerate(decoder.route.linear)]
    assert error(z, torch.stack(by_hand, dim=-2)) <= SAME


@pytest.mark.parametrize("upto", ["gather", "norm", "token", "linear", "ffn"])
def test_slots_can_be_told_apart_from_the_start(upto: str) -> None:
    """By the FFNs' random maps, or else by random queries."""
    route = Decoder(8, 2, 40, route=GatherFFN(upto=upto, count=2)).route
    if upto == "ffn":
        assert not torch.equal(route.ffn[0].up, route.ffn[1].up)
    else:
        assert not torch.equal(route.gather.query[:, 0], route.gather.query[:, 1])
    assert not Decoder(8, 2, 40, route=GatherFFN(upto=upto)).route.gather.query.any()


@pytest.mark.parametrize(
    ("route", "line"),
    [
        (lambda: Householder(turn="spin"), "route.turn='spin': give reflection, generalised, "),
        (lambda: Householder(gate="key"), "route.gate='key': give none, lookup or embedding"),
        (lambda: GatherFFN(upto="map"), "route.upto='map': give gather, norm, token, linear, ffn"),
        (lambda: GatherFFN(queries="own"), "route.queries='own': give pairwise, shared or input"),
        (lambda: GatherFFN(count=0), "route.count=0: there must be at least one slot"),
    ],
    ids=["turn", "gate", "upto", "queries", "count"],
)
def test_one_line_says_what_is_allowed(route, line: str) -> None:
    with pytest.raises(UserError) as raised:
        route()
    assert str(raised.value).startswith(line)
