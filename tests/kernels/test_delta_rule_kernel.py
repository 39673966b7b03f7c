"""The delta rule's kernels, interpreted on the CPU, against the reference in float64."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from lrt_kernels import delta_rule, delta_rule_recurrent
from lrt_kernels.delta_rule import MOST_FEATURES, _op, _runs_by, _step
from tests.kernels.delta_cases import GATES, inputs, results
from tests.kernels.interpreter import interpreted, normal
from tests.support.compare import SAME, error, rms_error

#: Features of one tile of the float64 kernels.
TILE = 32


def starts(batch: int, length: int, *where: int) -> Tensor:
    """Documents that start in the batch's first row."""
    start = torch.zeros(batch, length, dtype=torch.bool)
    start[0, [t for t in where if t < length]] = True
    return start


def same(given: dict[str, Tensor], **options: Any) -> None:
    actual, expected = (results(backend, given, **options) for backend in ("triton", "reference"))
    assert actual.keys() == expected.keys()
    for name in expected:
        assert error(actual[name], expected[name]) <= SAME, name


def close(given: dict[str, Tensor], bounds: tuple[float, float, float], **options: Any) -> None:
    """Against float64 on the same, already rounded inputs: outputs, gradients, gates' gradients."""
    actual = results("triton", given, **options)
    expected = results("reference", given, torch.float64, **options)
    for name in expected:
        kind = 0 if name in ("out", "last") else 2 if name in GATES else 1
        found = rms_error(actual[name], expected[name])
        assert found <= bounds[kind], (name, found)


@interpreted
@pytest.mark.parametrize("length", [1, 15, 16, 17, 37])
def test_lengths(length: int) -> None:
    """Around a chunk's, with documents inside, between and at the start of chunks."""
    same(inputs(length, batch=2), chunk=16, start=starts(2, length, 0, 5, 6, 32), scale=0.7)


@interpreted
@pytest.mark.parametrize("chunk", [32, 64])
def test_chunks(chunk: int) -> None:
    same(inputs(chunk + 1), chunk=chunk, start=starts(1, chunk + 1, 3, chunk - 1))


@interpreted
def test_nothing_but_what_is_needed() -> None:
    """No decay, no state, no documents; several heads."""
    same(inputs(17, heads=3, decay=False, state=False), chunk=16)


@interpreted
@pytest.mark.parametrize("keys, values", [(TILE + 1, TILE - 1), (16, TILE + 1)])
def test_features(keys: int, values: int) -> None:
    """Several tiles of them, and the last of them ragged."""
    same(inputs(17, keys=keys, values=values), chunk=16)


@interpreted
@pytest.mark.parametrize(
    "dtype, bounds",
    [
        (torch.float32, (1e-6, 1e-6, 1e-6)),
        (torch.float16, (1e-3, 1e-3, 1e-5)),
        (torch.bfloat16, (5e-3, 8e-3, 2e-2)),
    ],
    ids=str,
)
def test_narrow_inputs(dtype: torch.dtype, bounds: tuple[float, float, float]) -> None:
    close(inputs(37, dtype=dtype), bounds, chunk=16)


@interpreted
@pytest.mark.parametrize("case", ["strong", "mixed", "near-equal keys", "longer keys"])
def test_extremes_in_float32(case: str) -> None:
    """Decays down to exp(-60), keys that hardly differ, and bounded ones that are not unit."""
    x = inputs(37, dtype=torch.float32)
    draw = normal(*x["beta"].shape, seed=11, dtype=torch.float32).sigmoid()
    if case == "strong":
        x["log_decay"] = -60 * draw
    elif case == "mixed":
        x["log_decay"] = torch.where(draw < 0.4, -60.0, -1e-3 * draw)
    elif case == "near-equal keys":
        x["k"] = torch.nn.functional.normalize(x["k"][:, :1] + 1e-3 * x["k"], dim=-1)
        x["log_decay"] = -1e-2 * draw
    else:
        x["k"], x["beta"] = x["k"] * (0.5 + draw.unsqueeze(-1)), x["beta"] / 2
        x["log_decay"] = -1e-2 * draw
    close(x, (2e-5, 2e-5, 2e-5), chunk=16)


@interpreted
def test_a_gate_of_one_is_no_gate() -> None:
    plain = inputs(17, decay=False)
    one = results("triton", plain, chunk=16)
    other = results("triton", {**plain, "log_decay": torch.zeros(1, 17, 1).double()}, chunk=16)
    for name in one:
        assert error(other[name], one[name]) <= SAME, name


@interpreted
@pytest.mark.parametrize("cut", [1, 15, 16, 20])
def test_split_equals_unsplit(cut: int) -> None:
    """The second part goes on from the first part's state; one position takes the step kernel."""
    x = inputs(21, batch=2)
    start = starts(2, 21, 17, 20)
    with torch.no_grad():
        o, last = delta_rule(**x, start=start, chunk=16, backend="triton")
        state, parts = x.pop("state"), []
        for where in (slice(0, cut), slice(cut, None)):
            piece = {name: y[:, where] for name, y in x.items()}
            part, state = delta_rule(
                **piece, state=state, start=start[:, where], chunk=16, backend="triton"
            )
            parts.append(part)
    assert error(torch.cat(parts, 1), o) <= SAME
    assert error(state, last) <= SAME


@interpreted
@pytest.mark.parametrize("full", [False, True], ids=["plain", "decay, state, documents"])
def test_one_position(full: bool) -> None:
    x = inputs(1, batch=2, heads=2, keys=TILE + 1, values=TILE + 1, decay=full, state=full)
    start = starts(2, 1, 0) if full else None
    found = delta_rule(**x, start=start, scale=0.7, backend="triton")
    expected = delta_rule_recurrent(**x, start=start, scale=0.7)
    assert all(error(a, e) <= SAME for a, e in zip(found, expected, strict=True))


