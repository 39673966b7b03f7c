"""A state gated by a token, and normed: the input of a Full-bandwidth stack (arXiv:2608.08888).

With p = W_U z of the carried state and the logits l = W_G N(e) of the token, both made by the
library's matrix products,

    u = p sigmoid(l),      h = u / RMS(u)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.backend import Backend, choose
from lrt_kernels.checks import DTYPES, check_rows
from lrt_kernels.precision import no_autocast


def gated_product(
    product: Tensor,
    logits: Tensor,
    norm_eps: float | None = None,
    dtype: torch.dtype | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """h of the equation above, ``(..., d)``.

    Args:
        product: p ``(..., d)``, each row in one piece; bfloat16, float16, float32 or float64.
        logits: l ``(..., d)``; float32 in mixed precision.
        norm_eps: inside the root mean square; None is no norm.
        dtype: of the result; None is the product's.
        backend: "auto" takes the kernel on a CUDA device and the reference elsewhere. The kernel's
            gradients are the same bits every time, and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype, device or layout.
    """
    if product.dim() < 1 or product.shape[-1] < 1:
        raise ValueError(f"product has shape {tuple(product.shape)}: give (..., d), d above 0")
    check_rows(product, "product", tuple(product.shape), product.device)
    check_rows(logits, "logits", tuple(product.shape), product.device)
    dtype = product.dtype if dtype is None else dtype
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}: give bfloat16, float16, float32 or float64")
    if choose("gated_product", backend, product.device) == "reference":
        with no_autocast(product.device.type):
            gate = torch.sigmoid(logits)
        fused = (product * gate).to(dtype)
        return fused if norm_eps is None else F.rms_norm(fused, fused.shape[-1:], None, norm_eps)
    flat = [x.contiguous().view(-1, x.shape[-1]) for x in (product, logits)]
    out: Tensor = _op(*flat, norm_eps, dtype)
    return out.view(product.shape)


@torch.library.custom_op("lrt_kernels::gated_product", mutates_args=())
def _op(product: Tensor, logits: Tensor, norm_eps: float | None, dtype: torch.dtype) -> Tensor:
    """h ``(N, d)`` of ``(N, d)`` each."""
    from lrt_kernels.gpu import gated_product as kernels

    return kernels.forward(product, logits, norm_eps, dtype)


@torch.library.custom_op("lrt_kernels::gated_product_backward", mutates_args=())
def _op_backward(
    grad: Tensor, product: Tensor, logits: Tensor, norm_eps: float | None
) -> tuple[Tensor, Tensor]:
    """Gradients of product and logits."""
    from lrt_kernels.gpu import gated_product as kernels

    return kernels.backward(grad, product, logits, norm_eps)


@_op.register_fake
def _(product, logits, norm_eps, dtype):  # type: ignore[no-untyped-def]
    return torch.empty_like(product, dtype=dtype)


@_op_backward.register_fake
def _(grad, product, logits, norm_eps):  # type: ignore[no-untyped-def]
    return torch.empty_like(product), torch.empty_like(logits)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    product, logits, ctx.norm_eps, _ = inputs
    ctx.save_for_backward(product, logits)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *_op_backward(grad.contiguous(), *ctx.saved_tensors, ctx.norm_eps), None, None


_op.register_autograd(_differentiate, setup_context=_save)
