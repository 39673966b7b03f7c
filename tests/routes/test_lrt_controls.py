"""LRT's mechanism controls are exactly what they say, through the same ports and parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.backbones import AttentionResiduals, MUDDFormer, PreNorm
from lrt_lab.data import EvaluationSlice
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame, Memory
from lrt_lab.layers import SquaredReLU, rms_norm
from lrt_lab.mixers import Attention
from lrt_lab.module import LanguageModel
from lrt_lab.routes import LRT
from lrt_lab.schedules import Interleaved, Jacobi, Serial, SinglePass
from lrt_lab.training.evaluate import evaluate
from lrt_lab.training.optimizer import AdamW
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import (
    B,
    T,
    documents,
    exact,
    merged,
    run,
    small_decoder,
    tokens,
)

BACKBONES = {"PreNorm": PreNorm(), "AttentionResiduals": AttentionResiduals()}
ENTERS = ("injection", "read", "source")
CONTROLS = ("zero", "shift", "self")

each_port = pytest.mark.parametrize("enters", ENTERS)
each_backbone = pytest.mark.parametrize("backbone", BACKBONES)


def named(schedule) -> str:
    return type(schedule).__name__


def pair(backbone: str, enters: str, memory: str) -> tuple[Decoder, Decoder]:
    """The control and the recurrent route, with the same values in all parameters."""
    control, recurrent = (
        small_decoder(BACKBONES[backbone], LRT(enters=enters, memory=kind))
        for kind in (memory, "recurrent")
    )
    recurrent.load_state_dict(control.state_dict())
    return control, recurrent


def frame() -> Frame:
    return Frame(tokens(), documents(5, 7))


def heard(decoder: Decoder, schedule, t: int) -> list[int]:
    """The positions whose tokens position t depends on, without token attention."""
    decoder.attend = "own"
    ids = torch.arange(B * T).view(B, T)
    hidden = run(schedule, decoder, Frame(ids))[-1].hidden[:, t]
    (gradient,) = torch.autograd.grad(hidden.square().sum(), decoder.embedding)
    return gradient[: B * T].view(B, T, -1).ne(0).any(-1).any(0).nonzero().flatten().tolist()


@pytest.mark.parametrize("memory", CONTROLS)
def test_parameters_and_their_values_are_the_routes_own(memory: str) -> None:
    one, two = (Decoder(16, 3, 5, route=LRT(memory=kind)) for kind in (memory, "recurrent"))
    for (name, ours), (other, theirs) in zip(
        one.named_parameters(), two.named_parameters(), strict=True
    ):
        assert name == other and torch.equal(ours, theirs)


@each_port
@each_backbone
@torch.no_grad()
def test_zero_is_the_route_without_its_memory(backbone: str, enters: str) -> None:
    control, recurrent = pair(backbone, enters, "zero")
    first = recurrent.sweep(frame(), frame().positions)
    for scored in [*run(Jacobi(3), control, frame()), *run(Serial(), control, frame())]:
        assert error(scored.hidden, first.hidden) <= SAME
    assert control.sweep(frame(), frame().positions).carried is None
    memory = recurrent.memory(first.carried, frame(), frame().positions)
    assert error(recurrent.sweep(frame(), frame().positions, memory).hidden, first.hidden) > 1e-6


@each_backbone
@pytest.mark.parametrize("schedule", [Jacobi(3), Interleaved(2), Serial()], ids=named)
def test_nothing_is_heard_through_zero_and_its_gates_are_alive(backbone: str, schedule) -> None:
    decoder = small_decoder(BACKBONES[backbone], LRT(memory="zero"))
    if not isinstance(schedule, Interleaved):
        assert heard(decoder, schedule, T - 2) == [T - 2]
    sum(p.hidden.square().sum() for p in run(schedule, decoder, frame())).backward()
    heads = 1
    for name, target in decoder.route.named_parameters():
        if name == "alpha":
            assert target.grad.ne(0).all()
        elif name.startswith("gate_"):
            assert target.grad[:heads].ne(0).any()
            assert not target.grad[heads:].any()
        else:
            assert target.grad is None or not target.grad.any(), name


@each_port
@each_backbone
@torch.no_grad()
def test_shift_is_one_pass_over_a_hand_made_shifted_input(backbone: str, enters: str) -> None:
    control, recurrent = pair(backbone, enters, "shift")
    value = rms_norm(recurrent.embedding[frame().ids])
    value = torch.cat([torch.zeros_like(value[:, :1]), value[:, :-1]], dim=1)
    present = torch.ones(B, T, dtype=torch.bool)
    # A document's first token has none before it.
    value[:, [0, 5]], present[:, [0, 5]] = 0, False
    memory = Memory(value.unsqueeze(-2), present)
    expected = recurrent.sweep(frame(), frame().positions, memory).hidden
    (once,) = run(SinglePass(), control, frame())
    assert error(once.hidden, expected) <= SAME
    assert error(exact(control, frame()), expected) <= SAME
    for scored in run(Jacobi(2), control, frame()):
        assert error(scored.hidden, expected) <= SAME
    assert error(recurrent.sweep(frame(), frame().positions).hidden, expected) > 1e-6


@pytest.mark.parametrize("schedule", [SinglePass(), Jacobi(3), Serial()], ids=named)
def test_shift_hears_one_token_back(schedule) -> None:
    assert heard(small_decoder(route=LRT(memory="shift")), schedule, 6) == [5, 6]


@each_port
@each_backbone
@torch.no_grad()
def test_self_is_a_loop_over_two_passes(backbone: str, enters: str) -> None:
    """By hand: a position's own state, not moved on, enters the second pass; also at a start."""
    control, recurrent = pair(backbone, enters, "self")
    first = recurrent.sweep(frame(), frame().positions)
    own = Memory(first.carried, torch.ones(B, T, dtype=torch.bool))
    expected = recurrent.sweep(frame(), frame().positions, own).hidden
    one, two = run(Jacobi(2), control, frame())
    assert error(one.hidden, first.hidden) <= SAME
    assert error(two.hidden, expected) <= SAME
    assert error(exact(control, frame()), expected) <= SAME
    assert error(merged(run(Interleaved(T), control, frame())), expected) <= SAME
    moved = recurrent.memory(first.carried, frame(), frame().positions)
    assert error(recurrent.sweep(frame(), frame().positions, moved).hidden, expected) > DIFFERENT


