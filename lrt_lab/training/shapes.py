"""What operations return on the meta device, without the Python in which torch works that out.

Torch runs a decomposition, or a dozen checks of symbols, to find a shape: up to a millisecond for
an operation, and most of what a pricing takes. Here an operation is a function of its arguments
that makes the output, or that returns None where it does not know, and torch is asked. What does
not fit together is not known either, so that torch refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Known = Callable[[Sequence[Any], Mapping[str, Any]], Any]


def blank(like: Tensor) -> Tensor:
    """Another tensor of the same form."""
    # On the meta device torch works out the strides in Python, at fifty times the cost.
    if not like.is_meta:
        return torch.empty_like(like)
    if like.is_contiguous():
        return fresh(like.shape, like.dtype)
    return torch.empty_strided(like.shape, packed(like), dtype=like.dtype, device="meta")


def packed(x: Tensor) -> list[int]:
    """Strides without gaps that keep the order in which the dimensions lie, by torch's rules."""
    sizes, steps = x.shape, x.stride()
    # From the innermost one out. A step of none says nothing of a dimension's place.
    order = list(range(x.dim() - 1, -1, -1))
    for place in range(1, len(order)):
        at = place
        for before in range(place - 1, -1, -1):
            inner, outer = order[before], order[at]
            if 0 in (steps[inner], steps[outer]):
                continue
            if (steps[inner], sizes[inner]) <= (steps[outer], sizes[outer]):
                break
            order[before], order[at] = outer, inner
            at = before
    strides, size = [1] * x.dim(), 1
    for i in order:
        strides[i] = size
        size *= sizes[i]
    return strides


