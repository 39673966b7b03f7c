"""MUDDFormer: aggregates against published code, the start, injection and sources, DenseFormer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_lab.backbones import MUDDFormer, PreNorm
from lrt_lab.backbones.dense_aggregate import Aggregate
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape, initialize
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.training.optimizer import named_groups
from tests.support.compare import DIFFERENT, error
from tests.support.golden import golden
from tests.support.models import randomise, small_decoder, started_decoder, tokens

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
WIDTH, BLOCKS = 16, 4


def built(slots: int = 0, width: int = WIDTH, blocks: int = BLOCKS, **options) -> MUDDFormer:
    """A float64 backbone with its starting values, outside a decoder."""
    backbone = MUDDFormer(**options)
    backbone.setup(Shape(width, blocks, 1), slots)
    initialize(backbone, 1)
    return backbone.double()


def load(aggregate: Aggregate, arrays: dict[str, Tensor]) -> None:
    """Fill an aggregate; the shapes have to be ours."""
    with torch.no_grad():
        for name, value in arrays.items():
            target = getattr(aggregate, name)
            assert target.shape == value.shape, name
            target.copy_(value)


@pytest.mark.parametrize("round64", [False, True], ids=["K", "round64"])
@pytest.mark.parametrize(("which", "block"), [("mid", 3), ("last", 4)])
def test_one_aggregate(which: str, block: int, round64: bool) -> None:
    """w1 (hidden, d), w2 (way and source, hidden) way by way, dense_bias (way, source)."""
    expected = golden(f"mudd_aggregate_{which}{'_round64' * round64}")
    backbone = built(round64=round64, eps=float(expected["eps"]))
    aggregate = backbone.aggregates[str(block)]
    names = {"generator": "w1", "mixture": "w2", "prior": "dense_bias"}
    load(aggregate, {ours: expected[theirs] for ours, theirs in names.items()})
    hiddens = expected["hiddens"].clone().requires_grad_()
    sources = hiddens.unbind()
    # (B, T, way, source) here, way first there.
    coefficients = aggregate.coefficients(sources[-1])
    u = torch.stack(aggregate(sources[-1], sources))
    loss = u.square().sum()
    loss.backward()
    assert_close(coefficients.detach().movedim(2, 0), expected["dw"], **CLOSE)
    dynamic = (coefficients - aggregate.prior).detach().movedim(2, 0)
    assert_close(dynamic, expected["dw_dynamic"], **CLOSE)
    assert_close(u.detach(), expected["u"], **CLOSE)
    assert_close(loss.detach(), expected["loss"], **CLOSE)
    assert_close(hiddens.grad, expected["grad_hiddens"], **CLOSE)
    for ours, theirs in names.items():
        assert_close(getattr(aggregate, ours).grad, expected[f"grad_{theirs}"], **CLOSE, msg=ours)


def test_one_aggregate_with_norms_before_and_after() -> None:
    """w1 (d, hidden), w2 (hidden, way, source) as JAX keeps them; pre_scale (source, d)."""
    expected = golden("mudd_prepost_transcribed")
    backbone = built(prepost=True, gelu="tanh", eps=float(expected["eps"]))
    aggregate = backbone.aggregates["3"]

    def named(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            "generator": arrays["w1"].T,
            "mixture": arrays["w2"].flatten(1).T,
            "prior": arrays["dense_bias"],
            "generator_gain": arrays["gen_scale"],
            "post_gain": arrays["post_scale"],
        }

    load(aggregate, named(expected))
    with torch.no_grad():
        for gain, value in zip(backbone.source_gain, expected["pre_scale"], strict=False):
            gain.copy_(value)
    x = expected["X"].clone().requires_grad_()
    sources = [backbone._source(value, block) for block, value in enumerate(x)]
    u = torch.stack(aggregate(x[-1], sources))
    loss = u.square().sum()
    loss.backward()
    assert_close(aggregate.coefficients(x[-1]).detach(), expected["dw"], **CLOSE)
    assert_close(u.detach(), expected["u"], **CLOSE)
    assert_close(loss.detach(), expected["loss"], **CLOSE)
    assert_close(x.grad, expected["grad_X"], **CLOSE)
    gains = torch.stack([gain.grad for gain in list(backbone.source_gain)[:4]])
    assert_close(gains, expected["grad_pre_scale"], **CLOSE)
    gradients = {key[5:]: value for key, value in expected.items() if key.startswith("grad_")}
    for key, value in named(gradients).items():
        assert_close(getattr(aggregate, key).grad, value, **CLOSE, msg=key)


FORMS = [{}, {"dynamic": False}, {"prepost": True}, {"multiway": False}]


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("route", [NoRoute, LRT])
def test_the_start_is_prenorm(route, options: dict) -> None:
    """All norm gains are 1 then, so that queries, keys and values are normed alike."""
    one, other = (started_decoder(b, route()) for b in (MUDDFormer(**options), PreNorm()))
    frame, memory = Frame(tokens()), [None, None]
    for _ in range(2):
        outs = [
            d.sweep(frame, frame.positions, m) for d, m in zip((one, other), memory, strict=True)
        ]
        assert error(outs[0].hidden, outs[1].hidden) <= 1e-12
        if route is NoRoute:
            return
        memory = [
            d.memory(o.carried, frame, frame.positions)
            for d, o in zip((one, other), outs, strict=True)
        ]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_every_kind_of_parameter_leaves_the_start(options: dict) -> None:
    decoder, frame = started_decoder(MUDDFormer(**options)), Frame(tokens())
    decoder.sweep(frame, frame.positions).hidden[..., 0].sum().backward()
    still = {n.split(".")[-1] for n, p in decoder.backbone.named_parameters() if not p.grad.any()}
    # They wait for the output map behind them, or for the sums that they scale.
    waiting = {"generator", "generator_gain", "source_gain", "post_gain"}
    assert {name for name in still if not name.isdigit()} <= waiting


@pytest.mark.parametrize("width", [64, 1024])
def test_the_generator_starts_with_variance_one_over_d(width: int) -> None:
    backbone = built(width=width, blocks=2, round64=True)
    rows = torch.cat([aggregate.generator for aggregate in backbone.aggregates.values()])
    assert rows.std().item() == pytest.approx(width**-0.5, rel=0.05)


def test_the_head_reads_the_last_aggregate() -> None:
    backbone = built(blocks=2, dynamic=False)
    with torch.no_grad():
        backbone.aggregates["2"].prior.copy_(torch.tensor([[0.5, 0.0, 2.0]]))
    x, outputs = torch.ones(1, 1, WIDTH).double(), []
    state = backbone.start(x, [])
    for unit in range(4):
        state = backbone.write(state, unit, torch.full_like(x, 10.0**unit))
        outputs.append(state.newest[0, 0, 0].item())
    assert outputs == [1, 12, 12, 1112]
    assert backbone.finish(state)[0, 0, 0].item() == 0.5 * 1 + 2 * 1112


def test_states_are_values_and_hidden_is_the_newest_output_or_the_live_sum() -> None:
    backbone = built()
    randomise(backbone)
    x, y = (torch.randn(2, 3, WIDTH).double() for _ in range(2))
    first = backbone.start(x, [])
    inside = backbone.write(first, 0, y)
    assert torch.equal(backbone.hidden(first, 0), x)
    assert torch.equal(backbone.hidden(inside, 1), x + y)
    second = backbone.write(inside, 1, y)
    assert torch.equal(backbone.hidden(second, 2), x + y + y)
    assert first.live is None and first.sources == (x,)
    assert inside.sources == (x,)


def test_an_injection_moves_all_reads_alike() -> None:
    backbone = built()
    randomise(backbone)
    x, y = (torch.randn(2, 3, WIDTH).double() for _ in range(2))
    state = backbone.write(backbone.write(backbone.start(x, []), 0, y), 1, y)
    entered = backbone.enter(state, 2, lambda r: 3 * r + 1)
    change = 2 * state.reads[-1] + 1
    for before, after in zip(state.reads, entered.reads, strict=True):
        assert error(after - before, change) <= 1e-12
    # Later aggregates see it through the block's output alone.
    assert entered.sources is state.sources
    inside = backbone.write(state, 2, y)
    assert torch.equal(
        backbone.read(backbone.enter(inside, 3, lambda r: r + 1), 3), inside.live + 1
    )


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_sources_at_the_start(options: dict) -> None:
    """They are added to the embedding as PreNorm does; PrePost's prior is zero throughout."""
    backbone = built(slots=2, **options)
    x, z, absent = (torch.randn(1, 2, WIDTH).double() for _ in range(3))
    present = torch.tensor([[True, False]])
    nowhere = torch.zeros_like(present)
    state = backbone.start(x, [(z, present), (absent, nowhere)])
    expected = x if options.get("prepost") else x + z * present.unsqueeze(-1)
    for read in state.reads:
        assert error(read, expected) <= 1e-12
    assert torch.equal(backbone.hidden(state, 0), x)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_an_absent_source_is_not_heard(options: dict) -> None:
    backbone = built(slots=1, **options)
    randomise(backbone)
    x, y, z, other = (torch.randn(1, 2, WIDTH).double() for _ in range(4))
    present = torch.tensor([[True, False]])

    def top(source: Tensor) -> Tensor:
        state = backbone.start(x, [(source, present)])
        for unit in range(2 * BLOCKS):
            state = backbone.write(state, unit, y)
        return backbone.finish(state)

    one, two = top(z), top(other)
    assert torch.equal(one[:, 1], two[:, 1])
    assert error(one[:, 0], two[:, 0]) > DIFFERENT


