"""mHC: units, start values and the read-out head against published code; what it promises."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels import stream_coefficients, stream_write
from lrt_lab.backbones import MHC, MHCLite, PreNorm
from lrt_lab.backbones.streams import Streams
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape, initialize
from lrt_lab.training.optimizer import DECAYING, named_groups
from tests.backbones.stacks import stack
from tests.support.compare import error, rms_error
from tests.support.golden import golden
from tests.support.models import small_decoder, tokens

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
FAR = 2e-5
N, WIDTH = 4, 16


def built(backbone: MHC, dtype: torch.dtype = torch.float32, blocks: int = 1) -> MHC:
    """A backbone with its starting values, outside a decoder."""
    backbone.setup(Shape(WIDTH, blocks, 1), 0)
    initialize(backbone, 1)
    return backbone.to(dtype)


def unit(backbone: MHC, x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Unit 0 around tanh(W u): what it reads, its coefficients, the streams that follow."""
    state = Streams(x)
    u = backbone.read(state, 0)
    branch = torch.tanh(F.linear(u, weight))
    read, write, carry = backbone.coefficients(x, 0)
    following = backbone.write(state, 0, branch).x
    return {
        **{"u": u, "branch_out": branch, "X_next": following},
        **{"read": read, "write": write, "carry": carry},
    }


def carried(backbone: MHC, logits: Tensor) -> Tensor:
    """The carry of logits, without a score or a scale."""
    scores = torch.cat([logits.new_zeros(len(logits), 2 * backbone.streams), logits], dim=-1)
    one, zero = scores.new_ones(3), scores.new_zeros(scores.shape[-1])
    return stream_coefficients(scores, one, zero, backbone.mixing())[-1]


def load(backbone: MHC, arrays: dict[str, Tensor], index: int = 0) -> None:
    """Fill a connection: phi and beta by rows read, write, carry; alpha and gain likewise."""
    connection = backbone.connections[index]
    with torch.no_grad():
        for name, value in arrays.items():
            getattr(connection, name).copy_(value)


def gradients(backbone: MHC) -> dict[str, Tensor]:
    connection = backbone.connections[0]
    return {name: p.grad for name, p in connection.named_parameters()}


def near(actual: Tensor, expected: Tensor) -> bool:
    """Within the float32 files' tolerance: relative RMS, or of the largest entry of a gradient."""
    return rms_error(actual, expected) <= FAR or error(actual, expected) <= 1e-4


@pytest.mark.parametrize(
    "name", ["mhc_unit_tilekernels_fp32", "mhc_unit_tilekernels_nonormw_fp32"], ids=["gain", "none"]
)
def test_deepseek(name: str) -> None:
    """phi (read | write | carry by source, destination; n d), R is [source, destination]."""
    check_deepseek(golden(name), MHC(read_eps=1e-6))


def test_deepseek_by_its_own_defaults() -> None:
    expected = golden("mhc_unit_tilekernels_iters10_fp32")
    check_deepseek(expected, MHC(iterations=10, write_scale=1.0, read_eps=1e-6))
    with pytest.raises(AssertionError):
        check_deepseek(expected, MHC(read_eps=1e-6))


def check_deepseek(expected: dict[str, Tensor], backbone: MHC) -> None:
    ones = torch.ones(N * WIDTH)
    names = {"phi": "phi", "alpha": "scale", "beta": "base", "gain": "norm_weight"}
    load(built(backbone), {ours: expected.get(theirs, ones) for ours, theirs in names.items()})
    x, weight = (expected[k].clone().requires_grad_() for k in ("X", "W"))
    got = unit(backbone, x, weight)
    for ours, theirs in {"read": "pre", "write": "post", "carry": "R_src_dst"}.items():
        assert rms_error(got[ours], expected[theirs]) <= FAR, ours
    for name in ("u", "branch_out", "X_next"):
        assert rms_error(got[name], expected[name]) <= FAR, name
    got["X_next"].square().sum().backward()
    assert near(x.grad, expected["grad_X"])
    assert near(weight.grad, expected["grad_W"])
    for ours, gradient in gradients(backbone).items():
        if f"grad_{names[ours]}" in expected:
            assert near(gradient, expected[f"grad_{names[ours]}"]), ours


