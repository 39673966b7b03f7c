"""Cross entropy of a linear head, without the scores of all positions at once.

With states h_i, the head W ``(V, d)`` and targets y_i,

    L = -sum_i log softmax(W h_i)[y_i]
    g_i = softmax(W h_i) - e_{y_i},      dL/dh_i = W^T g_i,      dL/dW = sum_i g_i h_i^T

The gradients are made chunk by chunk beside the loss, while a chunk's scores are there, so that a
pass costs three matrix products as it would with all scores kept (arXiv:2410.10989).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.checks import check_rows, check_tensor
from lrt_kernels.precision import no_autocast, wide

#: Scores of one chunk, where no chunk is given.
SCORES = 2**26
#: Torch's own is there from 2.13 on.
NATIVE = hasattr(F, "linear_cross_entropy")


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    chunk: int | None = None,
    backend: Literal["auto", "torch", "chunked"] = "auto",
) -> Tensor:
    """L of the equation above, a sum in nats, float32 or wider.

    Matrix products are in the dtype of the states, or autocast's where that is on; the loss and the
    sum of the head's gradient over chunks are in float32 or wider.

    Args:
        hidden: h ``(..., d)``, each row in one piece; bfloat16, float16, float32 or float64.
        weight: W ``(V, d)``, of the same dtype unless autocast is on.
        targets: y ``(...)``, int64 from 0 to V - 1.
        ignore_index: targets of this value count nothing.
        chunk: positions whose scores are there at once; None is as many as make `SCORES`.
        backend: "torch" is torch's own in chunks, from 2.13 on; "chunked" is this package's. "auto"
            takes torch's where there is one and products are in float32 or float64, else
            "chunked": torch's rounds the loss itself to a narrower dtype of its inputs. No backend
            can be differentiated twice.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device, layout or value.
    """
    if hidden.dim() < 1 or 0 in hidden.shape:
        raise ValueError(f"hidden has shape {tuple(hidden.shape)}: give (..., d), none of them 0")
    check_rows(hidden, "hidden", tuple(hidden.shape), hidden.device)
    if weight.dim() != 2 or not weight.shape[0]:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give (V, d), V above 0")
    check_rows(weight, "weight", (weight.shape[0], hidden.shape[-1]), hidden.device)
    check_tensor(targets, "targets", tuple(hidden.shape[:-1]), hidden.device, (torch.int64,))
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk}: give at least 1, or None")
    if backend not in ("auto", "torch", "chunked"):
        raise ValueError(f"backend={backend!r}: give auto, torch or chunked")
    if backend == "torch" and not NATIVE:
        raise ValueError(f"backend='torch': torch {torch.__version__} has none, 2.13 is the first")
    device = hidden.device.type
    cast = device != "meta" and torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if cast else hidden.dtype
    if not cast and weight.dtype != dtype:
        raise ValueError(f"weight is {weight.dtype}, hidden {dtype}: give both in one dtype")
    rows, own = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    chunk = min(len(rows), chunk or max(1, SCORES // len(weight)))
    if backend == "torch" or (backend == "auto" and NATIVE and dtype == wide(dtype)):
        return _torch(rows.to(dtype), weight.to(dtype), own, ignore_index, chunk)
    graded = [torch.is_grad_enabled() and x.requires_grad for x in (rows, weight)]
    loss: Tensor = _op(rows, weight, own, ignore_index, chunk, dtype, *graded)[0]
    return loss


def _torch(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, chunk: int
) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions(
        allow_retain_graph=True, batch_chunk_size=chunk, chunking_method=None, acc_policy="accurate"
    )
    with no_autocast(hidden.device.type):
        loss = F.linear_cross_entropy(
            hidden, weight, targets, reduction="sum", ignore_index=ignore_index, options=options
        )
    return loss.to(wide(hidden.dtype))


@torch.library.custom_op("lrt_kernels::linear_cross_entropy", mutates_args=())
def _op(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    chunk: int,
    dtype: torch.dtype,
    to_hidden: bool,
    to_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """L of rows ``(N, d)`` and its gradients, empty where they are not asked for."""
    loss = hidden.new_zeros((), dtype=wide(dtype))
    d_hidden = torch.empty_like(hidden) if to_hidden else hidden.new_empty(0)
    d_weight = weight.new_zeros(weight.shape if to_weight else 0, dtype=wide(dtype))
    with no_autocast(hidden.device.type):
        head = weight.to(dtype)
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            h, target = hidden[rows].to(dtype), targets[rows].unsqueeze(-1)
            ignored = target == ignore_index
            # What is ignored may be no target at all; what is neither is refused by `gather`.
            target = target.masked_fill(ignored, 0)
            scores = F.linear(h, head).to(wide(dtype))
            total = scores.logsumexp(-1, keepdim=True)
            loss += (total - scores.gather(-1, target)).masked_fill(ignored, 0.0).sum()
            if not (to_hidden or to_weight):
                continue
            g = scores.sub_(total).exp_()
            g = g.scatter_(-1, target, g.gather(-1, target) - 1)
            g = g.masked_fill_(ignored, 0.0).to(dtype)
            if to_hidden:
                d_hidden[rows] = g @ head
            if to_weight:
                d_weight += g.T @ h
    return loss, d_hidden, d_weight


@_op.register_fake
def _(hidden, weight, targets, ignore_index, chunk, dtype, to_hidden, to_weight):  # type: ignore[no-untyped-def]
    return (
        hidden.new_empty((), dtype=wide(dtype)),
        torch.empty_like(hidden) if to_hidden else hidden.new_empty(0),
        weight.new_empty(weight.shape if to_weight else 0, dtype=wide(dtype)),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, weight, *_, ctx.to_hidden, ctx.to_weight = inputs
    ctx.dtype = weight.dtype
    _, d_hidden, d_weight = output
    ctx.save_for_backward(d_hidden, d_weight)


def _differentiate(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError("linear_cross_entropy cannot be differentiated twice")
    d_hidden, d_weight = ctx.saved_tensors
    return (
        grad * d_hidden if ctx.to_hidden else None,
        (grad * d_weight).to(ctx.dtype) if ctx.to_weight else None,
        *[None] * 6,
    )


_op.register_autograd(_differentiate, setup_context=_save)
