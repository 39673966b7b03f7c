"""Several weighted sums over depth sources (MUDDFormer, arXiv:2502.12170 Eq. 6-8).

For sources s_j ``(..., d)`` and, per way c, one weight for each of them

    u^c = sum_j w_{c,j} s_j

A block of MUDDFormer reads four such sums: its query, key, value and residual inputs. Weights are
unconstrained and as wide as they are given, float32 at least; a sum is rounded once, to the
sources' dtype. Sources stay separate tensors, and each is read once for all ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_sources, check_tensor
from lrt_kernels.precision import wide


def dense_aggregate(
    weights: Tensor, sources: Sequence[Tensor], backend: Backend = "auto"
) -> list[Tensor]:
    """W sums ``(..., d)`` of S sources.

    Args:
        weights: ``(..., W, S)``; an axis before the last two may be 1 where the sources' is not.
        sources: S tensors ``(..., d)``, allocated apart, each contiguous; bfloat16, float16,
            float32 or float64.
        backend: "auto" takes the kernels on a CUDA device and the reference elsewhere. The kernels'
            gradients are the same bits every time, and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    check_sources(sources)
    shape, device = sources[0].shape, sources[0].device
    lead = shape[:-1]
    if weights.dim() != len(lead) + 2 or weights.shape[-2] < 1:
        raise ValueError(
            f"weights has shape {tuple(weights.shape)}: give {tuple(lead)}, ways, {len(sources)}"
        )
    own = [1 if have == 1 else want for have, want in zip(weights.shape, lead, strict=False)]
    ways, count = weights.shape[-2], len(sources)
    check_tensor(weights, "weights", (*own, ways, count), device)
    weights = weights.to(wide(weights.dtype))
    if choose("dense_aggregate", backend, device) == "reference":
        return summed(weights, sources)
    rows = lead.numel()
    if all(size == 1 for size in own):
        # One set for all rows stays one.
        table = weights.reshape(1, ways, count).expand(rows, ways, count)
    else:
        table = weights.expand(*lead, ways, count).reshape(rows, ways, count)
    sums = _op(table, [source.view(rows, shape[-1]) for source in sources])
    return [way.view(shape) for way in sums]


def summed(weights: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """The sums in plain PyTorch."""
    sums = []
    for way in weights.unsqueeze(-1).unbind(-3):
        first, *rest = way.unbind(-2)
        total = first * sources[0]
        for weight, source in zip(rest, sources[1:], strict=True):
            total = torch.addcmul(total, weight, source)
        sums.append(total.to(sources[0].dtype))
    return sums


@torch.library.custom_op("lrt_kernels::dense_aggregate", mutates_args=())
def _op(weights: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """W sums ``(N, d)`` of ``(N, d)``; weights ``(N, W, S)`` of any strides."""
    from lrt_kernels.gpu import dense_aggregate as kernels

    return kernels.forward(weights, sources)


@torch.library.custom_op("lrt_kernels::dense_aggregate_backward", mutates_args=())
def _op_backward(
    grads: Sequence[Tensor], weights: Tensor, sources: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients of the weights and of every source."""
    from lrt_kernels.gpu import dense_aggregate as kernels

    return kernels.backward(grads, weights, sources)


@_op.register_fake
def _(weights, sources):  # type: ignore[no-untyped-def]
    return [torch.empty_like(sources[0]) for _ in range(weights.shape[1])]


@_op_backward.register_fake
def _(grads, weights, sources):  # type: ignore[no-untyped-def]
    return [weights.new_empty(weights.shape), *(torch.empty_like(source) for source in sources)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    weights, sources = inputs
    ctx.save_for_backward(weights, *sources)


def _differentiate(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    weights, *sources = ctx.saved_tensors
    d_weights, *d_sources = _op_backward([g.contiguous() for g in grads], weights, sources)
    return d_weights, d_sources


_op.register_autograd(_differentiate, setup_context=_save)
