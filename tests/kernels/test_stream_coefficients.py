"""Coefficients of n streams: equations, bits, widths of numbers, registration, wrong inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels import Sinkhorn, no_autocast, sinkhorn, stream_adjustments, stream_coefficients
from lrt_kernels.stream_coefficients import _adjust, _op
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.kernels.row_cases import beside, matrices
from tests.support.compare import SAME, error

N, READ_EPS = 4, 1e-6
MIXINGS = {"balanced": Sinkhorn(5), "permutations": matrices(N)}
each_mixing = pytest.mark.parametrize("mixing", MIXINGS.values(), ids=MIXINGS)


def given(
    mixing: Sinkhorn | Tensor, n: int = N, lead: tuple[int, ...] = (3,), dtype=torch.float64
) -> list[Tensor]:
    """Scores, scale and bias."""
    count = 2 * n + (n * n if isinstance(mixing, Sinkhorn) else len(mixing))
    shapes = ((*lead, count), (3,), (count,))
    return [normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


def adjusted(n: int = N, lead: tuple[int, ...] = (3,), dtype=torch.float64) -> list[Tensor]:
    """Scores, what is learned, and a shift."""
    shapes = ((*lead, n, 2 + n), (n,), (n,), (n, n), (1,), (1,), (2 + n,))
    return [normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


def compared(call: Callable[[str], Callable[..., Tensor]], inputs: list[Tensor]) -> None:
    both = (value_and_gradients(call(backend), inputs) for backend in ("triton", "reference"))
    for actual, expected in zip(*both, strict=True):
        assert error(actual, expected) <= SAME


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_the_equations(lead: tuple[int, ...]) -> None:
    for mixing in MIXINGS.values():
        scores, scale, bias = given(mixing, lead=lead)
        logits = bias + scores * scale[torch.tensor([0] * N + [1] * N + [2] * (bias.numel() - 8))]
        read, write, carry = stream_coefficients(scores, scale, bias, mixing, 1.5, 0.1)
        assert_close(read, 1 / (1 + torch.exp(-logits[..., :N])) + 0.1)
        assert_close(write, 1.5 / (1 + torch.exp(-logits[..., N : 2 * N])))
        if isinstance(mixing, Sinkhorn):
            assert_close(carry, sinkhorn(logits[..., 2 * N :].unflatten(-1, (N, N)), 5))
        else:
            weight = torch.softmax(logits[..., 2 * N :], dim=-1)
            assert_close(carry, sum(weight[..., k, None, None] * mixing[k] for k in range(24)))
    scores, read, write, carry, mix, strength, shift = adjusted(lead=lead)
    moved = torch.tanh(scores + shift)
    found = stream_adjustments(scores, read, write, carry, mix, strength, shift)
    assert_close(found[0], read + mix * moved[..., 0])
    assert_close(found[1], write + strength * moved[..., 1])
    assert_close(found[2], carry + mix * moved[..., 2:])


def apart(x: Tensor, scale: Tensor, bias: Tensor, mixing: Sinkhorn | Tensor) -> Tensor:
    """One operation of torch after the other."""
    sections = (N, N, len(bias) - 2 * N)
    alpha = torch.cat([a.expand(k) for a, k in zip(scale, sections, strict=True)])
    read, write, carry = torch.addcmul(bias, x, alpha).split(sections, dim=-1)
    read, write = torch.sigmoid(read) + READ_EPS, 2.0 * torch.sigmoid(write)
    if isinstance(mixing, Sinkhorn):
        return beside(read, write, sinkhorn(carry.unflatten(-1, (N, N)), *mixing))
    with no_autocast("cpu"):
        carry = torch.softmax(carry, dim=-1) @ mixing.flatten(1)
    return beside(read, write, carry.unflatten(-1, (N, N)))


def adjusted_apart(
    x: Tensor, read: Tensor, write: Tensor, carry: Tensor, mix: Tensor, strength: Tensor, *shift
) -> Tensor:
    on_read, on_write, on_carry = torch.tanh(x + shift[0] if shift else x).split([1, 1, N], dim=-1)
    return beside(
        torch.addcmul(read, on_read.squeeze(-1), mix),
        torch.addcmul(write, on_write.squeeze(-1), strength),
        torch.addcmul(carry, on_carry, mix),
    )


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_the_bits_are_those_of_one_operation_after_the_other(autocast: bool) -> None:
    calls = [
        (
            lambda *x, mixing=mixing: beside(*stream_coefficients(*x, mixing, read_eps=READ_EPS)),
            lambda *x, mixing=mixing: apart(*x, mixing),
            given(mixing, lead=(2, 37), dtype=torch.float32),
        )
        for mixing in MIXINGS.values()
    ]
    inputs = adjusted(lead=(2, 37), dtype=torch.float32)
    for some in (inputs, inputs[:-1]):
        calls.append((lambda *x: beside(*stream_adjustments(*x)), adjusted_apart, some))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        for ours, theirs, leaves in calls:
            both = value_and_gradients(ours, leaves), value_and_gradients(theirs, leaves)
            assert all(map(torch.equal, *both))


@each_mixing
def test_the_gradients(mixing: Sinkhorn | Tensor) -> None:
    inputs = [x.requires_grad_() for x in given(mixing, lead=(2,))]
    assert torch.autograd.gradcheck(
        lambda *x: stream_coefficients(*x, mixing, 1.5, READ_EPS), inputs, fast_mode=True
    )


def test_the_gradients_of_adjustments() -> None:
    inputs = [x.requires_grad_() for x in adjusted(lead=(2,))]
    assert torch.autograd.gradcheck(stream_adjustments, inputs)
    assert torch.autograd.gradcheck(lambda *x: stream_adjustments(*x, None, False), inputs[:-1])


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=interpreted)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_they_are_computed_wide(dtype: torch.dtype, backend: str) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    calls = [
        (lambda *x, mixing=mixing: stream_coefficients(*x, mixing, backend=backend), given(mixing))
        for mixing in MIXINGS.values()
    ]
    calls.append((lambda *x: stream_adjustments(*x, backend=backend), adjusted()))
    for call, inputs in calls:
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = call(*leaves)
        assert {x.dtype for x in found} == {wide}
        exact = call(*(x.detach().double() for x in leaves))
        for actual, expected in zip(found, exact, strict=True):
            assert error(actual.double(), expected) <= 1e-6
        sum(x.sum() for x in found).backward()
        assert {x.grad.dtype for x in leaves} == {dtype}


@interpreted
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_any_number_of_streams(n: int) -> None:
    mixings: list[Sinkhorn | Tensor] = [Sinkhorn(3, 0.0), Sinkhorn(2, 1e-2, "destination")]
    # Any matrices are mixed, not permutations alone.
    mixings += [matrices(n)] if n <= 5 else [normal(6, n, n)]
    for mixing in mixings:
        compared(
            lambda backend, mixing=mixing: (
                lambda *x: beside(*stream_coefficients(*x, mixing, 1.5, 1e-2, backend))
            ),
            given(mixing, n, (2,)),
        )
    compared(
        lambda backend: lambda *x: beside(*stream_adjustments(*x, backend=backend)),
        adjusted(n, (2,)),
    )


@interpreted
def test_more_matrices_than_a_program_holds() -> None:
    """They take the reference, whatever was asked for."""
    large = normal(129, 5, 5)
    inputs = given(large, 5)
    both = (stream_coefficients(*inputs, large, backend=b) for b in ("triton", "reference"))
    assert all(map(torch.equal, *both))
    assert math.factorial(5) <= 128


@interpreted
def test_one_coefficient_alone_has_a_gradient() -> None:
    """The others' gradients are zeros then."""
    for mixing in MIXINGS.values():
        for i in range(3):
            compared(
                lambda b, i=i, m=mixing: lambda *x: stream_coefficients(*x, m, backend=b)[i],
                given(mixing),
            )
    for i in range(3):
        compared(
            lambda b, i=i: lambda *x: stream_adjustments(*x[:6], None, False, b)[i], adjusted()
        )


