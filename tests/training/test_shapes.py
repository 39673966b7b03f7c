"""Forms that the meter knows without torch are those that torch finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lrt_lab.training.shapes import KNOWN, blank

aten = torch.ops.aten
META = torch.device("meta")
IN_PLACE = {aten.add_.Tensor, aten.addmm_.default, aten.mul_.Tensor}
WIDE = torch.float64


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


#: What blank has to be like: in one piece, with gaps, in another order, without steps, of one size.
LIKE = {
    "whole": x(2, 3, 4),
    "order": x(2, 3, 4).transpose(0, 2),
    "gaps": x(2, 8, 4)[:, ::2],
    "order-gaps": x(4, 8, 3).transpose(0, 2)[:, 1:6],
    "expanded": x(2, 1, 4).expand(2, 3, 4),
    "expanded-order": x(1, 4, 3).expand(2, 4, 3).transpose(1, 2),
    "expanded-twice": x(1, 4, 1).expand(2, 4, 3),
    "like-steps": x(24).as_strided((2, 3, 4), (4, 4, 1)),
    "like-steps-order": x(24).as_strided((4, 3, 2), (1, 4, 4)),
    "ones": x(1, 3, 1),
    "ones-order": x(5, 1, 3).transpose(1, 2),
    "number": x(),
    "empty": x(0, 3),
}
PAIRS = {
    "alike": (x(2, 3, 4), x(2, 3, 4)),
    "column": (x(2, 3, 4), x(3, 1)),
    "both": (x(3, 1), x(4)),
    "number": (x(2, 3), x()),
    "order": (x(4, 3).T, x(3, 4)),
    "order-both": (x(4, 3).T, x(4, 1, 3).transpose(0, 2)),
    "wide": (x(3, dtype=WIDE), x(2, 1, dtype=WIDE)),
    "mixed": (x(3, dtype=WIDE), x(2, 3)),
    "gaps": (x(2, 8, 4)[:, ::2], x(2, 4, 4)),
}


def calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Every known operation on forms of every kind that it takes."""
    long, true = (x(4, 3, dtype=dtype) for dtype in (torch.int64, torch.bool))
    floats = list(LIKE.values())
    one = (aten.exp, aten.gelu, aten.neg, aten.relu, aten.rsqrt, aten.sigmoid, aten.silu)
    for op in (*one, aten.softplus, aten.tanh, aten.tril):
        yield from ((op.default, (v,), {}) for v in floats if op is not aten.tril or v.dim() > 1)
    for v in floats:
        yield from ((op, (v, 2.0), {}) for op in (aten.mul.Scalar, aten.div.Scalar))
        yield aten.pow.Tensor_Scalar, (v, 2), {}
        yield aten.clamp.default, (v, 0.0), {}
        yield aten.zeros_like.default, (v,), {}
        yield aten.sum.default, (v,), {}
        yield aten.ge.Scalar, (v, 1), {}
        yield aten.lt.Scalar, (v, 1), {}
        yield aten.cumsum.default, (v, -1), {}
        yield aten.roll.default, (v, [1]), {}
        if v.dim() == 3 and v.numel():
            for dims in ([1], [-1, 0]):
                yield from ((aten.sum.dim_IntList, (v, dims, keep), {}) for keep in (False, True))
                yield from ((aten.mean.dim, (v, dims, keep), {}) for keep in (False, True))
            yield aten.linalg_vector_norm.default, (v, 2.0, [-1], True), {}
            yield aten.linalg_vector_norm.default, (v,), {}
    for v, w in PAIRS.values():
        for op in (aten.add, aten.div, aten.mul, aten.sub, aten.eq):
            yield op.Tensor, (v, w), {}
        mask = torch.empty(w.shape, dtype=torch.bool, device=META)
        yield aten.masked_fill.Scalar, (v, mask, 0.0), {}
        yield aten.where.self, (mask, v, w), {}
        yield aten.addcmul.default, (v, v, w), {}
    for v in floats:
        grads = (aten.sigmoid_backward, aten.silu_backward, aten.tanh_backward, aten.gelu_backward)
        yield from ((op.default, (v, v), {}) for op in grads)
        yield aten.softplus_backward.default, (v, v, 1, 20), {}
        yield aten.threshold_backward.default, (v, v, 0), {}
    for v in (long, true):
        for op in (aten.add, aten.mul, aten.bitwise_and):
            yield op.Tensor, (v, v), {}
        for op in (aten.sum.default, aten.zeros_like.default, aten.bitwise_not.default):
            yield op, (v,), {}
        yield aten.cumsum.default, (v, 0), {}
        yield aten.ge.Scalar, (v, 1), {}
        yield aten.sum.dim_IntList, (v, [0]), {}
        yield aten.tril.default, (v,), {}
    yield aten.sub.Tensor, (long.unsqueeze(-1), x(5, dtype=torch.int64)), {}
    yield aten.add.Tensor, (long, 1.5), {}
    yield aten.add.Tensor, (long, true), {}
    yield aten.clamp.default, (long, 1), {}
    yield aten.clamp.default, (long, 1.5), {}
    yield aten.div.Tensor, (long, long), {}
    yield aten.bitwise_and.Tensor, (true.unsqueeze(-1), x(1, 1, 5, dtype=torch.bool)), {}
    yield aten.zeros_like.default, (long,), {"dtype": torch.bool, "pin_memory": False}
    yield aten.sum.dim_IntList, (x(2, 3), [0]), {"dtype": WIDE}
    yield aten.sum.dim_IntList, (x(2, 3), None), {}
    yield aten.arange.start, (3, 9), {"device": META, "pin_memory": False}
    yield aten.arange.start, (0.0, 2.5), {"device": META, "pin_memory": False}
    yield aten.eye.default, (4,), {"dtype": WIDE, "device": META, "pin_memory": False}
    yield aten.mm.default, (x(2, 3), x(3, 4)), {}
    yield aten.mm.default, (x(3, 2).T, x(4, 3).T), {}
    yield aten.bmm.default, (x(5, 2, 3), x(5, 3, 4)), {}
    for dim in (0, 1, -1):
        yield aten.cat.default, ([x(2, 3), x(2, 3)], dim), {}
        yield aten.stack.default, ([x(2, 3), x(2, 3)], dim), {}
    yield aten.cat.default, ([x(0), x(2, 3)],), {}
    yield aten.cat.default, ([x(3, 2).T, x(3, 2).T],), {}
    yield aten.select_backward.default, (x(2, 4), [2, 3, 4], 1, 0), {}
    yield aten.slice_backward.default, (x(2, 2), [2, 3], 1, 0, 2, 1), {}
    logits, target = x(4, 7), x(4, dtype=torch.int64)
    for op in (aten._log_softmax.default, aten._softmax.default):
        yield op, (x(4, 7, dtype=torch.bfloat16), -1, False), {}
        yield from ((op, (v, 0, False), {}) for v in floats)
    for op in (aten._log_softmax_backward_data.default, aten._softmax_backward_data.default):
        yield op, (logits, logits, -1, torch.float32), {}
        yield op, (x(7, 4).T, x(7, 4).T, -1, torch.float32), {}
    for reduction in (0, 1):
        yield aten.nll_loss_forward.default, (logits, target, None, reduction, -100), {}
        loss, weight = x(4) if reduction == 0 else x(), x()
        given = (loss, logits, target, None, reduction, -100, weight)
        yield aten.nll_loss_backward.default, given, {}