def fresh(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """In one piece, in the order of the dimensions."""
    return torch.empty(shape, dtype=dtype, device="meta")


def joint(shapes: Sequence[Sequence[int]]) -> list[int] | None:
    """The shape that all of these broadcast to, if they do."""
    found = [1] * max(map(len, shapes))
    for shape in shapes:
        for place, size in enumerate(shape, len(found) - len(shape)):
            if size != 1:
                if found[place] not in (1, size):
                    return None
                found[place] = size
    return found


def pointwise(args: Sequence[Any], named: Mapping[str, Any], whole: bool = False) -> Tensor | None:
    """The common shape of tensors of one type, and the layout of one that has this shape.

    Args:
        args: tensors and numbers.
        named: options of the operation, none of which matters.
        whole: whether the operation leaves whole numbers what they are.
    """
    given = [a for a in args if isinstance(a, Tensor)]
    first = given[0]
    # Most of them, the sums of gradients among them, are of two alike.
    if len(args) == 2 == len(given) and first.is_floating_point():
        second = given[1]
        if first.shape == second.shape and first.dtype == second.dtype and second.is_meta:
            return blank(first)
    if not all(x.is_meta and x.dtype == first.dtype for x in given):
        return None
    if not first.is_floating_point():
        numbers = [a for a in args if not isinstance(a, Tensor)]
        if not whole or not all(type(number) is int for number in numbers):
            return None
    if len(given) == 1:
        return blank(first)
    shape = joint([x.shape for x in given])
    for x in given:
        if list(x.shape) == shape:
            return blank(x)
    return broadcast(given, first.dtype)


def broadcast(given: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """Of the common shape of tensors that are in one piece each."""
    if not all(x.is_meta and x.is_contiguous() for x in given):
        return None
    shape = joint([x.shape for x in given])
    return None if shape is None else fresh(shape, dtype)


def compared(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Truth values of the common shape."""
    return broadcast([a for a in args if isinstance(a, Tensor)], torch.bool)


def chosen(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """One of two tensors, entry by entry."""
    _, one, other = args
    return broadcast(args, one.dtype) if one.dtype == other.dtype else None


def first(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Of the form of the first input, unless another type is asked for."""
    like: Tensor = args[0]
    if not like.is_meta or named.get("dtype") not in (None, like.dtype):
        return None
    return blank(like)


def in_one_piece(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Of the form of the first input, where that is in one piece."""
    return first(args, named) if args[0].is_contiguous() else None


def rowwise(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """The same of floating-point numbers alone: sums of whole numbers may be wider."""
    return in_one_piece(args, named) if args[0].is_floating_point() else None


def filled(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Of the form of the first input, which the mask broadcasts to."""
    own, mask = args[:2]
    if not own.is_meta or not own.is_contiguous() or joint([own.shape, mask.shape]) != [*own.shape]:
        return None
    return blank(own)


def in_place(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """The first input itself, which the others broadcast to."""
    own: Tensor = args[0]
    given = [a for a in args if isinstance(a, Tensor)]
    fits = all(x.is_meta for x in given) and joint([x.shape for x in given]) == [*own.shape]
    return own if fits else None


def product_in_place(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """The first input itself, of a product's shape."""
    own, a, b = args
    fits = all(x.is_meta for x in args) and product(a, b) == (*own.shape,)
    return own if fits else None


def product(a: Tensor, b: Tensor) -> tuple[int, ...] | None:
    """The shape of a product of matrices, or of as many as there are."""
    if a.dim() != b.dim() or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return None
    return (*a.shape[:-1], b.shape[-1])


def shaped(
    shape: Callable[..., Sequence[int] | None], args: Sequence[Any], named: Mapping[str, Any]
) -> Tensor | None:
    """In one piece, of the inputs' type."""
    own = args[0] if isinstance(args[0], (list, tuple)) else args
    given = [x for x in own if isinstance(x, Tensor)]
    if not all(x.is_meta and x.dtype == given[0].dtype for x in given) or named.get("dtype"):
        return None
    found = shape(*args)
    return None if found is None else fresh(found, given[0].dtype)


def reduced(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Without some dimensions, or with one entry there."""
    x, dims, keep, *_ = *args, None, False
    if not x.is_meta or not x.is_floating_point() or named.get("dtype") or not dims:
        return None
    gone = {dim % x.dim() for dim in dims}
    shape = [1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone]
    # Torch keeps the order in which the dimensions lie.
    return fresh(shape, x.dtype) if x.is_contiguous() else None


def length(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Lengths of vectors, which are sums too."""
    return reduced((args[0], *args[2:]), named) if len(args) > 2 else None


def total(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """One number."""
    x = args[0]
    known = x.is_meta and x.is_floating_point() and not named.get("dtype")
    return fresh((), x.dtype) if known else None


def rising(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Whole numbers from one to another."""
    start, end = args
    if not type(start) is type(end) is int or named.get("dtype") or not on_meta(named):
        return None
    return fresh([end - start], torch.int64)


def identity(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """A square matrix."""
    if len(args) != 1 or not on_meta(named):
        return None
    return fresh([args[0]] * 2, named.get("dtype") or torch.get_default_dtype())


def on_meta(named: Mapping[str, Any]) -> bool:
    return torch.device(named.get("device") or "cpu").type == "meta"


def joined(tensors: Sequence[Tensor], dim: int = 0) -> list[int] | None:
    """The shape of tensors one after the other."""
    shape = list(tensors[0].shape)
    place = dim % len(shape)
    for x in tensors[1:]:
        if [*x.shape[:place], *x.shape[place + 1 :]] != shape[:place] + shape[place + 1 :]:
            return None
    shape[place] = sum(x.shape[place] for x in tensors)
    return shape


def concatenated(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """One after the other."""
    # Torch leaves out what is empty and of one dimension.
    if any(x.numel() == 0 or not x.is_contiguous() for x in args[0]):
        return None
    return shaped(joined, args, named)


def stacked(tensors: Sequence[Tensor], dim: int = 0) -> list[int] | None:
    """The shape of a stack."""
    shape = list(tensors[0].shape)
    if any(list(x.shape) != shape for x in tensors):
        return None
    shape.insert(dim % (len(shape) + 1), len(tensors))
    return shape


def softmax(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Of the input's type, which may be a narrow one that is made wide."""
    x, _, widen = args
    return None if widen else in_one_piece(args, named)


def softmax_backward(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Of the input's type."""
    grad, _, _, dtype = args
    return fresh(grad.shape, dtype) if grad.is_meta and grad.is_contiguous() else None


def nll_loss(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """A loss per row or for all of them, and the weight of all."""
    x, target, weight, reduction, _ = args
    if not x.is_meta or weight is not None or x.dim() != 2:
        return None
    return fresh([] if reduction else target.shape, x.dtype), fresh([], x.dtype)


def nll_loss_backward(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """Of the logits' shape."""
    x = args[1]
    return fresh(x.shape, x.dtype) if x.is_meta and x.is_contiguous() else None


#: Operations that work entry by entry, on floating-point numbers.
POINTWISE = (
    aten.add.Tensor,
    aten.addcmul.default,
    aten.clamp.default,
    aten.div.Scalar,
    aten.div.Tensor,
    aten.exp.default,
    aten.gelu.default,
    aten.gelu_backward.default,
    aten.mul.Scalar,
    aten.mul.Tensor,
    aten.neg.default,
    aten.pow.Tensor_Scalar,
    aten.relu.default,
    aten.rsqrt.default,
    aten.sigmoid.default,
    aten.sigmoid_backward.default,
    aten.silu.default,
    aten.silu_backward.default,
    aten.softplus.default,
    aten.softplus_backward.default,
    aten.sub.Tensor,
    aten.tanh.default,
    aten.tanh_backward.default,
    aten.threshold_backward.default,
)
#: Of them those that leave whole numbers what they are.
WHOLE = (aten.add.Tensor, aten.bitwise_and.Tensor, aten.mul.Tensor, aten.sub.Tensor)
KNOWN: dict[Any, Known] = {
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(WHOLE, partial(pointwise, whole=True)),
    **dict.fromkeys((aten.eq.Tensor, aten.ge.Scalar, aten.lt.Scalar), compared),
    **dict.fromkeys((aten.bitwise_not.default, aten.zeros_like.default), first),
    **dict.fromkeys((aten.roll.default, aten.tril.default), in_one_piece),
    aten.cumsum.default: rowwise,
    aten.linalg_vector_norm.default: length,
    aten.masked_fill.Scalar: filled,
    **dict.fromkeys((aten.add_.Tensor, aten.mul_.Tensor), in_place),
    aten.addmm_.default: product_in_place,
    **dict.fromkeys((aten.mean.dim, aten.sum.dim_IntList), reduced),
    aten.arange.start: rising,
    **dict.fromkeys((aten.bmm.default, aten.mm.default), partial(shaped, product)),
    aten.cat.default: concatenated,
    aten.eye.default: identity,
    **dict.fromkeys((aten._log_softmax.default, aten._softmax.default), softmax),
    **dict.fromkeys(
        (aten._log_softmax_backward_data.default, aten._softmax_backward_data.default),
        softmax_backward,
    ),
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.nll_loss_forward.default: nll_loss,
    aten.select_backward.default: partial(shaped, lambda grad, shape, *_: shape),
    aten.slice_backward.default: partial(shaped, lambda grad, shape, *_: shape),
    aten.stack.default: partial(shaped, stacked),
    aten.sum.default: total,
    aten.where.self: chosen,
}
