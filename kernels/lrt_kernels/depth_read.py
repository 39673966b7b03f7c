"""Softmax-weighted read over depth sources (Attention Residuals, arXiv:2603.15031 section 3).

For sources s_j ``(..., d)`` and a query q ``(d,)``

    l_j   = (q . s_j * rsqrt(mean(s_j^2) + eps) + b_j) / scale
    alpha = softmax_j(l)
    out   = sum_j alpha_j s_j

and, with an output norm of gain g, out is RMS(out) g. Several queries over the same sources are
several reads.

With H heads each of the H slices of the features has a softmax of its own, over keys that are
normed as a whole; its query is q with zeros outside the slice.

A gain on the normed keys is the same as a query multiplied by it, so the op has none. Logits,
softmax, norms and the mixture are computed in float32 or wider whatever the sources' dtype, and
rounded once at the end; values stay raw.

Only the logits, one number per source and position, are ever stacked: sources stay separate
tensors, so a stack of L readers keeps O(L) copies of the state for its backward pass, not O(L^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_masks, check_sources, check_tensor
from lrt_kernels.precision import no_autocast, wide


def depth_score(
    source: Tensor,
    query_RD: Tensor,
    eps: float = 1e-6,
    bias_R: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Logits of one source for R readers at once, ``(..., d), (R, d) -> (..., R)``.

    The rsqrt is taken once per source however many readers there are: it is folded behind the
    product.
    """
    dtype = wide(source.dtype)
    with no_autocast(source.device.type):
        keys = source.to(dtype)
        inverse = torch.rsqrt(keys.square().mean(-1, keepdim=True) + eps)
        if scale != 1.0:
            inverse = inverse / scale
        logits = F.linear(keys, query_RD.to(dtype))
        return logits * inverse if bias_R is None else logits * inverse + bias_R.to(dtype) / scale


def head_queries(query_RD: Tensor, heads: int) -> Tensor:
    """Each query as one query per head, zero outside its slice: ``(R, d) -> (R heads, d)``."""
    if heads == 1:
        return query_RD
    slices = query_RD.unflatten(-1, (1, heads, -1))
    own = torch.eye(heads, dtype=query_RD.dtype, device=query_RD.device).unsqueeze(-1)
    return (slices * own).flatten(0, 1).flatten(1)


