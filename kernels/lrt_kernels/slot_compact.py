"""Slots turned by the token that they meet: norm, gate, projection, reflection (s3e42's compactor).

With slots g_s ``(..., S, d)``, one token vector m ``(..., d)`` and a projection W_s ``(d, d)`` each

    c_s = RMS(g_s) m,      v_s = W_s c_s,      n_s = v_s / |v_s|,      z_s = g_s - 2 n_s (n_s . g_s)

after a gather, which is `lrt_kernels.depth_read` with S queries. The projection is the library's
matrix product; the two kernels beside it pass over the slots once each. A reflection is computed in
float32 or wider and rounded once, so the norm of a slot survives thousands of positions; where v is
zero it leaves the slot as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_rows, check_tensor
from lrt_kernels.precision import no_autocast, wide


def slot_gate(
    slots: Tensor, token: Tensor | None = None, eps: float = 1e-6, backend: Backend = "auto"
) -> Tensor:
    """c_s = RMS(g_s) m, ``(..., S, d)`` in the wider dtype of the two.

    Args:
        slots: g ``(..., S, d)``, each row in one piece; bfloat16, float16, float32 or float64.
        token: m ``(..., d)``, the same; None is ones.
        eps: inside the root mean square.
        backend: as of `lrt_kernels.depth_read`.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(slots, token)
    if choose("slot_compact", backend, slots.device) == "reference":
        return _gated(slots, token, eps)
    flat, token = _flat(slots, token)
    gated: Tensor = _gate(flat, token, float(eps), False)
    return gated.view(slots.shape)


def slot_reflect(
    slots: Tensor, vectors: Tensor, strength: Tensor | None = None, backend: Backend = "auto"
) -> Tensor:
    """z_s = g_s - b_s n_s (n_s . g_s) with n = v / |v|, ``(..., S, d)`` in the slots' dtype.

    Args:
        slots: g ``(..., S, d)``, each row in one piece.
        vectors: v ``(..., S, d)``, the same; only their directions count.
        strength: b ``(..., S, 1)``; None is 2, a reflection.
        backend: as of `lrt_kernels.depth_read`.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(slots, None)
    check_rows(vectors, "vectors", tuple(slots.shape), slots.device)
    if strength is not None:
        check_rows(strength, "strength", (*slots.shape[:-1], 1), slots.device)
    if choose("slot_compact", backend, slots.device) == "reference":
        return _reflected(slots, vectors, strength)
    flat, _ = _flat(slots, None)
    strength = None if strength is None else strength.contiguous().view(flat.shape[:-1])
    turned: Tensor = _reflect(flat, vectors.contiguous().view(flat.shape), strength)
    return turned.view(slots.shape)


def slot_compact(
    slots: Tensor,
    weights: Sequence[Tensor],
    token: Tensor | None = None,
    eps: float = 1e-6,
    backend: Backend = "auto",
) -> Tensor:
    """z ``(..., S, d)``, the whole of the equation above, in the slots' dtype.

    Args:
        slots: g ``(..., S, d)``, each row in one piece; bfloat16, float16, float32 or float64.
        weights: S projections W_s ``(d, d)``; autocast narrows the products.
        token: m ``(..., d)``, each row in one piece; None is ones.
        eps: inside the root mean square.
        backend: "auto" takes the kernels on a CUDA device and the reference elsewhere. The kernels'
            gradients are the same bits every time, and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(slots, token)
    count, d = slots.shape[-2:]
    if len(weights) != count:
        raise ValueError(f"weights has {len(weights)} projections for {count} slots")
    for s, weight in enumerate(weights):
        check_tensor(weight, f"weights[{s}]", (d, d), slots.device)
    if choose("slot_compact", backend, slots.device) == "reference":
        gated = _gated(slots, token, eps).unbind(-2)
        made = [F.linear(c, w.to(c.dtype)) for c, w in zip(gated, weights, strict=True)]
        return _reflected(slots, torch.stack(made, dim=-2), None)
    flat, token = _flat(slots, token)
    # By slot, so that all projections are one batch of products and nothing is stacked.
    gated_SND = _gate(flat, token, float(eps), True)
    vectors = torch.bmm(gated_SND, torch.stack(list(weights)).to(gated_SND.dtype).mT)
    turned: Tensor = _reflect(flat, vectors.transpose(0, 1), None)
    return turned.view(slots.shape)


def direction(v: Tensor) -> Tensor:
    """v / |v|, ``(..., d)``; zero where v is."""
    tiny = torch.finfo(v.dtype).tiny
    # Squares of very small numbers would vanish. The result does not depend on this scale, so
    # neither does its gradient.
    largest = v.detach().abs().amax(-1, keepdim=True).clamp_min(tiny)
    return F.normalize(v / largest, dim=-1, eps=tiny)


