"""Memory mixed into keys and values, and heads normed and rotated, in one pass (arXiv:2605.26797).

For one K/V head of w features, with the logits l of its two gates and the memory's own key and
value, M_k and M_v (LRT, the public release's gates):

    k   = 2 sigmoid(l_local) k_local + 2 sigmoid(l_recurrent) M_k,      v the same with M_v
    k'  = R(k rsqrt(mean k^2 + eps)),        v' = v

where R rotates the two halves of the features by the angles of the position (arXiv:2104.09864):
(k1 cos + k2 sin, k2 cos - k1 sin). The norm of queries and keys has no gain, so it commutes with
the rotation (arXiv:2010.04245). Without gates the same pass norms and rotates queries. What is made
by matrix products, logits and the memory's projections, is made by the library.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_rows, check_tensor
from lrt_kernels.precision import no_autocast


class Placement(NamedTuple):
    """What puts heads ``(..., heads, w)`` at their positions.

    ``norm_eps`` is inside the root mean square, None is no norm; ``rotary`` are cos and sin, each
    ``(..., 1, w / 2)`` with the last of the heads' leading axes, None is no rotation.
    """

    norm_eps: float | None = None
    rotary: tuple[Tensor, Tensor] | None = None


def place_heads(x: Tensor, place: Placement, backend: Backend = "auto") -> Tensor:
    """R(x rsqrt(mean x^2 + eps)) of heads ``(..., heads, w)``, in their dtype.

    Args:
        x: ``(..., heads, w)``, each row in one piece; w even where it is rotated.
        place: norm and angles.
        backend: as of `inject_kv`.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(x, "x", place)
    if choose("inject_kv", backend, x.device) == "reference":
        return _placed(x, place)
    cos, sin = _table(place)
    out, _ = _op(_flat(x), None, None, None, None, cos, sin, place.norm_eps)
    return out.view(x.shape)


def inject_kv(
    k: Tensor,
    v: Tensor,
    logits: Tensor,
    memory_k: Tensor | None = None,
    memory_v: Tensor | None = None,
    place: Placement | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """k' and v' of the equations above, ``(..., heads, w)`` each.

    Args:
        k, v: local keys and values ``(..., heads, w)``, each row in one piece, of one dtype:
            bfloat16, float16, float32 or float64.
        logits: ``(..., 2 heads)``, the local gates' first; float32 in mixed precision.
        memory_k, memory_v: M_k and M_v, shaped as k; both None is no memory, the recurrent gates
            then do nothing.
        place: the keys' norm and angles; None leaves them as they are mixed.
        backend: "auto" takes the kernel on a CUDA device and the reference elsewhere. The kernel's
            gradients are the same bits every time, and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(k, "k", place)
    for name, x in (("v", v), ("memory_k", memory_k), ("memory_v", memory_v)):
        if x is not None:
            check_rows(x, name, tuple(k.shape), k.device)
    if v.dtype != k.dtype:
        raise ValueError(f"v is {v.dtype}, k {k.dtype}: give both in one dtype")
    check_rows(logits, "logits", (*k.shape[:-2], 2 * k.shape[-2]), k.device)
    if (memory_k is None) != (memory_v is None):
        missing, given = ("memory_k", "memory_v")[:: 1 if memory_k is None else -1]
        raise ValueError(f"{missing} is None and {given} is not: give both or none")
    if choose("inject_kv", backend, k.device) == "reference":
        mixed, v = _mixed(k, v, logits, memory_k, memory_v)
        return mixed if place is None else place_heads(mixed, place, "reference"), v
    place = place or Placement()
    cos, sin = _table(place)
    memory = [None if m is None else _flat(m) for m in (memory_k, memory_v)]
    flat = logits.contiguous().view(-1, logits.shape[-1])
    out_k, out_v = _op(_flat(k), _flat(v), flat, *memory, cos, sin, place.norm_eps)
    return out_k.view(k.shape), out_v.view(v.shape)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate ``(..., heads, w)`` by cos and sin ``(..., 1, w / 2)``."""
    cos, sin = table
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos + x2 * sin, x2 * cos - x1 * sin], dim=-1)


