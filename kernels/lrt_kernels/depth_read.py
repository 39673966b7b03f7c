"""Softmax-weighted read over depth sources (Attention Residuals, arXiv:2603.15031 section 3).

For sources s_j ``(..., d)`` and a query q ``(d,)``

    l_j   = (q . s_j * rsqrt(mean(s_j^2) + eps) + b_j) / scale
    alpha = softmax_j(l)
    out   = sum_j alpha_j s_j

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

import torch
import torch.nn.functional as F
from torch import Tensor

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
    if len(sources) == 1:
        return sources[0]
    by_head = logits[0].dim() == sources[0].dim()
    if masks is not None:
        masks = [m.unsqueeze(-1) if by_head and m is not None else m for m in masks]
        logits = [
            logit if mask is None else logit.masked_fill(~mask, -torch.inf)
            for logit, mask in zip(logits, masks, strict=True)
        ]
    dtype = sources[0].dtype
    weight_S = torch.softmax(torch.stack(list(logits)), dim=0).unsqueeze(-1)
    if by_head:
        sources = [source.unflatten(-1, (logits[0].shape[-1], -1)) for source in sources]
    out = weight_S[0] * sources[0]
    for weight, source in zip(weight_S[1:], sources[1:], strict=True):
        out = torch.addcmul(out, weight, source)
    return (out.flatten(-2) if by_head else out).to(dtype)


def depth_read(
    sources: Sequence[Tensor],
    query: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    eps: float = 1e-6,
    masks: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """The whole read for one reader.

    Args:
        sources: S tensors ``(..., d)``.
        query: ``(d,)`` shared by the sources, or ``(S, d)`` with one per source.
        bias: ``(S,)`` added to the logits before the division, or None.
        scale: divides the logits.
        eps: inside the keys' root mean square.
        masks: per source None, or ``(...)`` bool that is False where the source is absent.

    Returns:
        ``(..., d)``.
    """
    query_SD = query.expand(len(sources), -1)
    logits = []
    for j, source in enumerate(sources):
        own = None if bias is None else bias[j : j + 1]
        logits.append(depth_score(source, query_SD[j : j + 1], eps, own, scale).squeeze(-1))
    return depth_mix(logits, sources, masks)