def depth_mix(
    logits: Sequence[Tensor],
    sources: Sequence[Tensor],
    masks: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """Mix S sources ``(..., d)`` by the softmax over their logits.

    Args:
        logits: one tensor per source, ``(...)``, or ``(..., heads)`` for a softmax per head.
        sources: one ``(..., d)`` tensor per source.
        masks: per source None, or ``(...)`` bool that is False where the source is absent.
    """
    return _mixture(logits, sources, masks).to(sources[0].dtype)


def _mixture(
    logits: Sequence[Tensor],
    sources: Sequence[Tensor],
    masks: Sequence[Tensor | None] | None,
) -> Tensor:
    """The mixture in the logits' dtype; a single source is itself."""
    if len(sources) == 1:
        return sources[0]
    return mixed(shown(logits, sources, masks), sources)


def shown(
    logits: Sequence[Tensor], sources: Sequence[Tensor], masks: Sequence[Tensor | None] | None
) -> list[Tensor]:
    """Logits ``(...)``, or ``(..., heads)``, that are -inf where their source is absent."""
    if masks is None:
        return list(logits)
    if logits[0].dim() == sources[0].dim():
        masks = [None if mask is None else mask.unsqueeze(-1) for mask in masks]
    return [
        logit if mask is None else logit.masked_fill(~mask, -torch.inf)
        for logit, mask in zip(logits, masks, strict=True)
    ]


def mixed(logits: Sequence[Tensor], sources: Sequence[Tensor]) -> Tensor:
    """Sources ``(..., d)`` mixed by the softmax over logits, ``(...)`` or ``(..., heads)``.

    In the logits' dtype.
    """
    weight_S = torch.softmax(torch.stack(list(logits)), dim=0).unsqueeze(-1)
    by_head = logits[0].dim() == sources[0].dim()
    if by_head:
        sources = [source.unflatten(-1, (logits[0].shape[-1], -1)) for source in sources]
    # A compiler fuses the plain sum's gradient, and warns of one that is not its own.
    mix = _sum if torch.compiler.is_compiling() else _Mix.apply
    out: Tensor = mix(weight_S, *sources)
    return out.flatten(-2) if by_head else out


def _sum(weight_S: Tensor, *sources: Tensor) -> Tensor:
    out = weight_S[0] * sources[0]
    for weight, source in zip(weight_S[1:], sources[1:], strict=True):
        out.addcmul_(weight, source)
    return out


class _Mix(torch.autograd.Function):
    """One node per read:  ds_j = w_j do,  dw_j = do . s_j.

    The gradients of `torch.addcmul` would copy every source, to multiply it by one.
    """

    @staticmethod
    def forward(ctx: Any, weight_S: Tensor, *sources: Tensor) -> Tensor:
        ctx.save_for_backward(weight_S, *sources)
        return _sum(weight_S, *sources)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight_S, *sources = ctx.saved_tensors
        weighted, *wanted = ctx.needs_input_grad
        grad_S = None
        if weighted:
            grad_S = torch.stack([(grad * source).sum(-1, keepdim=True) for source in sources])
        return grad_S, *(
            (grad * weight).to(source.dtype) if wants else None
            for weight, source, wants in zip(weight_S, sources, wanted, strict=True)
        )


def depth_read(
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    eps: float = 1e-6,
    masks: Sequence[Tensor | None] | None = None,
    norm_eps: float | None = None,
    norm_gain: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The whole read, for one query or several at once.

    Args:
        sources: S tensors ``(..., d)``, allocated apart, each contiguous; bfloat16, float16,
            float32 or float64.
        query: ``(d,)`` shared by the sources, ``(S, d)`` with one per source, or R of either,
            ``(R, S, d)`` or ``(R, 1, d)``.
        bias: ``(S,)`` or ``(R, S)``, added to the logits before the division, or None.
        scale: divides the logits.
        eps: inside the keys' root mean square.
        masks: per source None, or ``(...)`` bool that is False where the source is absent.
        norm_eps: inside the root mean square of the output; None is no output norm.
        norm_gain: ``(d,)``, the output norm's gain; None is ones.
        backend: "auto" takes the kernels on a CUDA device and the reference elsewhere. The kernels'
            gradients are the same bits every time, and cannot be differentiated again.

    Returns:
        ``(..., d)``, or ``(..., R, d)`` where the query has an axis R.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    check_sources(sources)
    count, shape, device = len(sources), sources[0].shape, sources[0].device
    query_RSD, bias_RS = _by_read(query, bias, count, shape[-1], device)
    check_masks(masks, sources[0], count)
    if masks is not None and all(mask is None for mask in masks):
        masks = None
    if scale <= 0:
        raise ValueError(f"scale={scale}: it divides the logits; give a positive number")
    if norm_gain is not None:
        if norm_eps is None:
            raise ValueError("norm_gain is given without norm_eps: give both or none")
        check_tensor(norm_gain, "norm_gain", tuple(shape[-1:]), device)
    if choose("depth_read", backend, device) == "reference":
        out = _reference(sources, query_RSD, bias_RS, scale, eps, masks, norm_eps, norm_gain)
    else:
        flat = [source.view(-1, shape[-1]) for source in sources]
        present = stacked_masks(masks, sources[0])
        query_RSD = query_RSD.expand(-1, count, -1)
        out, *_ = _op(
            flat, query_RSD, bias_RS, present, norm_gain, float(scale), float(eps), norm_eps
        )
        out = out.view(*shape[:-1], *out.shape[1:])
    return out if query.dim() == 3 else out.squeeze(-2)


def stacked_masks(masks: Sequence[Tensor | None] | None, like: Tensor) -> Tensor | None:
    """``(len, N)`` bool, true where a mask is None; None where all are."""
    if masks is None or all(mask is None for mask in masks):
        return None
    here = torch.ones(like.shape[:-1], dtype=torch.bool, device=like.device)
    return torch.stack([here if mask is None else mask for mask in masks]).view(len(masks), -1)


def _by_read(
    query: Tensor, bias: Tensor | None, count: int, features: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Queries ``(R, S, d)``, or ``(R, 1, d)`` where they are shared, and biases ``(R, S)``."""
    if query.dim() not in (1, 2, 3):
        raise ValueError(f"query has {query.dim()} axes: give (d,), (S, d) or (R, S, d)")
    reads = query.shape[0] if query.dim() == 3 else 1
    own = query.shape[-2] if query.dim() > 1 else 1
    wanted = count if own != 1 else 1
    check_tensor(query, "query", (reads, wanted, features)[3 - query.dim() :], device)
    if reads < 1:
        raise ValueError("query has no reads: give at least one")
    query = query.reshape(reads, own, features)
    if bias is not None:
        check_tensor(bias, "bias", (reads, count)[2 - bias.dim() :] or (count,), device)
        bias = bias.expand(reads, count)
    return query, bias


def _reference(
    sources: Sequence[Tensor],
    query_RSD: Tensor,
    bias_RS: Tensor | None,
    scale: float,
    eps: float,
    masks: Sequence[Tensor | None] | None,
    norm_eps: float | None,
    norm_gain: Tensor | None,
) -> Tensor:
    """The read ``(..., R, d)`` in plain PyTorch."""
    count = len(sources)
    # Unbound once: the gradient of an index would be as large as all queries, for each source.
    queries = query_RSD.unbind(1) if query_RSD.shape[1] > 1 else [query_RSD.squeeze(1)] * count
    biases = [None] * count if bias_RS is None else bias_RS.unbind(1)
    logits = [
        depth_score(source, query, eps, bias, scale).unbind(-1)
        for source, query, bias in zip(sources, queries, biases, strict=True)
    ]
    dtype = wide(sources[0].dtype)
    reads = []
    for scores in zip(*logits, strict=True):
        out = _mixture(scores, sources, masks)
        if norm_eps is not None:
            gain = None if norm_gain is None else norm_gain.to(dtype)
            out = F.rms_norm(out.to(dtype), out.shape[-1:], gain, norm_eps)
        reads.append(out.to(sources[0].dtype))
    return reads[0].unsqueeze(-2) if len(reads) == 1 else torch.stack(reads, dim=-2)


@torch.library.custom_op("lrt_kernels::depth_read", mutates_args=())
def _op(
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None,
    present: Tensor | None,
    gain: Tensor | None,
    scale: float,
    eps: float,
    norm_eps: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Read ``(N, R, d)`` of ``(N, d)``, and what its gradient needs.

    That is the mixture before the norm (empty without one), scores ``(R, S, N)``, the keys' inverse
    root mean squares ``(S, N)``, and the logarithm of the softmax' denominator ``(R, N)``.
    """
    from lrt_kernels.gpu import depth_read as kernels

    return kernels.forward(sources, query, bias, present, gain, scale, eps, norm_eps)


@torch.library.custom_op("lrt_kernels::depth_read_backward", mutates_args=())
def _op_backward(
    grad: Tensor,
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None,
    present: Tensor | None,
    gain: Tensor | None,
    saved: Sequence[Tensor],
    scale: float,
    norm_eps: float | None,
) -> list[Tensor]:
    """Gradients of query, bias, gain (empty where there is none) and of every source."""
    from lrt_kernels.gpu import depth_read as kernels

    return kernels.backward(grad, sources, query, bias, present, gain, saved, scale, norm_eps)


@_op.register_fake
def _(sources, query, bias, present, gain, scale, eps, norm_eps):  # type: ignore[no-untyped-def]
    like, count, reads = sources[0], len(sources), query.shape[0]
    n, numbers = like.shape[0], wide(like.dtype)
    out = like.new_empty(n, reads, like.shape[1])
    raw = like.new_empty(0) if norm_eps is None else torch.empty_like(out)
    return (
        out,
        raw,
        like.new_empty(reads, count, n, dtype=numbers),
        like.new_empty(count, n, dtype=numbers),
        like.new_empty(reads, n, dtype=numbers),
    )


@_op_backward.register_fake
def _(grad, sources, query, bias, present, gain, saved, scale, norm_eps):  # type: ignore[no-untyped-def]
    parameters = (query, bias, gain)
    like = [query.new_empty(0) if x is None else x.new_empty(x.shape) for x in parameters]
    return [*like, *(torch.empty_like(source) for source in sources)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    sources, query, bias, present, gain, ctx.scale, _, ctx.norm_eps = inputs
    out, raw, *saved = output
    ctx.mark_non_differentiable(raw, *saved)
    mixed = out if ctx.norm_eps is None else raw
    ctx.save_for_backward(query, bias, present, gain, mixed, *saved, *sources)


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    query, bias, present, gain, *rest = ctx.saved_tensors
    saved, sources = rest[:4], rest[4:]
    d_query, d_bias, d_gain, *d_sources = _op_backward(
        grad.contiguous(), sources, query, bias, present, gain, saved, ctx.scale, ctx.norm_eps
    )
    return (
        d_sources,
        d_query,
        None if bias is None else d_bias,
        None,
        None if gain is None else d_gain,
        None,
        None,
        None,
    )


_op.register_autograd(_differentiate, setup_context=_save)
