"""The delta rule: published arrays, its forms against each other, extremes, eigenvalues."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels import (
    delta_rule,
    delta_rule_chunkwise,
    delta_rule_recurrent,
    delta_rule_step,
    l2_norm,
)
from tests.support.compare import SAME, error, rms_error
from tests.support.golden import golden

CHUNKS = (16, 32, 64)
FILES = [
    "delta_rule_rec_T1",
    "delta_rule_rec_T37",
    "delta_rule_rec_T64_nos0",
    "delta_rule_rec_negeig_T33",
    "gated_delta_rec_logsig_T37",
    "gated_delta_rec_strong_T40",
    "gated_delta_rec_weak_T64_nos0",
]
B, H, K, V = 2, 3, 5, 4


def random(length: int, decay: float | None = 1.0, seed: int = 0) -> dict[str, Tensor]:
    """Inputs in float64: unit keys, strengths in (0, 2), decays down to exp(-3 decay)."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    inputs = {
        "q": l2_norm(normal(B, length, H, K)),
        "k": l2_norm(normal(B, length, H, K)),
        "v": normal(B, length, H, V),
        "beta": 2 * torch.sigmoid(normal(B, length, H)),
        "state": normal(B, H, K, V),
    }
    if decay is not None:
        inputs["log_decay"] = -decay * 3 * torch.sigmoid(normal(B, length, H))
    return inputs


