"""The head's cross entropy in chunks: loss, gradients, precision, what is kept, the errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lrt_kernels import linear_cross_entropy
from lrt_kernels.linear_cross_entropy import NATIVE, _op
from tests.kernels.interpreter import normal
from tests.support.compare import SAME, error, rms_error

ROWS, WIDTH, VOCAB = 7, 5, 11
HIDDEN, WEIGHT = normal(ROWS, WIDTH), normal(VOCAB, WIDTH, seed=1)
TARGETS = torch.tensor([0, 10, 3, -100, 3, 7, -100])

torchs_own = pytest.param(
    "torch", marks=pytest.mark.skipif(not NATIVE, reason="torch's own is there from 2.13 on")
)
BACKENDS = pytest.mark.parametrize("backend", ["auto", torchs_own, "chunked"])


def graded(call, *tensors: Tensor) -> list[Tensor]:
    """The loss, and a third of its gradients."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    loss = call(*leaves)
    return [loss.detach(), *torch.autograd.grad(loss / 3, leaves)]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor = TARGETS, ignored: int = -100) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, targets, ignore_index=ignored, reduction="sum")


@BACKENDS
@pytest.mark.parametrize("chunk", [None, 1, 3, 7, 100])
def test_loss_and_gradients_are_those_of_all_scores(backend: str, chunk: int | None) -> None:
    ours = graded(
        lambda h, w: linear_cross_entropy(h, w, TARGETS, chunk=chunk, backend=backend),
        *(HIDDEN, WEIGHT),
    )
    for actual, expected in zip(ours, graded(plain, HIDDEN, WEIGHT), strict=True):
        assert error(actual, expected) <= SAME


@BACKENDS
def test_any_leading_axes_and_any_ignored_target(backend: str) -> None:
    def ours(hidden: Tensor, weight: Tensor) -> Tensor:
        folded = hidden.unflatten(0, (2, 3))
        targets = TARGETS[:6].view(2, 3).masked_fill(TARGETS[:6].view(2, 3) == -100, 3)
        return linear_cross_entropy(folded, weight, targets, 3, 2, backend)

    def expected(hidden: Tensor, weight: Tensor) -> Tensor:
        return plain(hidden, weight, TARGETS[:6].masked_fill(TARGETS[:6] == -100, 3), 3)

    pairs = zip(graded(ours, HIDDEN[:6], WEIGHT), graded(expected, HIDDEN[:6], WEIGHT), strict=True)
    assert all(error(*pair) <= SAME for pair in pairs)


@BACKENDS
def test_nothing_to_predict_is_zero(backend: str) -> None:
    nothing = torch.full((ROWS,), -100)
    found = graded(
        lambda h, w: linear_cross_entropy(h, w, nothing, -100, 2, backend), HIDDEN, WEIGHT
    )
    assert not any(x.any() for x in found)


@BACKENDS
@pytest.mark.parametrize("which", ["hidden", "weight", "both"])
def test_gradcheck(backend: str, which: str) -> None:
    hidden = HIDDEN.clone().requires_grad_(which != "weight")
    weight = WEIGHT.clone().requires_grad_(which != "hidden")
    assert torch.autograd.gradcheck(
        lambda h, w: linear_cross_entropy(h, w, TARGETS, -100, 3, backend), (hidden, weight)
    )


