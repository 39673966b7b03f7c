"""Kernels of `lrt_kernels.gated_product`: one pass over the rows each.

With s = sigmoid(l), u = p s and rho = rsqrt(mean u^2 + eps),

    du = rho (do - u rho^2 mean(do u)),      dp = du s,      dl = du p s (1 - s)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import Launch, accumulator, ceil_div, power_of_two, rows_per_program
from lrt_kernels.precision import wide

#: Numbers of one program: eight a thread.
TILE = 2048


@triton.jit(do_not_specialize=["N"])
def _forward(
    product,
    logits,
    out,
    N,
    D,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    inside = (row < N) & (col < D)
    at = row * D + col
    u = tl.load(product + at, mask=inside, other=0.0).to(ACC)
    u /= 1.0 + tl.exp(-tl.load(logits + at, mask=inside, other=0.0).to(ACC))
    if EPS is not None:
        u /= tl.sqrt(tl.sum(u * u, 1) / D + EPS)[:, None]
    tl.store(out + at, u.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N"])
def _backward(
    grad,
    product,
    logits,
    d_product,
    d_logits,
    N,
    D,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    col = tl.arange(0, BLOCK_D)[None, :]
    inside = (row < N) & (col < D)
    at = row * D + col
    du = tl.load(grad + at, mask=inside, other=0.0).to(ACC)
    p = tl.load(product + at, mask=inside, other=0.0).to(ACC)
    s = 1.0 / (1.0 + tl.exp(-tl.load(logits + at, mask=inside, other=0.0).to(ACC)))
    u = p * s
    if EPS is not None:
        rho = 1.0 / tl.sqrt(tl.sum(u * u, 1) / D + EPS)[:, None]
        du = rho * (du - u * (tl.sum(du * u, 1)[:, None] * rho * rho / D))
    tl.store(d_product + at, (du * s).to(d_product.dtype.element_ty), mask=inside)
    tl.store(d_logits + at, (du * u * (1.0 - s)).to(d_logits.dtype.element_ty), mask=inside)


def _plan(name: str, kernel: object, like: Tensor, norm_eps: float | None, args: dict) -> Launch:
    n, d = like.shape
    block_d = power_of_two(d)
    block_n = rows_per_program(block_d, TILE)
    return Launch(
        name,
        kernel,
        ceil_div(n, block_n),
        {**args, "N": n, "D": d},
        {
            **{"EPS": norm_eps, "ACC": accumulator(wide(like.dtype))},
            **{"BLOCK_N": block_n, "BLOCK_D": block_d},
        },
        warps=8 if block_n * block_d >= TILE else 4,
    )


def plan_forward(
    product: Tensor, logits: Tensor, norm_eps: float | None, dtype: torch.dtype
) -> tuple[Launch, Tensor]:
    """The launch, and h ``(N, d)`` that it fills."""
    out = torch.empty_like(product, dtype=dtype)
    args = {"product": product, "logits": logits, "out": out}
    return _plan("gated_product", _forward, product, norm_eps, args), out


def plan_backward(
    grad: Tensor, product: Tensor, logits: Tensor, norm_eps: float | None
) -> tuple[Launch, tuple[Tensor, Tensor]]:
    """The launch, and the gradients of product and logits."""
    grads = torch.empty_like(product), torch.empty_like(logits)
    args = {
        **{"grad": grad, "product": product, "logits": logits},
        **{"d_product": grads[0], "d_logits": grads[1]},
    }
    return _plan("gated_product backward", _backward, product, norm_eps, args), grads


def forward(product: Tensor, logits: Tensor, norm_eps: float | None, dtype: torch.dtype) -> Tensor:
    """Runs `plan_forward`."""
    launch, out = plan_forward(product, logits, norm_eps, dtype)
    launch.run()
    return out


def backward(
    grad: Tensor, product: Tensor, logits: Tensor, norm_eps: float | None
) -> tuple[Tensor, Tensor]:
    """Runs `plan_backward`."""
    launch, grads = plan_backward(grad, product, logits, norm_eps)
    launch.run()
    return grads
