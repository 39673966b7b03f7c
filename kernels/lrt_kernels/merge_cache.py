"""T2MLR's merge of a cache into the residual input, and the cache's update (arXiv:2607.15178).

With the state h, the projected cache P = W_rec R_{t-1}, the logits l of two gates, made by the
library's matrix products, and one strength gamma each,

    h'  = h + tanh(gamma_cur) sigmoid(l_cur) h + tanh(gamma_rec) sigmoid(l_rec) P
    R_t = (h + R_{t-1}) / RMS(h + R_{t-1})

The public release holds the factor 1 / RMS within 1/5 and 5 and gives it no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import check_rows, check_tensor
from lrt_kernels.precision import no_autocast, wide

#: The release keeps the factor of its norm within these bounds.
SHRINK, GROW = 1 / 5, 5.0


def merge_cache(
    h: Tensor,
    projected: Tensor,
    current: Tensor,
    recurrent: Tensor,
    current_strength: Tensor,
    recurrent_strength: Tensor,
    backend: Backend = "auto",
) -> Tensor:
    """h' of the equation above, ``(..., d)`` in the state's dtype.

    Args:
        h: the state ``(..., d)``, each row in one piece; bfloat16, float16, float32 or float64.
        projected: P ``(..., d)``.
        current, recurrent: logits l of both gates, ``(..., d)``; float32 in mixed precision.
        current_strength, recurrent_strength: gamma ``(1,)``.
        backend: "auto" takes the kernel on a CUDA device and the reference elsewhere. The kernel's
            gradients are the same bits every time, and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(h, "h")
    rows = {"projected": projected, "current": current, "recurrent": recurrent}
    for name, x in rows.items():
        check_rows(x, name, tuple(h.shape), h.device)
    strengths = {"current_strength": current_strength, "recurrent_strength": recurrent_strength}
    for name, x in strengths.items():
        check_tensor(x, name, (1,), h.device)
    if choose("merge_cache", backend, h.device) == "reference":
        with no_autocast(h.device.type):
            dtype = wide(h.dtype)
            own = _gate(current_strength.to(dtype), current.to(dtype))
            other = _gate(recurrent_strength.to(dtype), recurrent.to(dtype))
            return (h + own * h + other * projected).to(h.dtype)
    flat = [_flat(x) for x in (h, projected, current, recurrent)]
    merged: Tensor = _merge(*flat, current_strength, recurrent_strength)
    return merged.view(h.shape)


def update_cache(
    h: Tensor,
    cache: Tensor | None = None,
    clamped: bool = False,
    eps: float = 1e-6,
    backend: Backend = "auto",
) -> Tensor:
    """R_t of the equation above, ``(..., d)`` in the wider dtype of the two.

    Args:
        h: the state ``(..., d)``, each row in one piece.
        cache: R_{t-1} ``(..., d)``; None is zero.
        clamped: the release's factor in the place of 1 / RMS.
        eps: inside the root mean square.
        backend: as of `merge_cache`.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    _check(h, "h")
    if cache is not None:
        check_rows(cache, "cache", tuple(h.shape), h.device)
    if choose("merge_cache", backend, h.device) == "reference":
        return _updated(h, cache, clamped, eps)
    updated: Tensor = _update(_flat(h), None if cache is None else _flat(cache), clamped, eps)
    return updated.view(h.shape)


def _check(x: Tensor, name: str) -> None:
    if x.dim() < 1 or x.shape[-1] < 1:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: give (..., d), d above 0")
    check_rows(x, name, tuple(x.shape), x.device)


def _flat(x: Tensor) -> Tensor:
    return x.contiguous().view(-1, x.shape[-1])


def _gate(strength: Tensor, logits: Tensor) -> Tensor:
    return torch.tanh(strength) * torch.sigmoid(logits)


def _updated(h: Tensor, cache: Tensor | None, clamped: bool, eps: float) -> Tensor:
    if cache is not None:
        h = h + cache
    if not clamped:
        return F.rms_norm(h, h.shape[-1:], None, eps)
    square = h.detach().to(wide(h.dtype)).square().mean(-1, keepdim=True)
    return h * torch.rsqrt(square + eps).clamp(SHRINK, GROW).to(h.dtype)


@torch.library.custom_op("lrt_kernels::merge_cache", mutates_args=())
def _merge(
    h: Tensor,
    projected: Tensor,
    current: Tensor,
    recurrent: Tensor,
    current_strength: Tensor,
    recurrent_strength: Tensor,
) -> Tensor:
    """h' ``(N, d)``; arguments ``(N, d)`` and ``(1,)``."""
    from lrt_kernels.gpu import merge_cache as kernels

    return kernels.run_merge(h, projected, current, recurrent, current_strength, recurrent_strength)


@torch.library.custom_op("lrt_kernels::merge_cache_backward", mutates_args=())
def _merge_backward(
    grad: Tensor,
    h: Tensor,
    projected: Tensor,
    current: Tensor,
    recurrent: Tensor,
    current_strength: Tensor,
    recurrent_strength: Tensor,
) -> list[Tensor]:
    """Gradients of all six arguments of `_merge`."""
    from lrt_kernels.gpu import merge_cache as kernels

    return kernels.run_merge_backward(
        grad, h, projected, current, recurrent, current_strength, recurrent_strength
    )


@torch.library.custom_op("lrt_kernels::update_cache", mutates_args=())
def _update(h: Tensor, cache: Tensor | None, clamped: bool, eps: float) -> Tensor:
    """R_t ``(N, d)``."""
    from lrt_kernels.gpu import merge_cache as kernels

    return kernels.run_update(h, cache, clamped, eps)


@torch.library.custom_op("lrt_kernels::update_cache_backward", mutates_args=())
def _update_backward(
    grad: Tensor, h: Tensor, cache: Tensor | None, clamped: bool, eps: float
) -> Tensor:
    """Gradient of the sum of state and cache, in the dtype of ``grad``."""
    from lrt_kernels.gpu import merge_cache as kernels

    return kernels.run_update_backward(grad, h, cache, clamped, eps)


@_merge.register_fake
def _(h, *others):  # type: ignore[no-untyped-def]
    return torch.empty_like(h)


@_merge_backward.register_fake
def _(grad, *given):  # type: ignore[no-untyped-def]
    return [torch.empty_like(x) for x in given]


@_update.register_fake
def _(h, cache, clamped, eps):  # type: ignore[no-untyped-def]
    dtype = h.dtype if cache is None else torch.promote_types(h.dtype, cache.dtype)
    return torch.empty_like(h, dtype=dtype)


@_update_backward.register_fake
def _(grad, h, cache, clamped, eps):  # type: ignore[no-untyped-def]
    return torch.empty_like(grad)


def _save_merge(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_merge(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return tuple(_merge_backward(grad.contiguous(), *ctx.saved_tensors))


def _save_update(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, cache, ctx.clamped, ctx.eps = inputs
    ctx.save_for_backward(h, cache)


def _differentiate_update(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    h, cache = ctx.saved_tensors
    both = _update_backward(grad.contiguous(), h, cache, ctx.clamped, ctx.eps)
    return both.to(h.dtype), None if cache is None else both.to(cache.dtype), None, None


_merge.register_autograd(_differentiate_merge, setup_context=_save_merge)
_update.register_autograd(_differentiate_update, setup_context=_save_update)
