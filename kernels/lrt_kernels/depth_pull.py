"""Depth reads in which every source's gradient is assembled once.

Plain autograd writes a gradient for each source at each read and adds them up: L readers over a
growing bank write O(L^2) states and add as many. Here a read keeps its output's gradient do_r, and
a source sums over its later readers r when autograd comes to it, which is after all of them. With
the logit l_r, the logarithm lse_r of reader r's denominator, rho = rsqrt(mean(s^2) + eps)

    w_r  = exp(l_r - lse_r),    dl_r = w_r (do_r . s - do_r . o_r) / scale,    g = sum_r dl_r q_r
    ds   = sum_r w_r do_r + rho (g - rho^2 (g . s) s / d)
    dq_r = sum over positions of dl_r rho s,        db_r = sum over positions of dl_r

Autograd sees an empty tensor that runs from a source to its reads. It carries no number: it is
there so that the source's backward pass waits for theirs.

With e bytes a number, a source of width d with R later readers takes (R + 2) d e bytes a position
backward, reading s and every do and writing ds, and a read another 2 d e for do . o. A read keeps
its output, which its consumer mostly keeps anyway, and lse. The reference keeps no weight per read
and source, and a source of less than 32 bits not a second time in 32; the kernels keep no score.
They take o as it was rounded for do . o, as those of `depth_read` do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Variable

from lrt_kernels.checks import check_masks, check_sources, check_tensor
from lrt_kernels.depth_read import _op, depth_mix, depth_score, shown, stacked_masks
from lrt_kernels.precision import alike, no_autocast


class Read(NamedTuple):
    """A read as a source's gradient needs it.

    ``reader`` counts from the source's first; ``grad (..., d)``; ``along (..., heads)`` is do . o;
    ``lse (..., heads)``; ``mask (...)`` of the source, or None.
    """

    reader: int
    grad: Tensor
    along: Tensor
    lse: Tensor
    mask: Tensor | None


class Ledger:
    """What the reads of one source leave to it, apart for each backward pass over the graph."""

    def __init__(self) -> None:
        self.reads: dict[int, list[Read]] = {}

    def add(self, read: Read) -> None:
        task = torch._C._current_graph_task_id()
        if task not in self.reads:
            self.reads[task] = []
            # A pass that stops short of the source never takes what is left here.
            Variable._execution_engine.queue_callback(partial(self.forget, task))
        self.reads[task].append(read)

    def forget(self, task: int) -> None:
        self.reads.pop(task, None)

    def take(self) -> list[Read]:
        return self.reads.pop(torch._C._current_graph_task_id(), [])


class Pull(NamedTuple):
    """A source's side of the exchange: ``token (0,)``, to be an input of its reads."""

    token: Tensor
    ledger: Ledger


def pulled_scores(
    value: Tensor,
    query_RD: Tensor,
    bias_R: Tensor | None,
    scale: float,
    eps: float,
    heads: int,
    kernels: bool,
) -> tuple[Tensor | None, Pull]:
    """Logits ``(..., R heads)`` of a source, without gradients, and what gives it one.

    The kernels, for one head, score a source as they read it and take no logits here.

    Raises:
        ValueError: under torch.compile; or naming an argument that does not fit the value.
    """
    if torch.compiler.is_compiling():
        raise ValueError("pull=True is not for torch.compile: give pull=False there")
    check_tensor(value, "value", tuple(value.shape), value.device)
    rows, device = len(query_RD), value.device
    check_tensor(query_RD, "query", (rows, value.shape[-1]), device)
    if bias_R is not None:
        check_tensor(bias_R, "bias", (rows,), device)
    ledger = Ledger()
    token, logits = _Source.apply(value, query_RD, bias_R, scale, eps, heads, kernels, ledger)
    return logits, Pull(token, ledger)


def pulled_read(
    pulls: Sequence[Pull],
    readers: Sequence[int],
    masks: Sequence[Tensor | None] | None,
    mix: Callable[[], tuple[Tensor, Tensor]],
    kernels: bool,
) -> Tensor:
    """A read of at least two sources, which leaves their gradients to them.

    Args:
        pulls: of the sources.
        readers: the read's place among those of each source.
        masks: as in `depth_mix`.
        mix: `mix_logits`, or `mix_sources`, of what the sources are.
        kernels: which of both.
    """
    ledgers = [pull.ledger for pull in pulls]
    tokens = [pull.token for pull in pulls]
    out: Tensor = _Read.apply(ledgers, readers, masks, mix, kernels, *tokens)
    return out


def mix_logits(
    logits: Sequence[Tensor], values: Sequence[Tensor], masks: Sequence[Tensor | None] | None
) -> tuple[Tensor, Tensor]:
    """`depth_mix`, and the logarithm of its denominator, ``(..., heads)``."""
    out = depth_mix(logits, values, masks)
    lse = torch.stack(shown(logits, values, masks)).logsumexp(0)
    return out, lse if lse.dim() == out.dim() else lse.unsqueeze(-1)