def gradients(form, inputs: dict[str, Tensor], **options) -> list[Tensor]:
    """Outputs, final state, and the gradients of a fixed mixture of both."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    o, state = form(**leaves, **options)
    g = torch.Generator().manual_seed(9)
    weights = [torch.randn(x.shape, generator=g, dtype=torch.float64) for x in (o, state)]
    ((o * weights[0].to(o.dtype)).sum() + (state * weights[1].to(o.dtype)).sum()).backward()
    return [o, state, *(leaf.grad for leaf in leaves.values())]


@pytest.mark.parametrize("form", ["recurrent", *CHUNKS], ids=str)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_published_arrays(name: str, form: str | int, dtype: torch.dtype) -> None:
    z = golden(name)
    names = {"q": "q", "k": "k", "v": "v", "beta": "beta", "state": "S0"}
    if "g" in z:
        names["log_decay"] = "g"
    x = {ours: z[theirs].to(dtype).requires_grad_() for ours, theirs in names.items()}
    if form == "recurrent":
        o, state = delta_rule_recurrent(**x, scale=float(z["scale"]))
    else:
        o, state = delta_rule_chunkwise(**x, scale=float(z["scale"]), chunk=int(form))
    ((o * z["do"].to(dtype)).sum() + (state * z["dS"].to(dtype)).sum()).backward()
    pairs = [(o, z["o"]), (state, z["S"])]
    pairs += [(x[ours].grad, z[f"d{theirs}"]) for ours, theirs in names.items()]
    for actual, expected in pairs:
        if dtype == torch.float64:
            assert_close(actual, expected, rtol=1e-9, atol=1e-10)
        elif expected.any():
            assert rms_error(actual.double(), expected) <= 2e-5


@pytest.mark.parametrize("decay", [None, 1.0], ids=["no decay", "decay"])
@pytest.mark.parametrize("initial", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunkwise_equals_recurrent(chunk: int, initial: bool, decay: float | None) -> None:
    for length in (1, chunk - 1, chunk, chunk + 1, 2 * chunk + 5):
        inputs = random(length, decay)
        if not initial:
            del inputs["state"]
        expected = gradients(delta_rule_recurrent, inputs)
        actual = gradients(delta_rule_chunkwise, inputs, chunk=chunk)
        assert all(error(a, e) <= SAME for a, e in zip(actual, expected, strict=True))


def test_the_state_in_the_convention_of_the_paper() -> None:
    """S of eq. 14 is our state transposed: S <- a S (I - b k k^T) + b v k^T."""
    x = random(6)
    state = x["state"].mT.clone()
    eye, out = torch.eye(K, dtype=torch.float64), []
    for t in range(6):
        q, k, v = (x[name][:, t].unsqueeze(-1) for name in "qkv")
        beta, a = x["beta"][:, t, :, None, None], x["log_decay"][:, t, :, None, None].exp()
        state = a * state @ (eye - beta * k @ k.mT) + beta * v @ k.mT
        out.append((state @ q).squeeze(-1))
    o, last = delta_rule_recurrent(**x)
    assert error(o, torch.stack(out, 1)) <= SAME
    assert error(last.mT, state) <= SAME


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_gate_of_one_is_no_gate(chunk: int) -> None:
    plain = random(2 * chunk + 5, None)
    gated = {**plain, "log_decay": torch.zeros_like(plain["beta"])}
    for form, options in ((delta_rule_recurrent, {}), (delta_rule_chunkwise, {"chunk": chunk})):
        one, other = gradients(form, plain, **options), gradients(form, gated, **options)
        assert all(error(a, e) <= SAME for a, e in zip(one, other, strict=False))


@pytest.mark.parametrize("cut", [1, 15, 16, 40])
def test_split_equals_unsplit(cut: int) -> None:
    x = random(41)
    o, last = delta_rule(**x, chunk=16)
    state, parts = x.pop("state"), []
    for where in (slice(0, cut), slice(cut, None)):
        part, state = delta_rule(**{n: y[:, where] for n, y in x.items()}, state=state, chunk=16)
        parts.append(part)
    assert error(torch.cat(parts, 1), o) <= SAME
    assert error(state, last) <= SAME


@pytest.mark.parametrize("decay", [None, 1.0], ids=["no decay", "decay"])
@pytest.mark.parametrize("starts", [(0,), (5,), (16,), (3, 4, 30, 36)], ids=str)
def test_documents_start_from_nothing(starts: tuple[int, ...], decay: float | None) -> None:
    length = 37
    x = random(length, decay)
    start = torch.zeros(B, length, dtype=torch.bool)
    start[0, list(starts)] = True
    for form, options in ((delta_rule_recurrent, {}), (delta_rule_chunkwise, {"chunk": 16})):
        o, last = form(**x, start=start, **options)
        whole, _ = form(**x, **options)
        assert error(o[1], whole[1]) <= SAME
        state, parts = x["state"][:1], []
        for low, high in zip((0, *starts), (*starts, length), strict=True):
            if low in starts:
                state = torch.zeros_like(state)
            if low == high:
                continue
            piece = {n: y[:1, low:high] for n, y in x.items() if n != "state"}
            part, state = delta_rule_recurrent(**piece, state=state)
            parts.append(part)
        assert error(o[:1], torch.cat(parts, 1)) <= SAME
        assert error(last[:1], state) <= SAME


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(
    "case", ["strong", "mixed", "near-equal keys", "negative, near-equal", "mixed, near-equal"]
)
def test_extremes_in_float32(case: str, chunk: int) -> None:
    """Decays down to exp(-60) at every position or at some, and keys that hardly differ."""
    x = random(2 * chunk + 5, None)
    g = torch.Generator().manual_seed(3)
    draw = torch.rand(x["beta"].shape, generator=g, dtype=torch.float64)
    if case == "strong":
        x["log_decay"] = -60 * draw
    if "mixed" in case:
        x["log_decay"] = torch.where(draw < 0.3, -60.0, -1e-3 * draw)
    if "near" in case:
        x["k"] = l2_norm(x["k"][:, :1] + 1e-3 * x["k"])
        x["beta"] = x["beta"] if "negative" in case else x["beta"] / 2
        x.setdefault("log_decay", -1e-2 * draw)
    # Rounded once, so that both precisions see the same numbers.
    x = {name: y.float().double() for name, y in x.items()}
    expected = gradients(delta_rule_recurrent, x)
    narrow = {name: y.float() for name, y in x.items()}
    actual = gradients(delta_rule_chunkwise, narrow, chunk=chunk)
    for a, e in zip(actual, expected, strict=True):
        assert torch.isfinite(a).all()
        assert rms_error(a.double(), e) <= 2e-5


@pytest.mark.parametrize("decay", [0.0, -0.7], ids=["no decay", "decay"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 1.7, 2.0])
def test_eigenvalues_of_the_transition(beta: float, decay: float) -> None:
    """One is a (1 - beta), the others are a: with unit keys nothing grows for beta in [0, 2]."""
    k = torch.nn.functional.normalize(random(1)["k"][:1, 0, :1], dim=-1)
    rows = k.expand(1, K, K)
    g = torch.full((1, K), decay, dtype=torch.float64)
    strength = torch.full((1, K), beta, dtype=torch.float64)
    # Writing nothing to each unit vector in turn yields the transition's rows.
    basis = torch.eye(K, dtype=torch.float64).view(1, K, K, 1)
    value = torch.zeros(1, K, 1, dtype=torch.float64)
    _, moved = delta_rule_step(rows, rows, value, strength, g, basis)
    a = math.exp(decay)
    values = torch.linalg.eigvalsh(moved.squeeze(-1)[0])
    expected = sorted([a * (1 - beta), *[a] * (K - 1)])
    assert error(values, torch.tensor(expected, dtype=torch.float64)) <= SAME
    assert values.abs().max() <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_a_position_that_writes_nothing_never_makes_a_state_longer(seed: int) -> None:
    """For any keys of the L2 norm, strengths in [0, 2] and decays, in the spectral norm."""
    x = random(1, decay=float(seed), seed=seed)
    _, moved = delta_rule_recurrent(**{**x, "v": torch.zeros_like(x["v"])})
    before, after = (torch.linalg.matrix_norm(s, 2) for s in (x["state"], moved))
    assert (after <= before * (1 + 1e-12)).all()
    bound = x["log_decay"][:, 0].exp()
    assert (after <= before * bound * (1 + 1e-12)).all()


def test_gradcheck() -> None:
    x = {name: y[:1].clone().requires_grad_() for name, y in random(6).items()}

    def run(*values: Tensor) -> tuple[Tensor, Tensor]:
        return delta_rule_chunkwise(**dict(zip(x, values, strict=True)), chunk=16)

    assert torch.autograd.gradcheck(run, tuple(x.values()), fast_mode=True)


def test_bfloat16_is_rounded_once() -> None:
    x = {name: y.bfloat16() for name, y in random(40).items()}
    narrow, state = delta_rule(**x, chunk=16)
    wide, _ = delta_rule(**{name: y.float() for name, y in x.items()}, chunk=16)
    assert narrow.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert torch.equal(narrow, wide.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = delta_rule(**{name: y.float() for name, y in x.items()}, chunk=16)
    assert torch.equal(inside, wide)


def test_other_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^chunk=48: give one of 16, 32, 64$"):
        delta_rule(**random(3), chunk=48)
