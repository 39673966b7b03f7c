"""DeltaNet and GatedDeltaNet: published layers, initial values, ports, buffers, refusals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape, initialize
from lrt_lab.mixers import DeltaNet, GatedDeltaNet
from lrt_lab.mixers.gated_deltanet import log_rate, time_step
from lrt_lab.training.optimizer import AdamW, named_groups
from tests.mixers.cases import alone
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.golden import golden
from tests.support.models import tokens

LAYERS = {
    "fla_deltanet_layer": (DeltaNet, {"heads": 3, "chunk": 16}),
    "fla_deltanet_layer_gate_negeig": (
        DeltaNet,
        {"heads": 2, "negative": True, "output_gate": True},
    ),
    "fla_gated_deltanet_layer": (GatedDeltaNet, {"heads": 3, "head_dim": 6, "expand_v": 2}),
    "fla_gated_deltanet_layer_nogate": (GatedDeltaNet, {"output_gate": False}),
}
NAMES = {
    "query": "q_proj.weight",
    "key": "k_proj.weight",
    "value": "v_proj.weight",
    "beta": "b_proj.weight",
    "decay": "a_proj.weight",
    "gate": "g_proj.weight",
    "out": "o_proj.weight",
    "norm.gain": "o_norm.weight",
    "query_conv": "q_conv1d.weight",
    "key_conv": "k_conv1d.weight",
    "value_conv": "v_conv1d.weight",
}
WIDTH = 8


def through(x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k, v


@pytest.mark.parametrize("name", LAYERS)
def test_published_layers(name: str) -> None:
    z = golden(name)
    part, options = LAYERS[name]
    heads, inner = z["p.b_proj.weight"].shape[0], z["p.q_proj.weight"].shape[0]
    options = {
        "heads": heads,
        "head_dim": inner // heads,
        "expand_v": z["p.v_proj.weight"].shape[0] // inner,
        **options,
    }
    layer = alone(part(**options), z["x"].shape[-1])
    with torch.no_grad():
        for ours, target in layer.named_parameters():
            target.copy_(z[f"p.{NAMES.get(ours, ours)}"].view(target.shape))
    x = z["x"].clone().requires_grad_()
    at = Frame(torch.zeros(x.shape[:2], dtype=torch.long)).at(range(x.shape[1]), x.shape[1])
    y, _ = layer(x, at, None, through)
    (y * z["dy"]).sum().backward()
    pairs = [(y, z["y"]), (x.grad, z["dx"])]
    pairs += [
        (target.grad, z[f"g.{NAMES.get(ours, ours)}"].view(target.shape))
        for ours, target in layer.named_parameters()
    ]
    assert len(pairs) - 2 == sum(key.startswith("p.") for key in z)
    for actual, expected in pairs:
        assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def test_the_published_gate() -> None:
    z = golden("gdn_gate")
    g = -z["A_log"].exp() * F.softplus(z["g_raw"] + z["dt_bias"])
    layer = alone(GatedDeltaNet(heads=3), 3)
    with torch.no_grad():
        layer.decay.copy_(torch.eye(3))
        layer.A_log.copy_(z["A_log"])
        layer.dt_bias.copy_(z["dt_bias"])
        assert_close(layer.log_decay(z["g_raw"].double()), g.double(), rtol=1e-6, atol=1e-7)
    assert_close(g, z["g"])


def test_decays_start_alive() -> None:
    g = torch.Generator().manual_seed(0)
    rates, steps = torch.empty(100_000), torch.empty(100_000)
    log_rate(rates, g)
    time_step(steps, g)
    assert torch.isfinite(rates).all() and torch.isfinite(steps).all()
    assert rates.exp().min() >= 0.0099 and rates.exp().max() <= 16.01
    softplus = F.softplus(steps.double())
    assert 0.00099 <= softplus.min() <= 0.0011 and 0.09 <= softplus.max() <= 0.101


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_decay_parameters_stay_float32_without_weight_decay(dtype: torch.dtype) -> None:
    layer = GatedDeltaNet(heads=2)
    layer.setup(Shape(WIDTH, 1, 1), 0)
    initialize(layer, 1)
    layer.to(dtype)
    assert layer.query.dtype == dtype
    for name in ("A_log", "dt_bias", "decay", "beta", "query_conv"):
        assert layer.get_parameter(name).dtype == torch.float32
    assert {"A_log", "dt_bias"} <= set(named_groups(layer)["connection"])
    decaying = {
        id(p) for g in AdamW().build(layer).param_groups if g["weight_decay"] for p in g["params"]
    }
    assert id(layer.query) in decaying
    assert not {id(layer.A_log), id(layer.dt_bias)} & decaying


@pytest.mark.parametrize("part", [DeltaNet, GatedDeltaNet])
@torch.no_grad()
def test_a_routes_keys_and_values_enter_before_the_convolution(part: type) -> None:
    layer = alone(part(heads=2, head_dim=3, expand_v=2), WIDTH)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, WIDTH, generator=g, dtype=torch.float64)
    at = Frame(tokens(6)).at(range(6), 6)
    seen = []

    def port(read: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        assert torch.equal(read, x) and k.shape == v.shape == (2, 6, 2, 3)
        seen.append(k)
        moved = torch.zeros_like(k)
        moved[:, 2] = 1.0
        return k + moved, v + moved

    plain, before = layer(x, at, None, through)
    moved, after = layer(x, at, None, port)
    # One call for each slice of the values, all with the same keys.
    assert len(seen) == 2 and torch.equal(*seen)
    assert error(after.columns.k[:, 2], before.columns.k[:, 2] + 1) <= SAME
    assert error(after.columns.v[:, 2], before.columns.v[:, 2] + 1) <= SAME
    assert torch.equal(plain[:, :2], moved[:, :2])
    assert all(error(moved[:, t], plain[:, t]) > DIFFERENT for t in range(2, 6))


@torch.no_grad()
def test_three_reads() -> None:
    """Queries and the gate from the first, keys, strengths and decays from the second."""
    layer = alone(GatedDeltaNet(heads=2), WIDTH)
    g = torch.Generator().manual_seed(0)
    reads = [torch.randn(2, 6, WIDTH, generator=g, dtype=torch.float64) for _ in range(3)]
    at = Frame(tokens(6)).at(range(6), 6)
    _, buffer = layer(tuple(reads), at, None, through)
    columns = buffer.columns
    for actual, name, read in zip(columns[:3], ("query", "key", "value"), reads, strict=True):
        assert error(actual.flatten(-2), F.linear(read, layer.get_parameter(name))) <= SAME
    assert error(columns.beta, layer.strength(reads[1])) <= SAME
    assert error(columns.log_decay, layer.log_decay(reads[1])) <= SAME


@pytest.mark.parametrize("part", [DeltaNet, GatedDeltaNet])
@torch.no_grad()
def test_split_anywhere_equals_unsplit(part: type) -> None:
    """State and convolution are handed over, whether the first part can be recomputed or not."""
    layer, length = alone(part(heads=2, chunk=16), WIDTH), 20
    g = torch.Generator().manual_seed(0)
    x, frame = torch.randn(2, length, WIDTH, generator=g, dtype=torch.float64), Frame(tokens(20))
    whole, last = layer(x, frame.at(range(length), length), None, through)
    for cut in range(1, length):
        first, buffer = layer(x[:, :cut], frame.at(range(cut), cut), None, through)
        for kept in (buffer, layer.commit(buffer)):
            rest, end = layer(x[:, cut:], frame.at(range(cut, length), length), kept, through)
            assert error(torch.cat([first, rest], 1), whole) <= SAME
            assert error(end.after, last.after) <= SAME


@torch.no_grad()
def test_decoding_keeps_a_constant_size() -> None:
    layer = alone(GatedDeltaNet(heads=2), WIDTH)
    buffer = layer.allocate(2, 100, torch.zeros(1, dtype=torch.float64))
    frame, sizes = Frame(tokens(20)), []
    x = torch.ones(2, 20, WIDTH, dtype=torch.float64)
    for t in range(20):
        _, buffer = layer(x[:, t : t + 1], frame.at(range(t, t + 1), t + 1), buffer, through)
        buffer = layer.commit(buffer)
        assert buffer.anchor == t + 1
        sizes.append(sum(c.numel() for c in buffer.columns) + buffer.before.numel())
    assert len(set(sizes[3:])) == 1
    with pytest.raises(ValueError, match=r"^position 4 is final: states start at 20$"):
        layer(x[:, :1], frame.at(range(4, 5), 5), buffer, through)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"heads": 0}, "mixer heads=0: it must be at least 1"),
        ({"head_dim": 0}, "mixer head_dim=0: it must be at least 1"),
        ({"expand_v": 0}, "mixer expand_v=0: it must be at least 1"),
        ({"conv": 0}, "mixer conv=0: it must be at least 1"),
        ({"chunk": 48}, "mixer chunk=48: give 16, 32 or 64"),
    ],
    ids=lambda given: str(given),
)
@pytest.mark.parametrize("part", [DeltaNet, GatedDeltaNet])
def test_bad_options(part: type, options: dict, line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}$"):
        part(**options)


def test_heads_must_split_the_width() -> None:
    with pytest.raises(UserError, match=r"^width 8 with 3 heads: heads must divide the width, or"):
        DeltaNet(heads=3).kv(Shape(WIDTH, 1, 1))
    assert DeltaNet(heads=3, head_dim=5).kv(Shape(WIDTH, 1, 1)) == (3, 5)