def _check(x: Tensor, name: str, place: Placement | None) -> None:
    if x.dim() < 2 or 0 in x.shape[-2:]:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: give (..., heads, w), both above 0")
    check_rows(x, name, tuple(x.shape), x.device)
    if place is None or place.rotary is None:
        return
    if x.shape[-1] % 2:
        raise ValueError(f"{name} has {x.shape[-1]} features a head: rotation needs an even number")
    for part, table in zip(("cos", "sin"), place.rotary, strict=True):
        lead = tuple(table.shape[:-2])
        if lead and max(lead) > 1:
            lead = tuple(x.shape[:-2])[-len(lead) :]
        check_tensor(table, f"place.rotary, {part}", (*lead, 1, x.shape[-1] // 2), x.device)


def _flat(x: Tensor) -> Tensor:
    """``(N, heads, w)`` in one piece."""
    return x.contiguous().view(-1, *x.shape[-2:])


def _table(place: Placement) -> tuple[Tensor | None, Tensor | None]:
    """cos and sin ``(M, w / 2)``, one row for every M-th position."""
    if place.rotary is None:
        return None, None
    cos, sin = [x.detach().contiguous().view(-1, x.shape[-1]) for x in place.rotary]
    return cos, sin


def _placed(x: Tensor, place: Placement) -> Tensor:
    if place.norm_eps is not None:
        x = F.rms_norm(x, x.shape[-1:], None, place.norm_eps)
    return x if place.rotary is None else rotate(x, place.rotary)


def _mixed(
    k: Tensor, v: Tensor, logits: Tensor, memory_k: Tensor | None, memory_v: Tensor | None
) -> tuple[Tensor, Tensor]:
    with no_autocast(k.device.type):
        gates = 2 * torch.sigmoid(logits)
    local, recurrent = gates.to(v.dtype).unsqueeze(-1).split(k.shape[-2], dim=-2)
    k, v = local * k, local * v
    if memory_k is None or memory_v is None:
        return k, v
    return k + recurrent * memory_k, v + recurrent * memory_v


@torch.library.custom_op("lrt_kernels::inject_kv", mutates_args=())
def _op(
    k: Tensor,
    v: Tensor | None,
    logits: Tensor | None,
    memory_k: Tensor | None,
    memory_v: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    norm_eps: float | None,
) -> tuple[Tensor, Tensor]:
    """k' and v' ``(N, heads, w)``, the latter empty without v; logits ``(N, 2 heads)``."""
    from lrt_kernels.gpu import inject_kv as kernels

    return kernels.forward(k, v, logits, memory_k, memory_v, cos, sin, norm_eps)


@torch.library.custom_op("lrt_kernels::inject_kv_backward", mutates_args=())
def _op_backward(
    grad_k: Tensor,
    grad_v: Tensor,
    k: Tensor,
    v: Tensor | None,
    logits: Tensor | None,
    memory_k: Tensor | None,
    memory_v: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    norm_eps: float | None,
) -> list[Tensor]:
    """Gradients of k, v, logits and both memories, empty where there are none."""
    from lrt_kernels.gpu import inject_kv as kernels

    return kernels.backward(grad_k, grad_v, k, v, logits, memory_k, memory_v, cos, sin, norm_eps)


def _like(x: Tensor | None, other: Tensor) -> Tensor:
    return other.new_empty(0) if x is None else torch.empty_like(x)


@_op.register_fake
def _(k, v, logits, memory_k, memory_v, cos, sin, norm_eps):  # type: ignore[no-untyped-def]
    return torch.empty_like(k), _like(v, k)


@_op_backward.register_fake
def _(grad_k, grad_v, k, v, logits, memory_k, memory_v, cos, sin, norm_eps):  # type: ignore[no-untyped-def]
    return [_like(x, k) for x in (k, v, logits, memory_k, memory_v)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.norm_eps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad_k: Tensor, grad_v: Tensor) -> tuple[Any, ...]:
    given = ctx.saved_tensors
    found = _op_backward(grad_k.contiguous(), grad_v.contiguous(), *given, ctx.norm_eps)
    gradients = (None if x is None else dx for x, dx in zip(given[:5], found, strict=True))
    return (*gradients, None, None, None)


_op.register_autograd(_differentiate, setup_context=_save)