CALLS = list(calls())


def test_every_known_operation_is_tried() -> None:
    # Those in place return what they are given.
    assert set(KNOWN) - {op for op, _, _ in CALLS} == IN_PLACE


@pytest.mark.parametrize(
    ("op", "args", "named"),
    [pytest.param(*call, id=f"{call[0]}-{i}") for i, call in enumerate(CALLS)],
)
def test_the_form_is_the_one_that_torch_finds(
    op: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    guess = KNOWN[op](args, named)
    if guess is None:
        return
    found = op(*args, **named)
    for mine, theirs in zip(several(guess), several(found), strict=True):
        assert mine.is_meta
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        assert strides(mine) == strides(theirs)


def several(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else found


def strides(own: Tensor) -> list[int]:
    """Of the dimensions that have any: the step of one entry means nothing."""
    return [
        step for step, size in zip(own.stride(), own.shape, strict=True) if size > 1 and own.numel()
    ]


@pytest.mark.parametrize("like", LIKE.values(), ids=list(LIKE))
def test_blank_is_what_torch_makes_like_it(like: Tensor) -> None:
    assert strides(blank(like)) == strides(torch.empty_like(like))


def test_most_of_these_are_known() -> None:
    known = [op for op, args, named in CALLS if KNOWN[op](args, named) is not None]
    assert set(known) == set(KNOWN) - IN_PLACE


MISFITS = {
    aten.add.Tensor: (x(2, 3), x(2, 4)),
    aten.add_.Tensor: (x(2, 1), x(2, 4)),
    aten.addcmul.default: (x(2, 3), x(2, 3), x(4)),
    aten.addmm_.default: (x(2, 5), x(2, 3), x(3, 4)),
    aten.bmm.default: (x(5, 2, 3), x(4, 3, 4)),
    aten.cat.default: ([x(2, 3), x(2, 4)], 0),
    aten.eq.Tensor: (x(2, 3), x(2, 4)),
    aten.masked_fill.Scalar: (x(2, 3), x(4, 3, dtype=torch.bool), 0.0),
    aten.mm.default: (x(2, 3), x(4, 5)),
    aten.mul_.Tensor: (x(3), x(2, 3)),
    aten.stack.default: ([x(2, 3), x(2, 4)], 0),
    aten.where.self: (x(3, dtype=torch.bool), x(2), x(2)),
}


@pytest.mark.parametrize(("op", "args"), MISFITS.items(), ids=map(str, MISFITS))
def test_what_does_not_fit_is_left_to_torch(op: Any, args: tuple[Any, ...]) -> None:
    assert KNOWN[op](args, {}) is None
    with pytest.raises((RuntimeError, ValueError)):
        op(*args)


def test_in_place_returns_what_it_is_given() -> None:
    own = x(3)
    assert KNOWN[aten.add_.Tensor]((own, x(3)), {}) is own
    on_cpu = torch.zeros(3)
    assert KNOWN[aten.add_.Tensor]((on_cpu, on_cpu), {}) is None


def test_nothing_is_known_of_numbers_that_exist() -> None:
    """Off the meta device everything is executed."""
    for op, args, named in CALLS:
        real = tuple(
            a.new_zeros(a.shape, device="cpu") if isinstance(a, Tensor) else a for a in args
        )
        if any(isinstance(a, Tensor) for a in args):
            assert KNOWN[op](real, named) is None, op
