"""Kernels of `lrt_kernels.normed_scores`: one pass over the states forward, one or two backward.

Forward a program owns some states, walks over their features once, and adds up the products with
all rows of W beside the sums that the norm needs. Backward a program owns some features of some
rows of W and every G-th block of states: it adds up the gradient of its part of W,

    dx = (r dm) W - (x - c) r^2 (dm . m) / d,      dW = (r dm)^T x

whose G partials are added in their order. With 32 rows or fewer it has all that the states'
gradients need as well and writes them; with more they are a kernel of their own, which reads the
states a second time: all rows at once would not stay in registers.

The products are as exact as float32 and still run on the matrix units: a float32 number is the sum
of three bfloat16 ones, and of the nine products of two such sums the six that float32 can hold are
added up in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.backend import interpreted
from lrt_kernels.gpu.launch import Launch, accumulator, ceil_div, power_of_two
from lrt_kernels.precision import wide

#: Programs of the backward kernel: a few for each of a large card's processors.
PROGRAMS = 512
#: The matrix units' smallest tile, and the largest that stays in registers here.
LEAST, MOST = 16, 64
#: Numbers of a forward program's scores.
TILE = 4096
#: Rows of W that a program of a backward kernel takes at once.
CHUNK = 32


@triton.jit
def _add_product(
    total,
    a,
    b,
    A: tl.constexpr,
    B: tl.constexpr,
    PARTS: tl.constexpr,
    DOT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """total + a b of a sum of A parts and one of B, as far as PARTS parts of the product matter."""
    for i in tl.static_range(A):
        left = a.to(DOT)
        rest = b
        for j in tl.static_range(B):
            right = rest.to(DOT)
            if i + j < PARTS:
                if UPCAST:
                    total = tl.dot(
                        left.to(tl.float32), right.to(tl.float32), total, input_precision="ieee"
                    )
                else:
                    total = tl.dot(
                        left, right, total, input_precision="ieee", out_dtype=total.dtype
                    )
            rest -= right.to(rest.dtype)
        a -= left.to(a.dtype)
    return total


@triton.jit(do_not_specialize=["N"])
def _forward(
    states,
    rows,
    scores,
    inverse,
    mean,
    N,
    K,
    D,
    EPS: tl.constexpr,
    ACC: tl.constexpr,
    X_PARTS: tl.constexpr,
    PARTS: tl.constexpr,
    DOT: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k, feature = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_N, BLOCK_K], ACC)
    square = tl.zeros([BLOCK_N], ACC)
    if mean is not None:
        along = tl.zeros([BLOCK_N], ACC)
    for start in range(0, D, BLOCK_D):
        col = start + feature
        x_in = (row < N)[:, None] & (col < D)[None, :]
        x = tl.load(states + row[:, None] * D + col[None, :], mask=x_in, other=0.0).to(ACC)
        w_in = (col < D)[:, None] & (k < K)[None, :]
        w = tl.load(rows + k[None, :] * D + col[:, None], mask=w_in, other=0.0).to(ACC)
        square += tl.sum(x * x, 1)
        if mean is not None:
            along += tl.sum(x, 1)
        total = _add_product(total, x, w, X_PARTS, PARTS, PARTS, DOT, UPCAST)
    square /= D
    if mean is not None:
        c = along / D
        square -= c * c
        tl.store(mean + row, c, mask=row < N)
    r = 1.0 / tl.sqrt(square + EPS)
    tl.store(inverse + row, r, mask=row < N)
    out_in = (row < N)[:, None] & (k < K)[None, :]
    tl.store(scores + row[:, None] * K + k[None, :], total * r[:, None], mask=out_in)


@triton.jit
def _scaled(grad, scores, inverse, row, k, N, K, D):
    """r dm ``(BLOCK_N, BLOCK_K)``, and r^2 (dm . m) / d of these rows of W."""
    inside = row < N
    at, both = row[:, None] * K + k[None, :], inside[:, None] & (k < K)[None, :]
    dm = tl.load(grad + at, mask=both, other=0.0)
    m = tl.load(scores + at, mask=both, other=0.0)
    r = tl.load(inverse + row, mask=inside, other=0.0)
    return dm * r[:, None], tl.sum(dm * m, 1) * r * r / D


@triton.jit(do_not_specialize=["N", "G"])
def _backward(
    grad,
    states,
    rows,
    scores,
    inverse,
    mean,
    d_states,
    part_rows,
    N,
    K,
    D,
    G,
    ACC: tl.constexpr,
    X_PARTS: tl.constexpr,
    PARTS: tl.constexpr,
    DOT: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles, chunks = tl.cdiv(D, BLOCK_D), tl.cdiv(K, BLOCK_K)
    # Neighbours share states, whose scores they find in the cache.
    g, own = tl.program_id(0) // (tiles * chunks), tl.program_id(0) % (tiles * chunks)
    col = (own % tiles) * BLOCK_D + tl.arange(0, BLOCK_D)
    k = (own // tiles) * BLOCK_K + tl.arange(0, BLOCK_K)
    cols = col < D
    # Features first: what stays, W and its gradient, is then spread over the warps.
    w_at = k[None, :].to(tl.int64) * D + col[:, None]
    w_in = (k < K)[None, :] & cols[:, None]
    if d_states is not None:
        w = tl.load(rows + w_at, mask=w_in, other=0.0).to(ACC)
    d_rows = tl.zeros([BLOCK_D, BLOCK_K], ACC)
    for block in range(g, tl.cdiv(N, BLOCK_N), G):
        row = (block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        dm, shrink = _scaled(grad, scores, inverse, row, k, N, K, D)
        at, x_in = row[None, :] * D + col[:, None], (row < N)[None, :] & cols[:, None]
        x = tl.load(states + at, mask=x_in, other=0.0).to(ACC)
        d_rows = _add_product(d_rows, x, dm, X_PARTS, PARTS, PARTS, DOT, UPCAST)
        if d_states is not None:
            if mean is not None:
                x -= tl.load(mean + row, mask=row < N, other=0.0)[None, :]
            dx = -shrink[None, :] * x
            dx = _add_product(dx, w, tl.trans(dm), PARTS, PARTS, PARTS, DOT, UPCAST)
            tl.store(d_states + at, dx.to(d_states.dtype.element_ty), mask=x_in)
    tl.store(part_rows + g.to(tl.int64) * K * D + w_at, d_rows, mask=w_in)


@triton.jit(do_not_specialize=["N"])
def _states(
    grad,
    states,
    rows,
    scores,
    inverse,
    mean,
    d_states,
    N,
    K,
    D,
    ACC: tl.constexpr,
    PARTS: tl.constexpr,
    DOT: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(D, BLOCK_D)
    row = ((tl.program_id(0) // tiles) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    col = (tl.program_id(0) % tiles) * BLOCK_D + tl.arange(0, BLOCK_D)
    shrink, dx = tl.zeros([BLOCK_N], ACC), tl.zeros([BLOCK_N, BLOCK_D], ACC)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        dm, some = _scaled(grad, scores, inverse, row, k, N, K, D)
        shrink += some
        w_at, w_in = (
            k[:, None].to(tl.int64) * D + col[None, :],
            (k < K)[:, None] & (col < D)[None, :],
        )
        w = tl.load(rows + w_at, mask=w_in, other=0.0).to(ACC)
        dx = _add_product(dx, dm, w, PARTS, PARTS, PARTS, DOT, UPCAST)
    at, inside = row[:, None] * D + col[None, :], (row < N)[:, None] & (col < D)[None, :]
    x = tl.load(states + at, mask=inside, other=0.0).to(ACC)
    if mean is not None:
        x -= tl.load(mean + row, mask=row < N, other=0.0)[:, None]
    dx -= shrink[:, None] * x
    tl.store(d_states + at, dx.to(d_states.dtype.element_ty), mask=inside)


def plan_forward(
    states: Tensor, rows: Tensor, eps: float, centre: bool
) -> tuple[Launch, tuple[Tensor, Tensor, Tensor]]:
    """The launch, and what it fills: scores ``(N, K)``, r ``(N,)``, and c ``(N,)`` or empty.

    Args:
        states: x ``(N, d)``, in one piece.
        rows: W ``(K, d)``, in one piece, gain and centring included; float32 or wider.
        eps: of the norm.
        centre: whether the states are centred.
    """
    n, count = states.shape[0], rows.shape[0]
    scores = rows.new_empty(n, count)
    inverse, mean = rows.new_empty(n), rows.new_empty(n if centre else 0)
    sizes, constants = _sizes(states, rows)
    # All parts of a tile of states are in registers at once.
    split = constants["X_PARTS"] > 1
    if split:
        constants["BLOCK_D"] = max(LEAST, constants["BLOCK_D"] // 2)
    launch = Launch(
        "normed_scores",
        _forward,
        ceil_div(n, constants["BLOCK_N"]),
        {
            **{"states": states, "rows": rows, "scores": scores, "inverse": inverse},
            **{"mean": mean if centre else None, **sizes},
        },
        {"EPS": eps, **constants},
        warps=8 if split else 4,
    )
    return launch, (scores, inverse, mean)


def plan_backward(
    grad: Tensor, states: Tensor, rows: Tensor, saved: tuple[Tensor, Tensor, Tensor]
) -> tuple[list[Launch], Tensor, Tensor]:
    """The launches, the states' gradient, and partials ``(G, K, d)`` of the rows' to be summed.

    Args:
        grad: ``(N, K)``, in one piece.
        states: as in `plan_forward`.
        rows: as in `plan_forward`.
        saved: what that launch fills.
    """
    (n, d), count = states.shape, rows.shape[0]
    scores, inverse, mean = saved
    sizes, constants = _sizes(states, rows)
    constants["BLOCK_K"] = min(CHUNK, constants["BLOCK_K"])
    constants["BLOCK_D"] = max(LEAST, min(MOST, power_of_two(d)))
    constants["BLOCK_N"] = MOST // 2
    tiles, chunks = ceil_div(d, constants["BLOCK_D"]), ceil_div(count, CHUNK)
    blocks = ceil_div(n, constants["BLOCK_N"])
    shares = max(1, min(ceil_div(PROGRAMS, tiles * chunks), blocks))
    d_states, partials = torch.empty_like(states), rows.new_empty(shares, count, d)
    tensors = {
        **{"grad": grad, "states": states, "rows": rows, "scores": scores, "inverse": inverse},
        **{"mean": mean if mean.numel() else None, **sizes},
    }
    by_rows = Launch(
        "normed_scores backward",
        _backward,
        tiles * chunks * shares,
        {
            **{**tensors, "part_rows": partials, "G": shares},
            "d_states": d_states if chunks == 1 else None,
        },
        constants,
    )
    if chunks == 1:
        return [by_rows], d_states, partials
    fewer = {name: value for name, value in constants.items() if name != "X_PARTS"}
    by_states = Launch(
        "normed_scores states",
        _states,
        tiles * blocks,
        {**tensors, "d_states": d_states},
        fewer,
        warps=8,
    )
    return [by_rows, by_states], d_states, partials


def _sizes(states: Tensor, rows: Tensor) -> tuple[dict[str, int], dict]:
    """Integers, and compile-time arguments as the forward kernel takes them."""
    (n, d), count = states.shape, rows.shape[0]
    block_k = max(LEAST, power_of_two(count))
    tile = max(LEAST, min(MOST, TILE // block_k))
    double = wide(states.dtype) == torch.float64
    return {"N": n, "K": count, "D": d}, {
        "ACC": accumulator(states.dtype),
        # A bfloat16 state is its own only part.
        "X_PARTS": 1 if double or states.dtype == torch.bfloat16 else 3,
        "PARTS": 1 if double else 3,
        "DOT": tl.float64 if double else tl.bfloat16,
        # The interpreter multiplies bfloat16 numbers as if they were integers.
        "UPCAST": interpreted() and not double,
        **{"BLOCK_N": tile, "BLOCK_K": block_k, "BLOCK_D": max(LEAST, min(tile, power_of_two(d)))},
    }


def forward(
    states: Tensor, rows: Tensor, eps: float, centre: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs `plan_forward`."""
    launch, filled = plan_forward(states, rows, eps, centre)
    launch.run()
    return filled


def backward(
    grad: Tensor, states: Tensor, rows: Tensor, saved: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Runs `plan_backward` and adds up the partials."""
    launches, d_states, partials = plan_backward(grad, states, rows, saved)
    for launch in launches:
        launch.run()
    return d_states, partials.sum(0)