def test_liger() -> None:
    """phi (n d; read | write | carry by destination, source), R is [destination, source].

    The same arithmetic on the transposed index: what ends exact is the destination axis.
    """
    expected = golden("mhc_unit_liger_ref_fp32")
    flip = torch.arange(N * N).view(N, N).mT.flatten() + 2 * N
    rows = torch.cat([torch.arange(2 * N), flip])
    backbone = built(MHC(exact="destination"))
    alpha = torch.stack([expected[f"alpha_{k}"] for k in ("pre", "post", "res")])
    load(backbone, {"phi": expected["phi"].mT[rows], "beta": expected["b"][rows], "alpha": alpha})
    x, weight = (expected[k].clone().requires_grad_() for k in ("X", "W"))
    got = unit(backbone, x, weight)
    assert rms_error(got["carry"].mT, expected["h_res_dst_src"]) <= FAR
    for ours, theirs in {"read": "h_pre", "write": "h_post", "u": "u", "X_next": "X_next"}.items():
        assert rms_error(got[ours], expected[theirs]) <= FAR, ours
    got["X_next"].square().sum().backward()
    ours = gradients(backbone)
    assert near(x.grad, expected["grad_X"])
    assert near(weight.grad, expected["grad_W"])
    # The flip undoes itself.
    assert near(ours["phi"][rows].mT, expected["grad_phi"])
    assert near(ours["beta"][rows], expected["grad_b"])
    alpha = torch.stack([expected[f"grad_alpha_{k}"] for k in ("pre", "post", "res")])
    assert near(ours["alpha"], alpha)


def test_a_transposed_carry_is_another_model() -> None:
    expected = golden("mhc_unit_tilekernels_nonormw_fp32")
    backbone = built(MHC(read_eps=1e-6))
    load(backbone, {"phi": expected["phi"], "alpha": expected["scale"], "beta": expected["base"]})
    read, write, carry = backbone.coefficients(expected["X"], 0)
    x, y = expected["X"], expected["branch_out"]
    assert rms_error(stream_write(x, carry, write, y), expected["X_next"]) <= FAR
    assert rms_error(stream_write(x, carry.mT, write, y), expected["X_next"]) > 0.1
    assert rms_error(stream_write(x, 0 * carry, write, y), expected["X_next"]) > 0.1


def authors(arrays: dict[str, Tensor], prefix: str = "", gamma: str = "norm_gamma") -> dict:
    """The mHC-lite authors' arrays of their mHC as ours.

    Theirs: static_alpha (source, 1 + destination), column 0 the read; dynamic_alpha_fn (n d; the
    same, flattened); beta is the write. The norm's gain is 1 + gamma.
    """
    static = arrays[f"{prefix}static_alpha"]
    dynamic = arrays[f"{prefix}dynamic_alpha_fn"].unflatten(-1, (N, 1 + N))
    scales = ("pre_branch_scale", "h_post_scale", "residual_scale")
    return {
        "phi": torch.cat(
            [
                dynamic[..., 0].mT,
                arrays[f"{prefix}dynamic_beta_fn"].mT,
                dynamic[..., 1:].flatten(1).mT,
            ]
        ),
        "beta": torch.cat([static[:, 0], arrays[f"{prefix}static_beta"], static[:, 1:].flatten()]),
        "alpha": torch.stack([arrays[prefix + scale].reshape(()) for scale in scales]),
        "gain": arrays[gamma] + (0 if prefix == "grad_" else 1),
    }


def authors_form(**options) -> MHC:
    """Their mHC: the other axis of the carry ends exact, and no eps anywhere."""
    return MHC(exact="destination", sinkhorn_eps=0.0, eps=0.0, **options)


def test_the_mhc_lite_authors() -> None:
    expected = golden("mhc_unit_mhclite_authors")
    backbone = built(authors_form(), torch.float64)
    load(backbone, authors(expected))
    check_authors(expected, backbone, authors(expected, "grad_", "grad_norm_gamma"))


