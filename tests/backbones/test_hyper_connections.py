"""Hyper-Connections: units against published code, the start, the streams, what is unbounded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lrt_lab.backbones import HyperConnections, PreNorm
from lrt_lab.backbones.hyper_connections import StreamConnection
from lrt_lab.backbones.streams import Streams
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape, initialize
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.training.optimizer import DECAYING, named_groups
from tests.support.compare import DIFFERENT, error
from tests.support.golden import golden
from tests.support.models import randomise, started_decoder, tokens

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
N, WIDTH = 4, 16

FILES = {
    "hc_unit_paper_layernorm": {},
    # Upstream guards its norm by a floor of 1e-12 under the root.
    "hc_unit_lucidrains_rms": {"norm": "rms", "eps": 1e-24},
}


def built(units: int = 2, **options) -> HyperConnections:
    """A float64 backbone with its starting values, outside a decoder."""
    backbone = HyperConnections(**options)
    backbone.setup(Shape(WIDTH, units // 2, 1), 0)
    initialize(backbone, 1)
    return backbone.double()


def named(connection: StreamConnection, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file's arrays under our names.

    static_alpha and dynamic_alpha_fn have columns read | carry by destination; static rows are
    sources, the dynamic ones features.
    """
    static, dynamic = arrays["static_alpha"], arrays["dynamic_alpha_fn"]
    found = {
        "read": static[:, 0],
        "carry": static[:, 1:],
        "write": arrays["static_beta"],
        "read_weight": dynamic[:, 0].unsqueeze(0),
        "carry_weight": dynamic[:, 1:].T,
        "write_weight": arrays["dynamic_beta_fn"].unsqueeze(0),
        "mix_scale": arrays["dynamic_alpha_scale"].view(1),
        "write_scale": arrays["dynamic_beta_scale"].view(1),
        "gain": arrays["norm_weight" if connection.norm == "layer" else "norm_gamma"],
    }
    if connection.norm == "layer":
        found["bias"] = arrays["norm_bias"]
    return found


@pytest.mark.parametrize("name", FILES)
def test_one_unit(name: str) -> None:
    expected = golden(name)
    backbone = built(**FILES[name])
    connection = backbone.connections[1]
    with torch.no_grad():
        for key, value in named(connection, expected).items():
            # Upstream's gain is 1 + gamma.
            offset = 1.0 if key == "gain" and connection.norm == "rms" else 0.0
            getattr(connection, key).copy_(value + offset)
    x, weight = (expected[key].clone().requires_grad_() for key in ("X", "W"))
    state = Streams(x)
    u = backbone.read(state, 1)
    branch = torch.tanh(F.linear(u, weight))
    coefficients = connection(x)
    after = backbone.write(state, 1, branch).x
    loss = after.square().sum()
    loss.backward()
    found = {"u": u, "branch_out": branch, "X_next": after, "beta": coefficients.write}
    found["carry"] = torch.einsum("...sr,...sd->...rd", coefficients.carry, x)
    for key, value in {**found, "loss": loss}.items():
        assert_close(value.detach(), expected[key], **CLOSE, msg=key)
    assert_close(x.grad, expected["grad_X"], **CLOSE)
    assert_close(weight.grad, expected["grad_W"], **CLOSE)
    gradients = {key[5:]: value for key, value in expected.items() if key.startswith("grad_")}
    for key, value in named(connection, gradients).items():
        assert_close(getattr(connection, key).grad, value, **CLOSE, msg=key)


def test_transposing_the_carry_matters() -> None:
    backbone = built()
    randomise(backbone)
    state, y = Streams(torch.randn(2, 3, N, WIDTH).double()), torch.randn(2, 3, WIDTH).double()
    before = backbone.write(state, 0, y).x
    with torch.no_grad():
        backbone.connections[0].carry.copy_(backbone.connections[0].carry.T.clone())
    assert error(backbone.write(state, 0, y).x, before) > DIFFERENT


def test_the_initial_stack() -> None:
    """Units are counted as sublayers; their number decides which stream they read."""
    expected = golden("hc_init_stack")
    backbone = built(6)
    state, stream = backbone.start(expected["x"], []), expected["x"]
    for unit, weight in enumerate(expected["W"]):
        connection = backbone.connections[unit]
        assert_close(connection.read.detach(), expected["static_alpha_init"][unit, :, 0])
        assert_close(connection.carry.detach(), expected["static_alpha_init"][unit, :, 1:])
        assert_close(connection.write.detach(), expected["static_beta_init"][unit])
        state = backbone.enter(state, unit, lambda x: x)
        state = backbone.write(
            state, unit, torch.tanh(F.linear(backbone.read(state, unit), weight))
        )
        stream = stream + torch.tanh(F.linear(stream, weight))
        assert_close(state.x, stream.unsqueeze(-2).expand_as(state.x), **CLOSE)
    assert_close(stream, expected["prenorm_out"], **CLOSE)
    assert_close(backbone.finish(state), expected["out_sum"], **CLOSE)


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("route", [NoRoute, LRT])
def test_the_start_is_n_times_prenorm(route, dynamic: bool) -> None:
    one, other = (
        started_decoder(b, route()) for b in (HyperConnections(dynamic=dynamic), PreNorm())
    )
    frame, top = Frame(tokens()), one.shape.units
    memory = [None, None]
    for _ in range(2):
        outs = [
            d.sweep(frame, frame.positions, m, save=[top])
            for d, m in zip((one, other), memory, strict=True)
        ]
        streams, stream = outs[0].saved[top].x, outs[1].saved[top].x
        assert error(streams, stream.unsqueeze(-2).expand_as(streams)) <= 1e-12
        assert error(one.backbone.finish(outs[0].saved[top]), N * stream) <= 1e-12
        # The final norm's eps sees n times the stream.
        assert error(outs[0].hidden, outs[1].hidden) <= 1e-6
        if route is NoRoute:
            return
        memory = [
            d.memory(o.carried, frame, frame.positions)
            for d, o in zip((one, other), outs, strict=True)
        ]