@interpreted
def test_parts_of_other_tensors() -> None:
    """Scores of more positions, and parameters that are not in one piece."""
    scores, scale, bias = given(Sinkhorn(3))
    strided = [torch.stack([x, x], dim=-1)[..., 0] for x in (scores, scale, bias)]
    both = (
        stream_coefficients(*x, Sinkhorn(3), backend="triton")
        for x in (strided, (scores, scale, bias))
    )
    assert all(map(torch.equal, *both))
    inputs = adjusted()
    strided = [torch.stack([x, x], dim=-1)[..., 0] for x in inputs]
    both = (stream_adjustments(*x, backend="triton") for x in (strided, inputs))
    assert all(map(torch.equal, *both))


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=interpreted)])
def test_extreme_scores_stay_finite(backend: str) -> None:
    for mixing in MIXINGS.values():
        scores, scale, bias = given(mixing, dtype=torch.float32)
        leaves = [(1e4 * scores).requires_grad_(), scale.requires_grad_(), bias.requires_grad_()]
        found = beside(*stream_coefficients(*leaves, mixing, backend=backend))
        found.square().sum().backward()
        assert all(torch.isfinite(x).all() for x in (found, *(leaf.grad for leaf in leaves)))
    scores, *rest = (x.requires_grad_() for x in adjusted(dtype=torch.float32))
    found = beside(*stream_adjustments(1e4 * scores, *rest, backend=backend))
    found.square().sum().backward()
    assert all(torch.isfinite(x).all() for x in (found, *(x.grad for x in (scores, *rest))))