@interpreted
def test_any_layout() -> None:
    """A mixer hands on slices of what it keeps."""
    x = inputs(20, batch=2)
    sliced = {name: y[:, 3:] for name, y in x.items() if name != "state"}
    given = {**sliced, "state": x["state"].mT.contiguous().mT}
    assert not given["beta"].is_contiguous() and not given["state"].is_contiguous()
    found = delta_rule(**given, chunk=16, backend="triton")
    assert all(error(a, e) <= SAME for a, e in zip(found, delta_rule(**given), strict=True))


@interpreted
def test_the_same_bits_twice() -> None:
    x = inputs(17, dtype=torch.float32)
    one, other = (results("triton", x, chunk=16) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@interpreted
def test_numerical_gradients() -> None:
    """Of the kernels themselves, along random directions, the state's gradient among them."""
    x = {name: y.requires_grad_() for name, y in inputs(3).items()}

    def call(*given: Tensor) -> tuple[Tensor, Tensor]:
        return delta_rule(**dict(zip(x, given, strict=True)), chunk=16, backend="triton")

    assert torch.autograd.gradcheck(call, tuple(x.values()), fast_mode=True)


@interpreted
@pytest.mark.parametrize("full", [False, True], ids=["plain", "decay, state, documents"])
def test_registration(full: bool) -> None:
    x = [y.requires_grad_() for y in inputs(2, decay=full, state=full).values()]
    x += [None] * (6 - len(x))
    start = starts(1, 2, 1) if full else None
    found = torch.library.opcheck(_op, (*x, start, 0.7, 16, True))
    assert set(found.values()) == {"SUCCESS"}
    one = [None if y is None else y.detach()[:, :1] for y in x[:5]]
    one.append(None if x[5] is None else x[5].detach())
    start = None if start is None else start[:, :1].contiguous()
    found = torch.library.opcheck(_step, (*one, start, 0.7))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["auto", pytest.param("triton", marks=interpreted)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_one_graph(backend: str) -> None:
    """Traced whole, forward and backward; a kernel's operation is not looked into."""
    torch.compiler.reset()
    x = {name: y.requires_grad_() for name, y in inputs(3).items()}

    def call(*given: Tensor) -> tuple[Tensor, Tensor]:
        return delta_rule(**dict(zip(x, given, strict=True)), chunk=16, backend=backend)

    found = []
    for form in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        out, last = form(*x.values())
        found.append([out, last, *torch.autograd.grad(out.sum() + last.sum(), list(x.values()))])
    assert all(error(a, e) <= SAME for a, e in zip(*found, strict=True))


GIVEN = inputs(3, batch=2, heads=3)
WRONG: dict[str, dict[str, Any]] = {
    r"q has shape \(2, 3, 5\): give \(B, T, H, K\)": {"q": normal(2, 3, 5)},
    r"q has shape \(2, 0, 3, 5\): give": {"q": normal(2, 0, 3, 5)},
    "q is torch.int64: give one of": {"q": GIVEN["q"].long()},
    r"k has shape \(2, 3, 3, 4\), not \(2, 3, 3, 5\)": {"k": GIVEN["v"]},
    "k is on meta": {"k": GIVEN["k"].to("meta")},
    r"v has shape \(2, 3, 4\): give \(B, T, H, V\)": {"v": normal(2, 3, 4)},
    r"v has shape \(2, 3, 3, 0\): give": {"v": normal(2, 3, 3, 0)},
    r"v has shape \(2, 4, 3, 4\), not \(2, 3, 3, 4\)": {"v": normal(2, 4, 3, 4)},
    r"beta has shape \(2, 3\), not \(2, 3, 3\)": {"beta": normal(2, 3)},
    r"log_decay has shape \(2, 3, 1\), not \(2, 3, 3\)": {"log_decay": normal(2, 3, 1)},
    r"state has shape \(2, 3, 4, 5\), not \(2, 3, 5, 4\)": {"state": GIVEN["state"].mT},
    "start is torch.float64: give one of bool": {"start": normal(2, 3)},
    r"start has shape \(3, 2\), not \(2, 3\)": {"start": torch.zeros(3, 2).bool()},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    with pytest.raises(ValueError, match=message):
        delta_rule(**GIVEN | WRONG[message], backend=backend)


@interpreted
def test_keys_that_do_not_fit() -> None:
    x = inputs(2, keys=MOST_FEATURES + 1, state=False)
    with pytest.raises(ValueError, match="backend='triton': k has 257 features, and at most 256"):
        delta_rule(**x, backend="triton")
    assert delta_rule(**x)[0].shape == x["v"].shape


@pytest.mark.parametrize(
    "keys, dtype, decodes, expected",
    [
        (MOST_FEATURES, torch.bfloat16, False, "triton"),
        (MOST_FEATURES + 1, torch.bfloat16, True, "reference"),
        (MOST_FEATURES, torch.float32, False, "reference"),
        (MOST_FEATURES, torch.float32, True, "triton"),
    ],
)
def test_what_the_kernels_leave_alone(
    keys: int,
    dtype: torch.dtype,
    decodes: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a card, by the one rule for it."""
    monkeypatch.setattr(sys.modules["lrt_kernels.delta_rule"], "choose", lambda *_: "triton")
    x = torch.empty(1, 1, 1, keys, dtype=dtype)
    assert _runs_by("auto", decodes, x, x, x) == expected