@pytest.mark.parametrize("autocast", [False, True], ids=["narrow", "autocast"])
def test_the_heads_gradient_is_summed_wide(autocast: bool) -> None:
    """Of bfloat16 products: a sum in bfloat16 loses what comes late. Nor is the loss so rounded."""
    rows, chunk = 512, 4
    hidden = normal(rows, WIDTH, seed=2, dtype=torch.bfloat16)
    weight = normal(VOCAB, WIDTH, seed=3, dtype=torch.bfloat16)
    targets = torch.arange(rows) % 3
    exact = graded(lambda h, w: plain(h, w, targets), hidden.double(), weight.double())
    given = (hidden.float(), weight.float()) if autocast else (hidden, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        ours = graded(lambda h, w: linear_cross_entropy(h, w, targets, -100, chunk), *given)
    assert ours[0].dtype == torch.float32
    assert ours[2].dtype == given[1].dtype
    assert error(ours[0].double(), exact[0]) <= 2**-9
    narrow = torch.zeros_like(weight)
    for start in range(0, rows, chunk):
        part = slice(start, start + chunk)
        narrow += graded(lambda h, w, t=targets[part]: plain(h, w, t), hidden[part], weight)[2]
    wide_error, narrow_error = (rms_error(x.double(), exact[2]) for x in (ours[2], narrow))
    assert wide_error <= 0.008
    assert narrow_error > 3 * wide_error


class Largest(TorchDispatchMode):
    """The most numbers that one operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        found = out if isinstance(out, (list, tuple)) else [out]
        sizes = [x.numel() for x in found if isinstance(x, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return out


def test_the_scores_of_all_positions_are_never_there() -> None:
    hidden, weight, targets = normal(64, 2), normal(40, 2, seed=1), torch.arange(64) % 40
    with Largest() as kept:
        plain(hidden, weight, targets)
    # Operations inside the registered one are not dispatched to a mode.
    with Largest() as chunked:
        _op._init_fn(hidden, weight, targets, -100, 4, torch.float64, True, True)
    assert (kept.numbers, chunked.numbers) == (64 * 40, 4 * 40)


def test_without_gradients_none_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    space = linear_cross_entropy.__globals__
    monkeypatch.setitem(space, "_op", lambda *args: asked.append(args[-2:]) or _op(*args))
    hidden, weight = HIDDEN.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, TARGETS, backend="chunked")
    linear_cross_entropy(hidden, WEIGHT, TARGETS, backend="chunked")
    assert not loss.requires_grad
    assert asked == [(False, False), (True, False)]
    _, *gradients = _op(HIDDEN, WEIGHT, TARGETS, -100, 3, torch.float64, False, False)
    assert not sum(map(torch.numel, gradients))


def test_no_second_derivative() -> None:
    weight = WEIGHT.clone().requires_grad_()
    loss = linear_cross_entropy(HIDDEN, weight, TARGETS, backend="chunked")
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(loss, weight, create_graph=True)


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)], ids=str)
def test_registration(needed: tuple[bool, bool]) -> None:
    leaves = [
        x.clone().requires_grad_(own) for x, own in zip((HIDDEN, WEIGHT), needed, strict=True)
    ]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    found = torch.library.opcheck(
        _op, (*leaves, TARGETS, -100, 3, torch.float64, *needed), test_utils=tests
    )
    assert set(found.values()) == {"SUCCESS"}


def test_as_many_products_as_with_all_scores() -> None:
    """What a meter finds for the plain head holds for the chunked one."""
    with FlopCounterMode(display=False) as counted:
        graded(plain, HIDDEN, WEIGHT)
    with FlopCounterMode(display=False) as chunked:
        _op._init_fn(HIDDEN, WEIGHT, TARGETS, -100, 3, torch.float64, True, True)
    assert chunked.get_total_flops() == counted.get_total_flops() == 6 * ROWS * WIDTH * VOCAB


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_one_graph() -> None:
    compiled = torch.compile(
        lambda h, w: linear_cross_entropy(h, w, TARGETS, -100, 4, "chunked"),
        **{"fullgraph": True, "backend": "aot_eager"},
    )
    ours, expected = graded(compiled, HIDDEN, WEIGHT), graded(plain, HIDDEN, WEIGHT)
    assert all(error(*pair) <= SAME for pair in zip(ours, expected, strict=True))


WRONG = {
    r"hidden has shape \(7, 0\): give": {"hidden": HIDDEN[:, :0]},
    r"hidden has shape \(\): give": {"hidden": HIDDEN[0, 0]},
    "hidden is torch.int64: give one of": {"hidden": HIDDEN.long()},
    "hidden is not contiguous along its last axis": {"hidden": normal(WIDTH, ROWS).mT},
    r"weight has shape \(11,\): give": {"weight": WEIGHT[:, 0]},
    r"weight has shape \(11, 4\), not \(11, 5\)": {"weight": WEIGHT[:, :4]},
    "weight is torch.float32, hidden torch.float64": {"weight": WEIGHT.float()},
    "weight is on meta": {"weight": WEIGHT.to("meta")},
    r"targets has shape \(6,\), not \(7,\)": {"targets": TARGETS[:6]},
    "targets is torch.int32: give one of int64": {"targets": TARGETS.int()},
    "chunk=0: give at least 1": {"chunk": 0},
    "backend='triton': give auto, torch or chunked": {"backend": "triton"},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
def test_wrong_inputs_are_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(
            **{"hidden": HIDDEN, "weight": WEIGHT, "targets": TARGETS} | WRONG[message]
        )


@pytest.mark.parametrize("target", [-1, VOCAB])
def test_no_target_outside_the_vocabulary(target: int) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        linear_cross_entropy(HIDDEN[:1], WEIGHT, torch.tensor([target]), backend="chunked")


def test_torchs_own_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package's attribute of this name is the function, not its module.
    monkeypatch.setitem(linear_cross_entropy.__globals__, "NATIVE", False)
    with pytest.raises(ValueError, match="backend='torch': torch .* has none, 2.13 is the first"):
        linear_cross_entropy(HIDDEN, WEIGHT, TARGETS, backend="torch")
    assert error(linear_cross_entropy(HIDDEN, WEIGHT, TARGETS), plain(HIDDEN, WEIGHT)) <= SAME
