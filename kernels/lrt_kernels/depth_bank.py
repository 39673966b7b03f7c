"""Depth reads by many readers over a growing list of sources.

The reads are those of `lrt_kernels.depth_read`; what differs is when a source is scored. The
reference scores it once, when it is added, for all the readers that come after: one matrix product
per source instead of one pass over it per read. The kernels score it as they read it, which costs
no pass at all, so nothing is kept but the queries.

With ``pull`` the gradient of a source is assembled once, from those of all its readers
(`lrt_kernels.depth_pull`), instead of one written per read and added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.depth_pull import Pull, mix_logits, mix_sources, pulled_read, pulled_scores
from lrt_kernels.depth_read import depth_mix, depth_read, depth_score
from lrt_kernels.precision import alike


class Scored(NamedTuple):
    """One source and what its readers score it by.

    ``value (..., d)``; per reader a ``query (d,)`` and a ``bias ()`` where there are any. With
    ``logits``, one ``(...)`` per reader, or ``(..., heads)``, the scores are taken already. With
    ``pull`` they carry no gradient, which is left to `read_scored`.
    """

    value: Tensor
    query: tuple[Tensor, ...]
    bias: tuple[Tensor, ...] | None
    logits: tuple[Tensor, ...] | None
    scale: float
    eps: float
    pull: Pull | None = None

    def logit(self, reader: int) -> Tensor:
        """One reader's logits, ``(...)``, or ``(..., heads)``."""
        if self.logits is not None:
            return self.logits[reader]
        bias = None if self.bias is None else self.bias[reader].unsqueeze(0)
        query = self.query[reader].unsqueeze(0)
        return depth_score(self.value, query, self.eps, bias, self.scale).squeeze(-1)


def score_source(
    value: Tensor,
    query_RD: Tensor,
    bias_R: Tensor | None = None,
    scale: float = 1.0,
    eps: float = 1e-6,
    heads: int = 1,
    backend: Backend = "auto",
    pull: bool = False,
) -> Scored:
    """A source for R readers, with a row of ``query (R heads, d)`` per reader and head.

    Several heads are read by the reference on every device. With ``pull`` reads are the same, and
    gradients equal up to rounding; they cannot be differentiated again.

    Raises:
        ValueError: with ``pull``, under torch.compile, or naming an argument that does not fit.
    """
    kernels = heads == 1 and choose("depth_read", backend, value.device) == "triton"
    logits: Tensor | None = None
    exchange = None
    if kernels:
        value = value.contiguous()
    if pull:
        logits, exchange = pulled_scores(value, query_RD, bias_R, scale, eps, heads, kernels)
    elif not kernels:
        logits = depth_score(value, query_RD, eps, bias_R, scale)
    if logits is None:
        if pull:
            query_RD, bias_R = query_RD.detach(), None if bias_R is None else bias_R.detach()
        bias = None if bias_R is None else bias_R.unbind()
        # Unbound once: the gradient of an index would be as large as the table, for each of them.
        return Scored(value, query_RD.unbind(), bias, None, scale, eps, exchange)
    if heads > 1:
        logits = logits.unflatten(-1, (-1, heads))
    return Scored(value, (), None, logits.unbind(value.dim() - 1), scale, eps, exchange)


def read_scored(
    sources: Sequence[Scored],
    readers: Sequence[int],
    masks: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """One read ``(..., d)``; ``readers[j]`` is the reader's place among those of source j.

    Raises:
        ValueError: some sources are scored with ``pull`` and others without.
    """
    values = [source.value for source in sources]
    if len(sources) == 1:
        return values[0]
    pulls = [source.pull for source in sources if source.pull is not None]
    if pulls and len(pulls) < len(sources):
        raise ValueError("sources: score all of them with pull, or none")
    if any(source.logits is not None for source in sources):
        logits = [source.logit(reader) for source, reader in zip(sources, readers, strict=True)]
        if pulls:
            mix = partial(mix_logits, logits, values, masks)
            return pulled_read(pulls, readers, masks, mix, kernels=False)
        return depth_mix(logits, values, masks)
    first = sources[0]
    query = torch.stack([s.query[r] for s, r in zip(sources, readers, strict=True)])
    biases = [s.bias[r] for s, r in zip(sources, readers, strict=True) if s.bias is not None]
    bias = torch.stack(biases) if biases else None
    if pulls:
        mix = partial(mix_sources, values, query, bias, first.scale, first.eps, masks)
        return pulled_read(pulls, readers, masks, mix, kernels=True)
    return depth_read(alike(values), query, bias, first.scale, first.eps, masks, backend="triton")