def check_authors(expected: dict[str, Tensor], backbone: MHC, wanted: dict[str, Tensor]) -> None:
    x, weight = (expected[k].clone().requires_grad_() for k in ("X", "branch_W"))
    got = unit(backbone, x, weight)
    for name in ("u", "branch_out", "X_next"):
        assert_close(got[name], expected[name], **CLOSE)
    assert_close(got["write"], expected["post"].squeeze(-2), **CLOSE)
    zero = torch.zeros_like(got["u"])
    carried = stream_write(x, got["carry"], got["write"], zero)
    assert_close(carried, expected["carry"], **CLOSE)
    loss = got["X_next"].square().sum()
    loss.backward()
    assert_close(loss, expected["loss"].to(loss.dtype), **CLOSE)
    assert_close(x.grad, expected["grad_X"], **CLOSE)
    assert_close(weight.grad, expected["grad_branch_W"], **CLOSE)
    for name, gradient in gradients(backbone).items():
        assert_close(gradient, wanted[name], **CLOSE, msg=lambda m, name=name: f"{name}: {m}")


def test_the_authors_initial_values() -> None:
    """layer_index 2; their alpha is .01 in float32."""
    expected = golden("mhc_unit_mhclite_authors")
    backbone = built(authors_form(initial="authors"), torch.float64, blocks=2)
    check_initial(expected, backbone, authors(expected, "init_", "init_norm.gamma"))


def check_initial(expected: dict[str, Tensor], backbone: MHC, wanted: dict[str, Tensor]) -> None:
    for name, parameter in backbone.connections[2].named_parameters():
        assert_close(parameter.detach(), wanted[name], rtol=1e-7, atol=1e-9)
    x = expected["X"]
    read, write, carry = backbone.coefficients(x, 2)
    assert_close(backbone.read(Streams(x), 2), expected["init_u"], **CLOSE)
    assert_close(write, expected["init_post"].squeeze(-2), **CLOSE)
    zero = torch.zeros_like(expected["u"])
    assert_close(stream_write(x, carry, write, zero), expected["init_carry"], **CLOSE)


def test_one_norm_per_stream_is_another_model() -> None:
    """lucidrains' mHC norms each stream: our nearest setting, block-diagonal phi, must differ."""
    expected = golden("mhc_unit_lucidrains_fp32")
    own = torch.eye(N)
    dynamic, static = expected["dynamic_alpha_fn"][0], expected["static_alpha"]
    carry = torch.einsum("st,dr->srtd", own, dynamic[:, 1:]).flatten(0, 1)
    read = torch.einsum("st,d->std", own, dynamic[:, 0])
    write = torch.einsum("st,d->std", own, expected["dynamic_beta_fn"])
    scales = ("pre_branch_scale", "h_post_scale", "residual_scale")
    backbone = built(authors_form())
    load(
        backbone,
        {
            "phi": torch.cat([read, write, carry]).flatten(1),
            "beta": torch.cat([static[:, 0], expected["static_beta"], static[:, 1:].flatten()]),
            "alpha": torch.stack([expected[scale].reshape(()) for scale in scales]),
            "gain": (1 + expected["norm_gamma"]).repeat(N),
        },
    )
    got = unit(backbone, expected["X"], expected["branch_W"])
    for name in ("u", "X_next"):
        assert rms_error(got[name], expected[name]) > 1e-2
    # With norms that make no difference it is the same model: the mapping is right.
    level = F.normalize(expected["X"], dim=-1)
    scores = level * WIDTH**0.5 * (1 + expected["norm_gamma"])
    logits = static + expected["pre_branch_scale"] * scores @ dynamic
    assert_close(backbone.coefficients(level, 0).read, torch.sigmoid(logits[..., 0]))


@pytest.mark.parametrize("start", ["rotating", "symmetric"])
def test_the_start_is_prenorm(start: str) -> None:
    """Six units; the loss compares the streams' mean with a target."""
    expected = golden("mhc_init_equals_prenorm_fp32")
    arrays = {
        **{"embed": expected["x0"], "W": expected["W"], "eps": expected["input_norm_eps"]},
        **{"input_norm_weight": expected["input_norm_weight"]},
    }
    decoder, frame = stack(MHC(), arrays)
    backbone = decoder.backbone
    for index, connection in enumerate(backbone.connections):
        if start == "rotating":
            assert torch.equal(connection.beta, expected["rotating_base"][index])
        load(backbone, {"beta": expected[f"{start}_base"][index]}, index)
    saved = decoder.sweep(frame, frame.positions, save=(6,)).saved[6]
    mean = backbone.finish(saved)
    assert rms_error(mean, expected["prenorm_out"]) <= FAR
    assert rms_error(mean, expected[f"{start}_out_mean"]) <= FAR
    assert rms_error(saved.x, expected[f"{start}_X_last"]) <= FAR
    (mean - expected["target"]).square().sum().backward()
    for ours, theirs in {"beta": "base", "phi": "phi"}.items():
        got = torch.stack([getattr(c, ours).grad for c in backbone.connections])
        assert near(got, expected[f"{start}_grad_{theirs}"]), ours


