"""2-simplicial attention: scores over pairs of positions in two windows (arXiv:2507.02754).

    l_ijk = scale <q_i, k_j, k'_k>,    i - w1 < j <= i,    i - w2 < k <= i
    o_i   = sum_jk softmax_jk(l_i) v_j * v'_k                     one softmax over all visible pairs

with the trilinear form <a, b, c> = sum_l a_l b_l c_l, or the sum of det[a, b, c] over consecutive
triples of features, which rotations of all three leave as it is (the paper's eq. 8).

Both forms are a product of k_j with q_i * k'_k (or with the cross product k'_k x q_i), so scores
and outputs are matrix products over j for every pair (i, k). Queries are taken a few at a time, and
what a group computes is computed again in the backward pass: nothing of size T w1 w2 is kept. The
work is O(T w1 w2).

The kernels do the same without a group's scores in memory: they keep the outputs and, per query,
the logarithm of the softmax' denominator. They have the trilinear form alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_rows
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
    backend: Backend = "auto",
) -> Tensor:
    """Outputs ``(B, P, H, d)``.

    Args:
        q: queries ``(B, P, H, d)``, each row in one piece as those of keys and values are;
            bfloat16, float16, float32 or float64.
        keys: k and k', ``(B, N, G, d)`` each, from position 0; G divides H. In q's dtype, unless
            autocast is on.
        values: v and v' likewise, of one dtype.
        windows: w1 of k and v, w2 of k' and v'; a position counts itself.
        positions: of the queries, below N; None is 0 .. P - 1.
        document: ``(B, M)``, up to the last query's position or further, whole numbers of 32 bits;
            pairs are in the query's document. None is one document.
        scale: of the scores; None is d^-1/2.
        determinant: take the determinant form; d is a multiple of 3.
        backend: "auto" takes the kernels on a CUDA device for the trilinear form, and the reference
            elsewhere. The kernels' gradients are the same bits every time, and cannot be
            differentiated again; autocast narrows their inputs.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device, layout or value;
            ``backend="triton"`` with the determinant form.
    """
    positions = range(q.shape[1] if q.dim() == 4 else 0) if positions is None else positions
    _check(q, keys, values, windows, positions, document, determinant)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    chosen = choose("simplicial_attention", backend, q.device)
    if determinant and backend == "triton":
        raise ValueError("backend='triton': the determinant form has no kernels")
    if determinant or chosen == "reference":
        return _reference(q, keys, values, windows, positions, document, scale, determinant)
    first, second = (min(window, positions[-1] + 1) for window in windows)
    (k1, k2), (v1, v2) = keys, values
    if second > first:
        # The narrow window goes to the elementwise side, one position after the other.
        first, second, k1, k2, v1, v2 = second, first, k2, k1, v2, v1
    dtype = torch.promote_types(q.dtype, v1.dtype)
    if _autocast(q) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)
    # Everything that the queries see, cut out and in one piece; it is little beside the work.
    seen = slice(max(0, positions[0] - first + 1), positions[-1] + 1)
    q = q.to(dtype).contiguous()
    cut = [x[:, seen].to(dtype).contiguous() for x in (k1, k2, v1, v2)]
    document = None if document is None else document[:, seen].to(torch.int32).contiguous()
    where = positions[0] - seen.start, positions.step
    out, _ = _op(q, *cut, document, *where, first, second, float(scale))
    return out.to(values[0].dtype)


def _check(
    q: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    windows: tuple[int, int],
    positions: range,
    document: Tensor | None,
    determinant: bool,
) -> None:
    if q.dim() != 4 or 0 in q.shape:
        raise ValueError(f"q has shape {tuple(q.shape)}: give (B, P, H, d), each above 0")
    check_rows(q, "q", tuple(q.shape), q.device)
    batch, count, heads, d = q.shape
    for name, pair in (("keys", keys), ("values", values), ("windows", windows)):
        if len(pair) != 2:
            raise ValueError(f"{name} has {len(pair)} entries: give two, one for each window")
    if min(windows) < 1:
        raise ValueError(f"windows={tuple(windows)}: a position counts itself; give at least 1")
    if keys[0].dim() != 4:
        raise ValueError(f"keys[0] has shape {tuple(keys[0].shape)}: give (B, N, G, d)")
    length, groups = keys[0].shape[1:3]
    if groups < 1 or heads % groups:
        raise ValueError(f"keys[0] has {groups} heads: they divide the {heads} of q")
    for name, pair in (("keys", keys), ("values", values)):
        for n, x in enumerate(pair):
            check_rows(x, f"{name}[{n}]", (batch, length, groups, d), q.device)
    # Autocast makes one dtype of what a product multiplies.
    if not _autocast(q):
        pairs = [("keys[0]", keys[0], "q", q), ("keys[1]", keys[1], "q", q)]
        pairs.append(("values[1]", values[1], "values[0]", values[0]))
        for name, x, other, like in pairs:
            if x.dtype != like.dtype:
                raise ValueError(f"{name} is {x.dtype}, {other} {like.dtype}")
    if len(positions) != count:
        raise ValueError(f"positions has {len(positions)} entries for {count} queries")
    if positions.step < 1 or positions.start < 0 or positions[-1] >= length:
        raise ValueError(f"positions={positions}: they rise from 0 or later, within {length} keys")
    if document is not None:
        reach = positions[-1] + 1
        if document.dim() != 2 or document.shape[0] != batch or document.shape[1] < reach:
            raise ValueError(
                f"document has shape {tuple(document.shape)}: give ({batch}, {reach} or more)"
            )
        if document.device != q.device:
            raise ValueError(f"document is on {document.device}, others on {q.device}")
    if determinant and d % 3:
        raise ValueError(f"determinant: q has {d} features, not a multiple of 3")


def _autocast(q: Tensor) -> bool:
    # The meta device has none.
    return q.device.type != "meta" and torch.is_autocast_enabled(q.device.type)


def _reference(
    q: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    windows: tuple[int, int],
    positions: range,
    document: Tensor | None,
    scale: float,
    determinant: bool,
) -> Tensor:
    """The outputs in plain PyTorch, a group of queries at a time."""
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
        out.append(grouped(mine, *theirs, seen, paired, missing, own.step, determinant))
    return torch.cat(out, dim=1)


def grouped(*given: Any) -> Tensor:
    """`_group`, computed again in the backward pass."""
    if torch.is_grad_enabled():
        out: Tensor = checkpoint(_group, *given, use_reentrant=False, preserve_rng_state=False)
        return out
    return _group(*given)


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


@torch.library.custom_op("lrt_kernels::simplicial_attention", mutates_args=())
def _op(
    q: Tensor,
    k1: Tensor,
    k2: Tensor,
    v1: Tensor,
    v2: Tensor,
    document: Tensor | None,
    start: int,
    step: int,
    first: int,
    second: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Outputs ``(B, P, H, d)`` and the logarithms of the softmax' denominators ``(B, P, H)``."""
    from lrt_kernels.gpu import simplicial_attention as kernels

    return kernels.forward(q, k1, k2, v1, v2, document, (start, step), (first, second), scale)


