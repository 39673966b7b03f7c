"""2-simplicial attention: scores over pairs of positions in two windows (arXiv:2507.02754).

    l_ijk = scale <q_i, k_j, k'_k>,    i - w1 < j <= i,    i - w2 < k <= i
    o_i   = sum_jk softmax_jk(l_i) v_j * v'_k                     one softmax over all visible pairs

with the trilinear form <a, b, c> = sum_l a_l b_l c_l, or the sum of det[a, b, c] over consecutive
triples of features, which rotations of all three leave as it is (the paper's eq. 8).

Both forms are a product of k_j with q_i * k'_k (or with the cross product k'_k x q_i), so scores
and outputs are matrix products over j for every pair (i, k). Queries are taken a few at a time, and
what a group computes is computed again in the backward pass: nothing of size T w1 w2 is kept. The
work is O(T w1 w2).
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lrt_kernels.precision import wide

#: Scores that one group of queries holds at once, over all rows and heads.
SCORES = 1 << 21


def simplicial_attention(
    q: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    windows: tuple[int, int],
    positions: range | None = None,
    document: Tensor | None = None,
    scale: float | None = None,
    determinant: bool = False,
) -> Tensor:
    """Outputs ``(B, P, H, d)``.

    Args:
        q: queries ``(B, P, H, d)``.
        keys: k and k', ``(B, N, G, d)`` each, from position 0; G divides H.
        values: v and v' likewise.
        windows: w1 of k and v, w2 of k' and v'; a position counts itself.
        positions: of the queries; None is 0 .. P - 1.
        document: ``(B, N)``; pairs are in the query's document. None is one document.
        scale: of the scores; None is d^-1/2.
        determinant: take the determinant form; d is a multiple of 3.
    """
    positions = range(q.shape[1]) if positions is None else positions
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    reach = positions[-1] + 1
    first, second = (min(window, reach) for window in windows)
    (k1, k2), (v1, v2) = keys, values
    if second > first:
        # The narrow window goes to the elementwise side, where rows are gathered per query.
        first, second, k1, k2, v1, v2 = second, first, k2, k1, v2, v1
        scale = -scale if determinant else scale
    q = q * scale
    heads = q.shape[0] * q.shape[2]
    group = max(1, SCORES // (heads * second * first))
    # A group of queries also sees the positions between its own, so it stays within one window.
    group = min(group, max(1, first // positions.step))
    out = []
    for begin in range(0, len(positions), group):
        own = positions[begin : begin + group]
        # Everything that these queries see, cut out so that gradients stay this small too.
        low1, low2 = max(0, own[0] - first + 1), max(0, own[0] - second + 1)
        cut1, cut2 = slice(low1, own[-1] + 1), slice(low2, own[-1] + 1)
        seen = _visible(own, low1, first, document, q.device)
        mine = q[:, begin : begin + group]
        theirs = k1[:, cut1], k2[:, cut2], v1[:, cut1], v2[:, cut2]
        paired, missing = _paired(own, second, document, q.device)
        compute = partial(_group, missing=missing, step=own.step, determinant=determinant)
        if torch.is_grad_enabled():
            compute = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
        out.append(compute(mine, *theirs, seen, paired))
    return torch.cat(out, dim=1)


def _visible(
    own: range, low: int, window: int, document: Tensor | None, device: torch.device
) -> Tensor:
    """Which positions from ``low`` on each query sees, ``(1 or B, Q, J)`` bool."""
    query = torch.tensor(own, device=device).unsqueeze(-1)
    distance = query - torch.arange(low, own[-1] + 1, device=device)
    seen = ((distance >= 0) & (distance < window)).unsqueeze(0)
    if document is None:
        return seen
    theirs = document[:, own.start : own.stop : own.step].unsqueeze(-1)
    return seen & (theirs == document[:, None, low : own[-1] + 1])


def _paired(
    own: range, window: int, document: Tensor | None, device: torch.device
) -> tuple[Tensor, int]:
    """Which of its ``window`` last positions each query sees, oldest first, ``(1 or B, Q, W)``.

    And how many of the first query's are before the row's start.
    """
    offset = torch.arange(1 - window, 1, device=device)
    where = torch.tensor(own, device=device).unsqueeze(-1) + offset
    seen = (where >= 0).unsqueeze(0)
    if document is not None:
        theirs = document[:, own.start : own.stop : own.step].unsqueeze(-1)
        seen = seen & (document[:, where.clamp(min=0)] == theirs)
    return seen, max(0, window - 1 - own[0])


def _group(
    q: Tensor,
    k1: Tensor,
    k2: Tensor,
    v1: Tensor,
    v2: Tensor,
    seen1: Tensor,
    seen2: Tensor,
    missing: int,
    step: int,
    determinant: bool,
) -> Tensor:
    """The queries of one group, ``(B, Q, H, d)``."""
    groups, window = k1.shape[2], seen2.shape[-1]
    # (B, G, H / G, Q, d), and (B, G, 1, Q, W, d) for what each query has in its second window.
    q = q.unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4)
    k2, v2 = (
        F.pad(x, (0, 0, 0, 0, missing, 0)).unfold(1, window, step).permute(0, 2, 1, 4, 3)
        for x in (k2, v2)
    )
    k2, v2 = k2.unsqueeze(2), v2.unsqueeze(2)
    pairs = _cross(k2, q.unsqueeze(-2)) if determinant else k2 * q.unsqueeze(-2)
    scores = torch.einsum("bgrqwd,bjgd->bgrqwj", pairs, k1)
    seen = (seen1.unsqueeze(-2) & seen2.unsqueeze(-1))[:, None, None]
    scores = scores.to(wide(scores.dtype)).masked_fill(~seen, -torch.inf)
    weights = scores.flatten(-2).softmax(-1).view(scores.shape).to(v1.dtype)
    mixed = torch.einsum("bgrqwj,bjgd->bgrqwd", weights, v1)
    return (mixed * v2).sum(-2).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    """Cross products of consecutive triples of features."""
    triples = [x.unflatten(-1, (-1, 3)) for x in torch.broadcast_tensors(a, b)]
    return torch.linalg.cross(*triples, dim=-1).flatten(-2)