@interpreted
@each_mixing
def test_registration(mixing: Sinkhorn | Tensor) -> None:
    tensors = [x.requires_grad_() for x in given(mixing)]
    matrices = mixing.double() if isinstance(mixing, Tensor) else None
    found = torch.library.opcheck(_op, (*tensors, matrices, 2, 1e-6, False, 2.0, 0.0))
    assert set(found.values()) == {"SUCCESS"}


@interpreted
@pytest.mark.parametrize("shifted", [False, True])
def test_registration_of_adjustments(shifted: bool) -> None:
    *tensors, shift = [x.requires_grad_() for x in adjusted()]
    found = torch.library.opcheck(_adjust, (*tensors, shift if shifted else None, True))
    assert set(found.values()) == {"SUCCESS"}


SCORES, SCALE, BIAS = given(Sinkhorn())
WRONG = {
    r"scores has shape \(\): give \(..., 24\)": {"scores": torch.tensor(1.0)},
    r"scores has shape \(3, 23\), not \(3, 24\)": {"scores": SCORES[:, 1:]},
    "scores is torch.int64: give one of": {"scores": SCORES.long()},
    r"scale has shape \(2,\), not \(3,\)": {"scale": SCALE[:2]},
    "scale is torch.int64: give one of": {"scale": SCALE.long()},
    r"bias has shape \(23,\): give \(2 n \+ n\^2,\)": {"bias": BIAS[1:]},
    r"bias has shape \(0,\): give": {"bias": BIAS[:0]},
    r"bias has shape \(1, 24\): give": {"bias": BIAS[None]},
    "bias is on meta": {"bias": BIAS.to("meta")},
    r"bias has shape \(24,\), not \(32,\)": {"mixing": matrices(4), "scores": normal(3, 32)},
    r"mixing has shape \(24, 16\): give \(K, n, n\)": {"mixing": matrices(4).flatten(1)},
    r"mixing has shape \(24, 3, 4\): give": {"mixing": matrices(4)[:, :3]},
    r"mixing has shape \(0, 4, 4\): give": {"mixing": matrices(4)[:0]},
    "mixing is torch.int64: give one of": {"mixing": matrices(4).long()},
    "mixing is on meta": {"mixing": matrices(4).to("meta")},
    "mixing requires a gradient": {"mixing": normal(24, 4, 4).requires_grad_()},
    "mixing.iterations=0: give at least 1": {"mixing": Sinkhorn(0)},
    "mixing.exact='rows': give source or destination": {"mixing": Sinkhorn(exact="rows")},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    right = {"scores": SCORES, "scale": SCALE, "bias": BIAS, "mixing": Sinkhorn()}
    with pytest.raises(ValueError, match=message):
        stream_coefficients(**right | {"backend": backend} | WRONG[message])


NAMES = ("scores", "read", "write", "carry", "mix_scale", "write_scale", "shift")
RIGHT = dict(zip(NAMES, adjusted(), strict=True))
WRONG_ADJUSTMENTS = {
    r"scores has shape \(6,\): give \(..., n, 2 \+ n\)": {"scores": normal(6)},
    r"scores has shape \(3, 0, 2\): give": {"scores": normal(3, 0, 2)},
    r"scores has shape \(3, 4, 5\), not \(3, 4, 6\)": {"scores": normal(3, 4, 5)},
    "scores is torch.int64": {"scores": RIGHT["scores"].long()},
    r"read has shape \(3,\), not \(4,\)": {"read": normal(3)},
    "write is on meta": {"write": RIGHT["write"].to("meta")},
    r"carry has shape \(4, 3\), not \(4, 4\)": {"carry": normal(4, 3)},
    r"mix_scale has shape \(\), not \(1,\)": {"mix_scale": torch.tensor(1.0)},
    "write_scale is torch.bool": {"write_scale": RIGHT["write_scale"] > 0},
    r"shift has shape \(4,\), not \(6,\)": {"shift": normal(4)},
}


@pytest.mark.parametrize("message", WRONG_ADJUSTMENTS, ids=lambda m: m.split(" ")[0] + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_adjustments_are_named(message: str, backend: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream_adjustments(**RIGHT | {"backend": backend} | WRONG_ADJUSTMENTS[message])