@pytest.mark.parametrize("schedule", [Jacobi(2), Jacobi(3), Serial()], ids=named)
def test_self_hears_no_other_token(schedule) -> None:
    assert heard(small_decoder(route=LRT(memory="self")), schedule, 6) == [6]


def test_self_costs_what_the_recurrent_route_costs() -> None:
    decoder = small_decoder(route=LRT(memory="self"))
    assert Jacobi(2).cost(T, decoder) == Interleaved(2).cost(T, decoder) == 2 * T
    assert Serial().cost(T, decoder) == 2 * T
    assert Serial().cost(T, small_decoder(route=LRT())) == T


def test_controls_are_trained_by_as_many_passes_as_they_need() -> None:
    def schedule(memory: str, **options):
        parts = PreNorm(), LRT(memory=memory), Attention(heads=2), SquaredReLU(), AdamW()
        return LanguageModel(*parts, width=16, blocks=2, **options).schedule

    assert isinstance(schedule("zero"), SinglePass)
    assert isinstance(schedule("shift"), SinglePass)
    assert isinstance(schedule("recurrent"), Interleaved)
    loop = schedule("self")
    assert isinstance(loop, Jacobi) and loop.count == 2
    with pytest.raises(UserError, match="never lets memory in"):
        schedule("self", schedule=SinglePass())