def _check(slots: Tensor, token: Tensor | None) -> None:
    if slots.dim() < 2 or 0 in slots.shape[-2:]:
        raise ValueError(f"slots has shape {tuple(slots.shape)}: give (..., S, d), S and d above 0")
    check_rows(slots, "slots", tuple(slots.shape), slots.device)
    if token is not None:
        check_rows(token, "token", (*slots.shape[:-2], slots.shape[-1]), slots.device)


def _flat(slots: Tensor, token: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Slots ``(N, S, d)`` and token ``(N, d)``, each in one piece."""
    flat = slots.contiguous().view(-1, *slots.shape[-2:])
    return flat, None if token is None else token.contiguous().view(-1, token.shape[-1])


def _gated(slots: Tensor, token: Tensor | None, eps: float) -> Tensor:
    normed = F.rms_norm(slots, slots.shape[-1:], None, eps)
    return normed if token is None else normed * token.unsqueeze(-2)


def _reflected(slots: Tensor, vectors: Tensor, strength: Tensor | None) -> Tensor:
    with no_autocast(slots.device.type):
        dtype = wide(slots.dtype)
        g, n = slots.to(dtype), direction(vectors.to(dtype))
        b = 2.0 if strength is None else strength.to(dtype)
        return (g - b * n * (n * g).sum(-1, keepdim=True)).to(slots.dtype)


@torch.library.custom_op("lrt_kernels::slot_gate", mutates_args=())
def _gate(slots: Tensor, token: Tensor | None, eps: float, by_slot: bool) -> Tensor:
    """c ``(N, S, d)`` of slots ``(N, S, d)`` and token ``(N, d)``, or ``(S, N, d)`` by slot."""
    from lrt_kernels.gpu import slot_compact as kernels

    return kernels.run_gate(slots, token, eps, by_slot)


@torch.library.custom_op("lrt_kernels::slot_gate_backward", mutates_args=())
def _gate_backward(
    grad: Tensor, slots: Tensor, token: Tensor | None, eps: float, by_slot: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of slots and token; the latter is empty where there is none."""
    from lrt_kernels.gpu import slot_compact as kernels

    return kernels.run_gate_backward(grad, slots, token, eps, by_slot)


@torch.library.custom_op("lrt_kernels::slot_reflect", mutates_args=())
def _reflect(slots: Tensor, vectors: Tensor, strength: Tensor | None) -> Tensor:
    """z ``(N, S, d)``; vectors in any order of their first two axes, strength ``(N, S)``."""
    from lrt_kernels.gpu import slot_compact as kernels

    return kernels.run_reflect(slots, vectors, strength)


@torch.library.custom_op("lrt_kernels::slot_reflect_backward", mutates_args=())
def _reflect_backward(
    grad: Tensor, slots: Tensor, vectors: Tensor, strength: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of slots, vectors and strength; the last is empty where there is none."""
    from lrt_kernels.gpu import slot_compact as kernels

    return kernels.run_reflect_backward(grad, slots, vectors, strength)


@_gate.register_fake
def _(slots, token, eps, by_slot):  # type: ignore[no-untyped-def]
    dtype = slots.dtype if token is None else torch.promote_types(slots.dtype, token.dtype)
    n, s, d = slots.shape
    return slots.new_empty((s, n, d) if by_slot else (n, s, d), dtype=dtype)


@_gate_backward.register_fake
def _(grad, slots, token, eps, by_slot):  # type: ignore[no-untyped-def]
    return torch.empty_like(slots), _like(token, slots)


@_reflect.register_fake
def _(slots, vectors, strength):  # type: ignore[no-untyped-def]
    return torch.empty_like(slots)


@_reflect_backward.register_fake
def _(grad, slots, vectors, strength):  # type: ignore[no-untyped-def]
    return torch.empty_like(slots), torch.empty_like(vectors), _like(strength, slots)


def _like(x: Tensor | None, other: Tensor) -> Tensor:
    return other.new_empty(0) if x is None else torch.empty_like(x)


def _save_gate(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    slots, token, ctx.eps, ctx.by_slot = inputs
    ctx.save_for_backward(slots, token)


def _differentiate_gate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    slots, token = ctx.saved_tensors
    d_slots, d_token = _gate_backward(grad.contiguous(), slots, token, ctx.eps, ctx.by_slot)
    return d_slots, None if token is None else d_token, None, None


def _save_reflect(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_reflect(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    slots, vectors, strength = ctx.saved_tensors
    d_slots, d_vectors, d_strength = _reflect_backward(grad.contiguous(), slots, vectors, strength)
    return d_slots, d_vectors, None if strength is None else d_strength


_gate.register_autograd(_differentiate_gate, setup_context=_save_gate)
_reflect.register_autograd(_differentiate_reflect, setup_context=_save_reflect)
