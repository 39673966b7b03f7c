"""s3e42's compactor against a float64 reference, and what a reflection is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_lab.backbones import PairwiseAttentionResiduals
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame, View
from lrt_lab.mixers import Attention
from lrt_lab.routes import Householder, NoRoute
from lrt_lab.routes.turns import TURNS
from lrt_lab.schedules import Jacobi
from tests.support.compare import SAME, error
from tests.support.golden import golden
from tests.support.models import documents, run, small_decoder, tokens

STATES = {"rtol": 1e-9, "atol": 1e-10}
WIDTH, BLOCKS, VOCAB = 12, 8, 7


def reflect(g: Tensor, v: Tensor) -> Tensor:
    return TURNS["reflection"](g, [v])


def compactor(arrays: dict[str, Tensor]) -> Householder:
    """The route alone with the file's weights; sources keep the order that the file has."""
    route = Decoder(WIDTH, BLOCKS, VOCAB, route=Householder(), mixer=Attention(heads=1)).double()
    found = route.route
    assert isinstance(found, Householder)
    with torch.no_grad():
        found.gather.query.copy_(arrays["q"].transpose(0, 1))
        found.gather.bias.copy_(arrays["bias"].T)
        found.table.copy_(arrays["token_table"])
        for own, theirs in zip(found.turn, arrays["W"], strict=True):
            own.copy_(theirs)
    return found


def test_what_the_compactor_computes_on_its_way() -> None:
    arrays = golden("s3e42_compactor")
    route = compactor(arrays)
    assert route.eps == float(arrays["eps"])
    bank = [(r.unsqueeze(1), None) for r in arrays["bank"].unbind(1)]
    top = torch.zeros_like(bank[0][0])
    # (B, S, N), as the file has them.
    logits = torch.stack(
        [torch.stack(own, dim=-1) for own in route.gather.logits([r for r, _ in bank], top)], dim=-2
    )[:, 0]
    assert_close(logits.detach(), arrays["logits"], **STATES)
    assert_close(route.gather.weights(bank, top)[:, 0].detach(), arrays["alpha"], **STATES)
    ids = arrays["token_ids"].unsqueeze(1)
    at = View(range(1), 1, ids, torch.zeros_like(ids, dtype=torch.bool))
    gathered = route.emit({"bank": bank, "top": top}, None, at)
    (v,) = route.directions(route.gated(gathered, at))
    v = v[:, 0].detach()
    assert_close(v, arrays["v"], **STATES)
    turned = reflect(gathered[:, 0].detach(), arrays["normal"])
    assert_close(turned, arrays["slots"], **STATES)
    assert_close(v / v.norm(dim=-1, keepdim=True), arrays["normal"], **STATES)


def test_the_compactor_and_its_gradients() -> None:
    arrays = golden("s3e42_compactor")
    route, bank = compactor(arrays), arrays["bank"].clone().requires_grad_()
    ids = arrays["token_ids"].unsqueeze(1)
    at = View(range(1), 1, ids, torch.zeros_like(ids, dtype=torch.bool))
    sources = [(r.unsqueeze(1), None) for r in bank.unbind(1)]
    gathered = route.emit({"bank": sources, "top": sources[0][0]}, None, at)
    assert_close(gathered[:, 0].detach(), arrays["gather"], **STATES)
    memory = route.receive(gathered, ~at.start, at)
    assert_close(memory.value[:, 0].detach(), arrays["slots"], **STATES)
    (memory.value[:, 0] * arrays["cotangent"]).sum().backward()
    for name, gradient in (
        ("bank", bank.grad),
        ("q", route.gather.query.grad.transpose(0, 1)),
        ("bias", route.gather.bias.grad.T),
        ("token_table", route.table.grad),
        ("W", torch.stack([w.grad for w in route.turn])),
    ):
        assert error(gradient, arrays[f"grad_{name}"]) <= 1e-9, name


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def test_a_reflection_keeps_the_norm_and_undoes_itself() -> None:
    state, v = draw(50, WIDTH), draw(50, WIDTH, seed=1)
    turned = reflect(state, v)
    assert error(turned.norm(dim=-1), state.norm(dim=-1)) <= 1e-12
    assert error(reflect(turned, v), state) <= 1e-12


@pytest.mark.parametrize("factor", [-1.0, 3.0, 1e-200, 1e200])
def test_only_the_direction_of_v_counts(factor: float) -> None:
    state, v = draw(50, WIDTH), draw(50, WIDTH, seed=1)
    assert error(reflect(state, factor * v), reflect(state, v)) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ["zero", "tiny", "perpendicular"])
def test_gradients_are_finite_where_a_direction_is_missing(case: str, dtype: torch.dtype) -> None:
    state = draw(3, WIDTH, dtype=dtype).requires_grad_()
    v = {
        "zero": torch.zeros(3, WIDTH, dtype=dtype),
        "tiny": torch.full((3, WIDTH), 1e-37, dtype=dtype),
        "perpendicular": torch.eye(WIDTH, dtype=dtype)[:3],
    }[case].requires_grad_()
    with torch.no_grad():
        if case == "perpendicular":
            state[torch.arange(3), torch.arange(3)] = 0
    turned = reflect(state, v)
    turned.square().sum().backward()
    assert torch.isfinite(state.grad).all() and torch.isfinite(v.grad).all()
    if case != "tiny":
        assert torch.equal(turned, state)


def test_gradients_agree_with_finite_differences() -> None:
    state, v = (draw(3, 5, seed=s).requires_grad_() for s in (0, 1))
    assert torch.autograd.gradcheck(reflect, (state, v))


def test_bfloat16_keeps_the_norm_over_a_thousand_positions() -> None:
    state = draw(4, 64, dtype=torch.bfloat16)
    before = state.double().norm(dim=-1)
    for step in range(1000):
        state = reflect(state, draw(4, 64, seed=step, dtype=torch.bfloat16))
    assert ((state.double().norm(dim=-1) / before - 1).abs() < 1e-2).all()


@torch.no_grad()
def test_the_first_pass_does_not_depend_on_what_slots_are_asked() -> None:
    decoder = small_decoder(PairwiseAttentionResiduals(), Householder())
    frame = Frame(tokens(), documents(5, 7))
    before = [p.hidden for p in run(Jacobi(2), decoder, frame)]
    carried = decoder.sweep(frame, frame.positions).carried
    decoder.route.gather.query[1:3] += 5
    decoder.route.gather.bias[1:3] -= 5
    decoder.backbone.slot_query += 5
    after = [p.hidden for p in run(Jacobi(2), decoder, frame)]
    assert torch.equal(after[0], before[0])
    assert torch.equal(decoder.sweep(frame, frame.positions).carried, carried)
    # Document starts hear no slots either.
    assert error(after[1][:, [0, 5]], before[1][:, [0, 5]]) <= SAME
    assert error(after[1], before[1]) > SAME


def test_parameter_count() -> None:
    routed, plain = (
        sum(p.numel() for p in Decoder(16, BLOCKS, 40, route=route).parameters())
        for route in (Householder(), NoRoute())
    )
    assert routed - plain == 2 * 16**2 + 2 * 19 * (16 + 1) + 40 * 16


def test_at_least_one_slot() -> None:
    with pytest.raises(UserError, match=r"^route.count=0: there must be at least one slot$"):
        Householder(0)


def test_the_scale_divides() -> None:
    line = r"^route.scale=0.0: it divides the logits; give a positive number$"
    with pytest.raises(UserError, match=line):
        small_decoder(route=Householder(scale=0.0))
