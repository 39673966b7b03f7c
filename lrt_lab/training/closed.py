"""Sums over depth sources counted by a closed form, on the meta device.

Each reader sums all that came before, so that executing them takes operations with the square of
the depth, and no two readers' calls are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lrt_lab.training.tally import Counter


def closed_mixture(counter: Counter) -> Callable[[Any], Callable[..., Tensor]]:
    """What takes the place of `lrt_kernels.depth_read.mixed`: it counts and does not execute."""

    def by(executed: Any) -> Callable[..., Tensor]:
        def counted(logits: Sequence[Tensor], sources: Sequence[Tensor]) -> Tensor:
            out: Tensor = _Mix.apply(counter, *logits, *sources)
            return out

        return counted

    return by


class _Mix(torch.autograd.Function):
    """For S sources of n entries, weights w: 4 S w + n (2 S - 1) operations forward.

    And backward n for each source's gradient, and 2 n S + 4 S w for the weights'.
    """

    @staticmethod
    def forward(ctx: Any, counter: Counter, *given: Tensor) -> Tensor:
        count = len(given) // 2
        logit, sources = given[0], given[count:]
        with torch._C._DisableTorchDispatch():
            weight_S = torch.empty((count, *logit.shape), dtype=logit.dtype, device="meta")
            out = torch.empty(sources[0].shape, dtype=logit.dtype, device="meta")
        ctx.save_for_backward(weight_S, *sources)
        # Not what is saved: to look at that costs an operation.
        ctx.forms = [(one.shape, one.dtype) for one in (logit, sources[0])]
        ctx.counter, ctx.count, ctx.softmax = counter, count, 4 * weight_S.numel()
        work = ctx.softmax + out.numel() * (2 * count - 1)
        counter.tally.add(counter.at_work(), pointwise=work)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        counter, count, wanted = ctx.counter, ctx.count, ctx.needs_input_grad[1:]
        work = grad.numel() * sum(wanted[count:])
        if any(wanted[:count]):
            work += 2 * count * grad.numel() + ctx.softmax
        counter.tally.add(counter.at_work(), pointwise=work)
        with torch._C._DisableTorchDispatch():
            # One for all logits, one for all sources: what is shared is never added to in place.
            blanks = [torch.empty(s, dtype=dtype, device="meta") for s, dtype in ctx.forms]
        return None, *(blanks[i >= count] if wants else None for i, wants in enumerate(wanted))


def closed_sums(counter: Counter) -> Callable[[Any], Callable[..., list[Tensor]]]:
    """What takes the place of `lrt_kernels.dense_aggregate.summed`, likewise."""

    def by(executed: Any) -> Callable[..., list[Tensor]]:
        def counted(weights: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
            return list(_Sums.apply(counter, weights, *sources))

        return counted

    return by


class _Sums(torch.autograd.Function):
    """For W sums of S sources of n entries, r of each weight: W n (2 S - 1) operations forward.

    And backward, for every sum that has a gradient and every source: n for the source's and 2 n for
    the weight's, and, but for the first source, r and n more, since the gradients of a product that
    is added to a sum have its factor in them. Gradients of a source are added up over the sums.
    """

    @staticmethod
    def forward(
        ctx: Any, counter: Counter, weights: Tensor, *sources: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weights, *sources)
        ctx.counter, ctx.shape, ctx.form = counter, weights.shape, sources[0].shape
        ctx.dtypes = weights.dtype, sources[0].dtype
        ways, count = weights.shape[-2:]
        with torch._C._DisableTorchDispatch():
            out = [
                torch.empty(sources[0].shape, dtype=sources[0].dtype, device="meta")
                for _ in range(ways)
            ]
        work = ways * out[0].numel() * (2 * count - 1)
        counter.tally.add(counter.at_work(), pointwise=work)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        counter, n, r = ctx.counter, ctx.form.numel(), ctx.shape[:-2].numel()
        graded = sum(grad is not None for grad in grads)
        if not graded:
            return (None,) * len(ctx.needs_input_grad)
        _, weighs, *wanted = ctx.needs_input_grad
        count = sum(wanted)
        later = sum(wanted[1:])
        work = graded * (count * n + later * r) + (graded - 1) * count * n
        if weighs:
            work += graded * (2 * n * len(wanted) + n * (len(wanted) - 1))
        counter.tally.add(counter.at_work(), pointwise=work)
        with torch._C._DisableTorchDispatch():
            shapes = zip((ctx.shape, ctx.form), ctx.dtypes, strict=True)
            blanks = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
        return (
            None,
            blanks[0] if weighs else None,
            *(blanks[1] if wants else None for wants in wanted),
        )