@each_backbone
@torch.no_grad()
def test_read_only_injection_leaves_the_carried_stream(backbone: str) -> None:
    """Without what the units write, memory then leaves no trace; each read is changed by hand."""
    read, injection = (
        small_decoder(BACKBONES[backbone], LRT(enters=enters)) for enters in ("read", "injection")
    )
    out = read.sweep(frame(), frame().positions)
    memory = read.memory(out.carried, frame(), frame().positions)
    routed = read.sweep(frame(), frame().positions, memory).hidden
    assert error(routed, out.hidden) > DIFFERENT
    other = injection.sweep(frame(), frame().positions, memory).hidden
    assert (error(routed, other) <= SAME) == (backbone == "AttentionResiduals")
    for unit in read.units:
        getattr(unit.body, "out" if hasattr(unit.body, "out") else "down").zero_()
    plain, moved = (read.sweep(frame(), frame().positions, m).hidden for m in (None, memory))
    assert error(plain, moved) <= SAME


@torch.no_grad()
def test_read_only_injection_by_hand() -> None:
    """One position of one block on PreNorm: the mixer reads alpha x + gamma m, x is carried on."""
    decoder = small_decoder(route=LRT(enters="read"), blocks=1)
    one = Frame(tokens(1))
    g = torch.Generator().manual_seed(3)
    m = Memory(torch.randn(B, 1, 1, 8, generator=g, dtype=torch.float64), torch.ones(B, 1).bool())
    route, (mixer, ffn) = decoder.route, decoder.units
    x = rms_norm(decoder.embedding[one.ids])
    u = mixer.norm(route.alpha[0] * x + route.gamma[0] * m.value[:, 0])
    local, recurrent = (2 * torch.sigmoid(u @ route.gate_0.T)).split(1, dim=-1)
    v: Tensor = local * (u @ mixer.body.value.T) + recurrent * (m.value[:, 0] @ route.value_1x4.T)
    x = x + v.repeat(1, 1, 2) @ mixer.body.out.T
    x = x + torch.relu(ffn.norm(x) @ ffn.body.up.T).square() @ ffn.body.down.T
    assert error(decoder.sweep(one, one.positions, m).hidden, decoder.norm(x)) <= SAME


@torch.no_grad()
def test_read_only_injection_changes_all_reads_of_a_mixer_alike() -> None:
    """MUDD reads queries, keys and values apart; its injection changes those and its stream."""
    read, injection = (small_decoder(MUDDFormer(), LRT(enters=enters)) for enters in ENTERS[1::-1])
    x = torch.ones(B, T, 8, dtype=torch.float64)
    at = read.view(frame(), frame().positions, T)
    m = Memory(x.unsqueeze(-2), torch.ones(B, T, dtype=torch.bool))
    assert torch.equal(read.route.read(0, x, m, at), injection.route.enter(0, x, m, at))
    assert read.route.enter(0, x, m, at) is x and injection.route.read(0, x, m, at) is x
    assert read.route.read(1, x, m, at) is x
    plain, moved = (read.sweep(frame(), frame().positions, k).hidden for k in (None, m))
    assert error(plain, moved) > DIFFERENT


@pytest.mark.parametrize(
    ("memory", "same"), [("zero", True), ("shift", True), ("self", True), ("recurrent", False)]
)
def test_what_decoding_computes_is_scored_as_exact(memory: str, same: bool) -> None:
    """The controls' last training pass is their exact recurrence, to rounding."""
    decoder = small_decoder(route=LRT(memory=memory))
    ids = torch.randint(0, 40, (4, T + 1), generator=torch.Generator().manual_seed(2))
    part = EvaluationSlice({"tokens": ids, "document": torch.zeros_like(ids)}, 4 * T, "0" * 64)
    schedule = Jacobi(2) if memory in ("self", "recurrent") else SinglePass()
    test = evaluate(decoder, schedule, part, None, 1)["test"]
    assert (abs(test["exact"]["loss"] - test["last_pass"]["loss"]) <= SAME) == same
    serial = evaluate(decoder, Serial(), part, None, 1)["test"]["last_pass"]["loss"]
    assert serial == pytest.approx(test["exact"]["loss"], abs=1e-6)


def test_memory_is_one_of_four() -> None:
    line = r"^route.memory='past': give recurrent, zero, shift or self$"
    with pytest.raises(UserError, match=line):
        LRT(memory="past")
