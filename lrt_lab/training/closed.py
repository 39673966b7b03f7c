"""Mixtures of depth sources counted by a closed form, on the meta device.

Each reader mixes all that came before, so that executing them takes operations with the square of
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