def test_the_streams_separate_from_the_first_step_on() -> None:
    decoder, frame = started_decoder(HyperConnections()), Frame(tokens())
    decoder.sweep(frame, frame.positions).hidden[..., 0].sum().backward()
    writes = torch.stack([c.write.grad for c in decoder.backbone.connections])
    assert (writes - writes.mean(-1, keepdim=True)).abs().max() > 1e-3
    with torch.no_grad():
        for p in decoder.parameters():
            if p.grad is not None:
                p.sub_(0.1 * p.grad)
        top = decoder.sweep(frame, frame.positions, save=[decoder.shape.units]).saved
    streams = top[decoder.shape.units].x
    assert error(streams, streams.mean(-2, keepdim=True).expand_as(streams)) > 1e-3


def test_an_injection_moves_every_stream_alike() -> None:
    backbone = built()
    x = torch.randn(2, 3, N, WIDTH).double()
    state = Streams(x)
    entered = backbone.enter(state, 0, lambda mean: 3 * mean + 1)
    change = 2 * x.mean(-2) + 1
    assert error(entered.x, x + change.unsqueeze(-2)) <= 1e-12
    assert error(backbone.hidden(entered, 0), 3 * backbone.hidden(state, 0) + 1) <= 1e-12
    # States are values, and an injection that does nothing leaves the streams as they are.
    assert state.x is x
    assert backbone.enter(state, 0, lambda mean: mean).x is x


def test_sources_join_the_embedding_where_they_are_present() -> None:
    backbone = built()
    present = torch.tensor([[True, False]])
    state = backbone.start(torch.zeros(1, 2, WIDTH), [(torch.ones(1, 2, WIDTH), present)])
    assert state.x[0, :, :, 0].tolist() == [[1] * N, [0] * N]


@pytest.mark.parametrize("gain", [1.5, 4.0])
def test_nothing_bounds_the_composite_gain(gain: float) -> None:
    """A carry a little over one compounds over depth: mHC exists to prevent this."""
    units = 32
    backbone = built(units, dynamic=False)
    with torch.no_grad():
        for connection in backbone.connections:
            connection.carry.mul_(gain)
    x = torch.ones(1, 1, WIDTH).double().requires_grad_()
    state = backbone.start(x, [])
    for unit in range(units):
        state = backbone.write(state, unit, torch.zeros(1, 1, WIDTH).double())
    top = backbone.hidden(state, units)
    top.sum().backward()
    assert top[0, 0, 0].item() == pytest.approx(gain**units)
    # The gradient grows with it.
    assert x.grad[0, 0, 0].item() == pytest.approx(gain**units)


def test_without_tanh_coefficients_grow_with_their_scores() -> None:
    bounded, free = (built(tanh=tanh) for tanh in (True, False))
    x = torch.randn(2, 3, N, WIDTH).double()
    for backbone in (bounded, free):
        with torch.no_grad():
            backbone.connections[0].read_weight.copy_(torch.arange(-500.0, 1100.0, 100.0))
    assert (bounded.connections[0](x).read - bounded.connections[0].read).abs().max() <= 0.01
    assert (free.connections[0](x).read - free.connections[0].read).abs().max() > 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"streams": 1}, "backbone.streams=1: HyperConnections needs at least 2"),
        ({"streams": 0}, "backbone.streams=0"),
        ({"norm": "batch"}, "backbone.norm='batch': give layer or rms"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict, line: str) -> None:
    with pytest.raises(UserError, match=line):
        HyperConnections(**options)


def test_the_dynamic_weights_decay_and_nothing_else_does() -> None:
    groups = named_groups(started_decoder(HyperConnections()).backbone)
    kinds = {role: {name.split(".")[-1] for name in names} for role, names in groups.items()}
    assert kinds == {
        "connection": {"read", "carry", "write", "gain", "bias", "mix_scale", "write_scale"},
        "router": {"read_weight", "write_weight", "carry_weight"},
    }
    assert "router" in DECAYING and "connection" not in DECAYING


def test_what_routes_is_shown() -> None:
    backbone = built()
    state = Streams(torch.randn(2, 3, N, WIDTH).double())
    found = backbone.routing(state, 1)
    assert found["streams"] is state.x
    assert torch.equal(found["carry"], backbone.connections[1](state.x).carry)
    assert set(backbone.routing(state, 2)) == {"streams"}