def mix_sources(
    values: Sequence[Tensor],
    query_SD: Tensor,
    bias_S: Tensor | None,
    scale: float,
    eps: float,
    masks: Sequence[Tensor | None] | None,
) -> tuple[Tensor, Tensor]:
    """The same by the kernels."""
    values = alike(values)
    check_sources(values)
    check_masks(masks, values[0], len(values))
    flat = [value.view(-1, value.shape[-1]) for value in values]
    bias = None if bias_S is None else bias_S.unsqueeze(0)
    present = stacked_masks(masks, values[0])
    query = query_SD.unsqueeze(0)
    out, *_, lse = _op(flat, query, bias, present, None, float(scale), float(eps), None)
    shape = values[0].shape
    return out.view(shape), lse.view(*shape[:-1], 1)


class _Source(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        query: Tensor,
        bias: Tensor | None,
        scale: float,
        eps: float,
        heads: int,
        kernels: bool,
        ledger: Ledger,
    ) -> tuple[Tensor, Tensor | None]:
        logits = None
        if not kernels:
            logits = depth_score(value, query, eps, bias, scale)
            ctx.mark_non_differentiable(logits)
        ctx.save_for_backward(value, query, bias, logits)
        ctx.scale, ctx.eps, ctx.heads, ctx.ledger = scale, eps, heads, ledger
        ctx.set_materialize_grads(False)
        return value.new_empty(0), logits

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _check_first_order()
        value, query, bias, logits = ctx.saved_tensors
        reads = ctx.ledger.take()
        if not reads:
            return (None,) * 8
        if logits is None:
            return *_by_kernels(value, query, bias, reads, ctx.scale, ctx.eps), *(None,) * 5
        with no_autocast(value.device.type):
            s = value.to(logits.dtype)
            slices = s.unflatten(-1, (ctx.heads, -1))
            by_reader = logits.unflatten(-1, (-1, ctx.heads))
            d_logits, mixed = torch.zeros_like(by_reader), torch.zeros_like(slices)
            for reader, grad, along, lse, mask in reads:
                do = grad.to(s.dtype).unflatten(-1, (ctx.heads, -1))
                weight = torch.exp(by_reader[..., reader, :] - lse)
                if mask is not None:
                    weight = weight.masked_fill(~mask.unsqueeze(-1), 0.0)
                d_logits[..., reader, :] += weight * ((do * slices).sum(-1) - along)
                mixed.addcmul_(weight.unsqueeze(-1), do)
            d_logits = d_logits.flatten(-2) / ctx.scale
            inverse = torch.rsqrt(s.square().mean(-1, keepdim=True) + ctx.eps)
            d_value = d_query = d_bias = None
            if ctx.needs_input_grad[0]:
                g = (d_logits * inverse) @ query.to(s.dtype)
                shrink = (g * s).sum(-1, keepdim=True) * inverse.square() / -s.shape[-1]
                d_value = (mixed.flatten(-2) + g).addcmul_(shrink, s).to(value.dtype)
            rows = d_logits.reshape(-1, len(query))
            if ctx.needs_input_grad[1]:
                d_query = (rows * inverse.reshape(-1, 1)).mT @ s.reshape(-1, s.shape[-1])
                d_query = d_query.to(query.dtype)
            if ctx.needs_input_grad[2]:
                d_bias = rows.sum(0).to(bias.dtype)
        return d_value, d_query, d_bias, *(None,) * 5


def _by_kernels(
    value: Tensor,
    query: Tensor,
    bias: Tensor | None,
    reads: Sequence[Read],
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of value, query and bias."""
    from lrt_kernels.gpu import depth_pull as kernels

    readers, grads, along, lse, masks = zip(*reads, strict=True)
    d_value, d_query, d_bias = kernels.source(
        value.view(-1, value.shape[-1]),
        query,
        bias,
        alike(grads),
        readers,
        stacked_masks(masks, value),
        torch.stack(along).view(len(reads), -1),
        torch.stack(lse).view(len(reads), -1),
        scale,
        eps,
    )
    return d_value.view(value.shape), d_query, d_bias


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ledgers: Sequence[Ledger],
        readers: Sequence[int],
        masks: Sequence[Tensor | None] | None,
        mix: Callable[[], tuple[Tensor, Tensor]],
        kernels: bool,
        *tokens: Tensor,
    ) -> Tensor:
        out, lse = mix()
        ctx.save_for_backward(out, lse, *(masks or [None] * len(ledgers)))
        ctx.ledgers, ctx.readers, ctx.kernels = ledgers, readers, kernels
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _check_first_order()
        out, lse, *masks = ctx.saved_tensors
        wanted = ctx.needs_input_grad[5:]
        if grad is None:
            return (None,) * (5 + len(wanted))
        if ctx.kernels:
            from lrt_kernels.gpu import depth_pull

            grad = grad.contiguous()
            # A slice of a larger gradient may start anywhere; the kernels load 16 bytes at a time.
            grad = grad.clone() if grad.data_ptr() % 16 else grad
            flat = [x.view(-1, x.shape[-1]) for x in (grad, out)]
            along = depth_pull.along(*flat).view(lse.shape)
        else:
            along = (grad.to(lse.dtype) * out).unflatten(-1, (lse.shape[-1], -1)).sum(-1)
        exchange = zip(wanted, ctx.ledgers, ctx.readers, masks, strict=True)
        for wants, ledger, reader, mask in exchange:
            if wants:
                ledger.add(Read(reader, grad, along, lse, mask))
        return (None,) * 5 + tuple(grad.new_empty(0) if wants else None for wants in wanted)


def _check_first_order() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "pull=True gives gradients that cannot be differentiated again: leave create_graph out,"
            " or give pull=False"
        )