@torch.library.custom_op("lrt_kernels::simplicial_attention_backward", mutates_args=())
def _op_backward(
    grad: Tensor,
    q: Tensor,
    k1: Tensor,
    k2: Tensor,
    v1: Tensor,
    v2: Tensor,
    out: Tensor,
    lse: Tensor,
    document: Tensor | None,
    start: int,
    step: int,
    first: int,
    second: int,
    scale: float,
) -> list[Tensor]:
    """Gradients of q, k1, k2, v1 and v2."""
    from lrt_kernels.gpu import simplicial_attention as kernels

    where, windows = (start, step), (first, second)
    return kernels.backward(grad, q, k1, k2, v1, v2, out, lse, document, where, windows, scale)


@_op.register_fake
def _(q, k1, k2, v1, v2, document, start, step, first, second, scale):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=wide(q.dtype))


@_op_backward.register_fake
def _(grad, q, k1, k2, v1, v2, *others):  # type: ignore[no-untyped-def]
    return [torch.empty_like(x) for x in (q, k1, k2, v1, v2)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, document, start, step, first, second, scale = inputs
    ctx.options = start, step, first, second, scale
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output, document)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    gradients = _op_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
    return (*gradients, *[None] * (1 + len(ctx.options)))


_op.register_autograd(_differentiate, setup_context=_save)