def test_the_head_readout() -> None:
    expected = golden("mhc_head_tilekernels_fp32")
    backbone = built(MHC(readout="head", read_eps=1e-6))
    names = {"head_phi": "fn", "head_alpha": "scale", "head_beta": "base"}
    with torch.no_grad():
        for ours, theirs in names.items():
            getattr(backbone, ours).copy_(expected[theirs])
    x = expected["X"].clone().requires_grad_()
    out = backbone.finish(Streams(x))
    out.square().sum().backward()
    assert rms_error(out, expected["out"]) <= FAR
    assert near(x.grad, expected["grad_X"])
    for ours, theirs in names.items():
        got = getattr(backbone, ours).grad
        assert near(got, expected[f"grad_{theirs}"].view_as(got)), ours


def pair(backbone: MHC) -> tuple[Decoder, Decoder]:
    """A decoder that starts as it should, and PreNorm's, with the same random rest."""
    prenorm, decoder = small_decoder(PreNorm()), small_decoder(backbone)
    decoder.load_state_dict(prenorm.state_dict(), strict=False)
    initialize(decoder.backbone, 1)
    return prenorm, decoder


@pytest.mark.parametrize("readout", ["mean", "sum", "head"])
@pytest.mark.parametrize("part", [MHC, MHCLite])
def test_it_equals_prenorm_and_its_streams_separate(part: type[MHC], readout: str) -> None:
    prenorm, decoder = pair(part(readout=readout))
    frame, top = Frame(tokens()), decoder.shape.units
    plain = prenorm.logits(prenorm.sweep(frame, frame.positions).hidden)
    sweep = decoder.sweep(frame, frame.positions, save=(top,))
    logits = decoder.logits(sweep.hidden)
    # What is left is the eps of the norms and of Sinkhorn.
    assert error(logits, plain) <= 1e-5
    streams = sweep.saved[top].x
    assert (streams - streams.mean(-2, keepdim=True)).abs().max() <= 1e-12
    F.cross_entropy(logits.flatten(0, 1), tokens(seed=5).flatten()).backward()
    torch.optim.SGD(decoder.parameters(), lr=0.1).step()
    streams = decoder.sweep(frame, frame.positions, save=(top,)).saved[top].x
    apart = (streams - streams.mean(-2, keepdim=True)).abs().amax((0, 1, 3))
    assert (apart > 1e-6).all()


@pytest.mark.parametrize("part", [MHC, MHCLite])
def test_the_authors_start_is_not_prenorm(part: type[MHC]) -> None:
    prenorm, decoder = pair(part(initial="authors"))
    frame = Frame(tokens())
    plain = prenorm.sweep(frame, frame.positions).hidden
    assert error(decoder.sweep(frame, frame.positions).hidden, plain) > 1e-3


def test_a_stream_symmetric_start_never_separates() -> None:
    """Why every unit prefers another stream: equal read biases get equal gradients."""
    _, decoder = pair(MHC())
    with torch.no_grad():
        for connection in decoder.backbone.connections:
            connection.beta[:N] = 0
    frame, top = Frame(tokens()), decoder.shape.units
    for _ in range(2):
        sweep = decoder.sweep(frame, frame.positions, save=(top,))
        sweep.hidden.square().sum().backward()
        torch.optim.SGD(decoder.parameters(), lr=0.1).step()
        streams = sweep.saved[top].x
        assert (streams - streams.mean(-2, keepdim=True)).abs().max() <= 1e-10