def test_slots_leave_the_other_parameters_as_they_are() -> None:
    for options in FORMS:
        with_slots, without = (
            {n: p.shape for n, p in built(slots, **options).named_parameters()} for slots in (2, 0)
        )
        assert {n: s for n, s in with_slots.items() if "slot" not in n} == without


def test_static_and_single_way_is_a_weighted_average_per_block() -> None:
    """DenseFormer: (L + 1)(L + 2) / 2 - 1 numbers for L blocks, and nothing else."""
    decoder = Decoder(WIDTH, BLOCKS, backbone=MUDDFormer(dynamic=False, multiway=False))
    parameters = dict(decoder.backbone.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == 5 * 6 // 2 - 1
    assert {name.split(".")[-1] for name in parameters} == {"prior"}
    assert all(hasattr(unit, "norm") for unit in decoder.units)


def test_mixers_norm_three_reads() -> None:
    decoder = small_decoder(MUDDFormer())
    names = [{n.split(".")[0] for n, _ in unit.named_parameters()} for unit in decoder.units]
    assert names[0] == {"query_norm", "key_norm", "value_norm", "body"}
    assert names[1] == {"norm", "body"}


def test_the_head_takes_the_features_of_four_ways_or_of_one() -> None:
    rows = {
        expand: len(built(expand_last=expand).aggregates[str(BLOCKS)].generator)
        for expand in (True, False)
    }
    assert rows == {True: 4 * (BLOCKS + 1), False: BLOCKS + 1}


def test_one_block_has_nothing_to_connect() -> None:
    with pytest.raises(UserError, match="model.blocks=1: MUDDFormer needs at least 2"):
        Decoder(WIDTH, 1, backbone=MUDDFormer())
    with pytest.raises(UserError, match="backbone.gelu='sigmoid': give erf or tanh"):
        MUDDFormer(gelu="sigmoid")  # type: ignore[arg-type]


def test_the_generator_decays_and_nothing_else_does() -> None:
    for prepost, more in ((False, set()), (True, {"generator_gain", "post_gain"})):
        groups = named_groups(built(slots=1, prepost=prepost))
        kinds = {
            role: {name.split(".")[-1] for name in names if not name[-1].isdigit()}
            for role, names in groups.items()
        }
        assert kinds == {
            "connection": {"prior", "slot_prior"} | more,
            "router": {"generator", "mixture", "slot_mixture"},
        }
        # The gains of the sources are numbered.
        assert {n.split(".")[0] for n in groups["connection"] if n[-1].isdigit()} == (
            {"source_gain", "slot_gain"} if prepost else set()
        )


def test_what_routes_is_shown() -> None:
    backbone = built(slots=1)
    randomise(backbone)
    x = torch.randn(2, 3, WIDTH).double()
    state = backbone.start(x, [(x, torch.ones(2, 3, dtype=torch.bool))])
    assert backbone.routing(state, 0) == {}
    inside = backbone.write(state, 0, x)
    assert backbone.routing(inside, 1) == {}
    after = backbone.write(inside, 1, x)
    weights = backbone.routing(after, 2)["weights"]
    assert weights.shape == (2, 3, 4, 2)
    sums = torch.einsum("btcs,sbtd->cbtd", weights, torch.stack(after.sources))
    slot = backbone.aggregate(1).coefficients(after.newest)[..., 2:]
    for way, (total, read) in enumerate(zip(sums, after.reads, strict=True)):
        assert error(total + slot[:, :, way] * x, read) <= 1e-12