@pytest.mark.parametrize("std, most", [(1.0, 1e-4), (4.0, 0.15)])
def test_the_carry_nearly_preserves_the_mean(std: float, most: float) -> None:
    """Twenty iterations: exact at arrival, off at departure by Sinkhorn's error."""
    backbone = built(MHC(), torch.float64)
    g = torch.Generator().manual_seed(0)
    carry = carried(backbone, std * torch.randn(512, N * N, generator=g, dtype=torch.float64))
    x = torch.randn(512, N, WIDTH, generator=g, dtype=torch.float64)
    following = stream_write(x, carry, x.new_zeros(512, N), x.new_zeros(512, WIDTH))
    gain = torch.linalg.matrix_norm(carry, ord=2)
    assert (carry.sum(-2) - 1).abs().max() <= 1.1e-6
    assert gain.max() <= 1 + most
    off = (following.mean(-2) - x.mean(-2)).norm(dim=-1) / x.norm(dim=(-1, -2))
    assert off.max() <= most


def test_injection_and_sources_reach_every_stream() -> None:
    backbone = built(MHC(), torch.float64)
    x = torch.arange(2.0 * 3 * WIDTH, dtype=torch.float64).view(2, 3, WIDTH)
    present = torch.tensor([[True, False, True], [False, True, True]])
    state = backbone.start(x, [(10 * x, present)])
    assert_close(state.x, (x + 10 * x * present.unsqueeze(-1)).unsqueeze(-2).expand_as(state.x))
    streams = state.x * torch.arange(1.0, 5).view(N, 1)
    entered = backbone.enter(Streams(streams), 0, lambda mean: 3 * mean)
    assert_close(entered.x, streams + 2 * streams.mean(-2, keepdim=True))


@pytest.mark.parametrize(
    "part, options, says",
    [
        (MHC, {"streams": 1}, "streams=1: one stream has nothing to mix"),
        (MHC, {"streams": 0}, "streams=0"),
        (MHC, {"iterations": 0}, "iterations=0: give at least 1"),
        (MHC, {"exact": "rows"}, "exact='rows': give source or destination"),
        (MHC, {"readout": "last"}, "readout='last': give mean or sum or head"),
        (MHC, {"initial": "random"}, "initial='random': give prenorm or authors"),
        (MHCLite, {"streams": 1}, "streams=1: one stream has nothing to mix"),
        (MHCLite, {"streams": 6}, "streams=6: MHCLite mixes 720 permutations"),
    ],
    ids=str,
)
def test_invalid_options_get_one_line(part: type[MHC], options: dict, says: str) -> None:
    with pytest.raises(UserError) as raised:
        part(**options)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("mode", ["mixed", "true"])
@pytest.mark.parametrize("part", [MHC, MHCLite])
def test_coefficients_and_their_gradients_are_wide(part: type[MHC], mode: str) -> None:
    dtype = torch.bfloat16 if mode == "true" else torch.float32
    decoder, frame = small_decoder(part(readout="head")).to(dtype), Frame(tokens())
    backbone, seen = decoder.backbone, []
    coefficients = backbone.coefficients
    backbone.coefficients = lambda x, unit: seen.append(coefficients(x, unit)) or seen[-1]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "mixed"):
        hidden = decoder.sweep(frame, frame.positions).hidden
    assert hidden.dtype == dtype
    assert {c.dtype for coming in seen for c in coming} == {torch.float32}
    hidden.float().square().sum().backward()
    dtypes = {n: (p.dtype, p.grad.dtype) for n, p in backbone.named_parameters()}
    assert set(dtypes.values()) == {(torch.float32, torch.float32)}, dtypes


@pytest.mark.parametrize("part", [MHC, MHCLite])
def test_only_phi_decays_and_nothing_goes_to_muon(part: type[MHC]) -> None:
    groups = named_groups(Decoder(8, 1, 4, backbone=part(readout="head")))
    names = {role: [n for n in groups[role] if "backbone" in n] for role in groups}
    own = [f"backbone.connections.{unit}" for unit in range(2)]
    assert sorted(names["router"]) == sorted(["backbone.head_phi", *[f"{c}.phi" for c in own]])
    kept = [f"{c}.{name}" for c in own for name in ("gain", "alpha", "beta")]
    assert sorted(names["connection"]) == sorted(
        ["backbone.head_alpha", "backbone.head_beta", *kept]
    )
    assert not any(names[role] for role in names if role not in ("router", "connection"))
    assert "router" in DECAYING
    assert "connection" not in DECAYING
