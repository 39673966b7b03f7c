"""Kernels of `lrt_kernels.stream_coefficients`: one launch forward, one or two backward.

A program owns some positions and makes all of their coefficients. Sinkhorn's matrices stay in
registers, by the steps of `lrt_kernels.gpu.sinkhorn`; its backward pass balances them once more
first, for the scales that the reverse recurrence needs. Mixtures of P matrices of n^2 numbers are
products and sums over one axis of a tile ``(positions, P, n^2)``. With the logits' gradient dl

    dm = alpha dl,    dbeta = sum over positions of dl,    dalpha = sum over positions, entries dl m

Every program writes its part of the parameters' gradients, and the parts are added in their order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrt_kernels.gpu.launch import Launch, ceil_div, power_of_two
from lrt_kernels.gpu.sinkhorn import reverse, scales, softmax

#: Numbers of one program's carries; of its products with matrices four times as many.
TILE = 1024


@triton.jit
def _sigmoid(x):
    # Large numbers of either sign do not overflow.
    power = tl.exp(-tl.abs(x))
    return tl.where(x < 0, power, 1.0) / (1.0 + power)


@triton.jit
def _logits(scores, scale, bias, row, k, inside, real, COUNT, WHICH: tl.constexpr):
    """Scores k of positions, and their logits."""
    score = tl.load(scores + row * COUNT + k, mask=inside, other=0.0)
    own = tl.load(bias + k, mask=real, other=0.0)
    return score, own + tl.load(scale + WHICH) * score


@triton.jit
def _keep(d_logit, score, d_scores, parts, scale, row, k, inside, real, COUNT, WHICH: tl.constexpr):
    """Stores the scores' gradient and this program's part of their bias'; returns dl m."""
    d_score = tl.load(scale + WHICH) * d_logit
    tl.store(d_scores + row * COUNT + k, d_score, mask=inside)
    own = parts + tl.program_id(0).to(tl.int64) * (COUNT + 3)
    tl.store(own + k, tl.sum(d_logit, 0, keep_dims=True), mask=real)
    return d_logit * score


@triton.jit
def _gates(
    scores,
    scale,
    bias,
    read,
    write,
    row,
    i,
    N,
    SIZE,
    COUNT,
    WRITE: tl.constexpr,
    EPS: tl.constexpr,
):
    """Stores both gates of positions ``(BLOCK_N, 1)``; i is ``(1, BLOCK)``."""
    real = i < SIZE
    inside = (row < N) & real
    _, logit = _logits(scores, scale, bias, row, i, inside, real, COUNT, 0)
    tl.store(read + row * SIZE + i, _sigmoid(logit) + EPS, mask=inside)
    _, logit = _logits(scores, scale, bias, row, SIZE + i, inside, real, COUNT, 1)
    tl.store(write + row * SIZE + i, WRITE * _sigmoid(logit), mask=inside)


@triton.jit
def _gate_back(
    grad,
    scores,
    scale,
    bias,
    d_scores,
    parts,
    row,
    i,
    N,
    SIZE,
    COUNT,
    FACTOR: tl.constexpr,
    WHICH: tl.constexpr,
):
    real = i < SIZE
    inside = (row < N) & real
    k = WHICH * SIZE + i
    score, logit = _logits(scores, scale, bias, row, k, inside, real, COUNT, WHICH)
    gate = _sigmoid(logit)
    d_out = tl.load(grad + row * SIZE + i, mask=inside, other=0.0)
    d_logit = FACTOR * d_out * gate * (1.0 - gate)
    along = _keep(d_logit, score, d_scores, parts, scale, row, k, inside, real, COUNT, WHICH)
    own = parts + tl.program_id(0).to(tl.int64) * (COUNT + 3) + COUNT
    tl.store(own + WHICH, tl.sum(tl.sum(along, 1), 0))


@triton.jit(do_not_specialize=["N", "T"])
def _balance(
    scores,
    scale,
    bias,
    read,
    write,
    carry,
    us,
    vs,
    N,
    SIZE,
    T,
    stride_q,
    stride_p,
    EPS: tl.constexpr,
    WRITE: tl.constexpr,
    READ_EPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    i = tl.arange(0, BLOCK)
    count = SIZE * (SIZE + 2)
    if read is not None:
        gate_row, gate_i = row[:, None], i[None, :]
        _gates(scores, scale, bias, read, write, gate_row, gate_i, N, SIZE, count, WRITE, READ_EPS)
    by_row = (row < N)[:, None] & (i < SIZE)[None, :]
    real = (i < SIZE)[None, :, None] & (i < SIZE)[None, None, :]
    inside = (row < N)[:, None, None] & real
    entry = i[None, :, None] * stride_q + i[None, None, :] * stride_p
    _, logit = _logits(
        scores, scale, bias, row[:, None, None], 2 * SIZE + entry, inside, real, count, 2
    )
    kernel = tl.where(inside, softmax(logit, (i < SIZE)[None, None, :]) + EPS, 0.0)
    vector_at = row[:, None] * SIZE + i[None, :]
    step = N.to(tl.int64) * SIZE
    u, v = scales(kernel, by_row, us, vs, vector_at, step, T, EPS)
    if carry is not None:
        matrices = kernel * u[:, :, None] * v[:, None, :]
        tl.store(carry + row[:, None, None] * SIZE * SIZE + entry, matrices, mask=inside)


@triton.jit(do_not_specialize=["N", "T"])
def _balance_back(
    grad_read,
    grad_write,
    grad_carry,
    scores,
    scale,
    bias,
    us,
    vs,
    d_scores,
    parts,
    N,
    SIZE,
    T,
    stride_q,
    stride_p,
    EPS: tl.constexpr,
    WRITE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    i = tl.arange(0, BLOCK)
    count = SIZE * (SIZE + 2)
    by_row = (row < N)[:, None] & (i < SIZE)[None, :]
    real = (i < SIZE)[None, :, None] & (i < SIZE)[None, None, :]
    inside = (row < N)[:, None, None] & real
    entry = i[None, :, None] * stride_q + i[None, None, :] * stride_p
    carry_row, k = row[:, None, None], 2 * SIZE + entry
    score, logit = _logits(scores, scale, bias, carry_row, k, inside, real, count, 2)
    soft = softmax(logit, (i < SIZE)[None, None, :])
    d_out = tl.load(grad_carry + carry_row * SIZE * SIZE + entry, mask=inside, other=0.0)
    vector_at = row[:, None] * SIZE + i[None, :]
    step = N.to(tl.int64) * SIZE
    d_logit = reverse(d_out, soft, inside, by_row, us, vs, vector_at, step, T, EPS)
    along = _keep(d_logit, score, d_scores, parts, scale, carry_row, k, inside, real, count, 2)
    own = parts + tl.program_id(0).to(tl.int64) * (count + 3) + count
    tl.store(own + 2, tl.sum(tl.sum(tl.sum(along, 2), 1), 0))
    gate_row, gate_i = row[:, None], i[None, :]
    _gate_back(
        grad_read, scores, scale, bias, d_scores, parts, gate_row, gate_i, N, SIZE, count, 1.0, 0
    )
    _gate_back(
        grad_write, scores, scale, bias, d_scores, parts, gate_row, gate_i, N, SIZE, count, WRITE, 1
    )


@triton.jit
def _weights(logit, real):
    """Softmax of logits ``(BLOCK_N, BLOCK_K)``, zero where there is no matrix."""
    logit = tl.where(real, logit, float("-inf"))
    power = tl.exp(logit - tl.max(logit, 1)[:, None])
    return power / tl.sum(power, 1)[:, None]


@triton.jit(do_not_specialize=["N"])
def _mixture(
    scores,
    scale,
    bias,
    matrices,
    read,
    write,
    carry,
    N,
    SIZE,
    K,
    WRITE: tl.constexpr,
    READ_EPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    count = 2 * SIZE + K
    _gates(scores, scale, bias, read, write, row, i, N, SIZE, count, WRITE, READ_EPS)
    k, e = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_E)
    one, real = k[None, :], (k < K)[None, :]
    inside = (row < N) & real
    _, logit = _logits(scores, scale, bias, row, 2 * SIZE + one, inside, real, count, 2)
    weight = _weights(logit, real)
    in_matrix = (k < K)[:, None] & (e < SIZE * SIZE)[None, :]
    at = k[:, None] * SIZE * SIZE + e[None, :]
    matrix = tl.load(matrices + at, mask=in_matrix, other=0.0)
    mixed = tl.sum(weight[:, :, None] * matrix[None, :, :], 1)
    out_in = (row < N) & (e < SIZE * SIZE)[None, :]
    tl.store(carry + row * SIZE * SIZE + e[None, :], mixed, mask=out_in)


@triton.jit(do_not_specialize=["N"])
def _mixture_back(
    grad_read,
    grad_write,
    grad_carry,
    scores,
    scale,
    bias,
    matrices,
    d_scores,
    parts,
    N,
    SIZE,
    K,
    WRITE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    count = 2 * SIZE + K
    k, e = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_E)
    one, real = 2 * SIZE + k[None, :], (k < K)[None, :]
    inside = (row < N) & real
    score, logit = _logits(scores, scale, bias, row, one, inside, real, count, 2)
    weight = _weights(logit, real)
    in_matrix = (k < K)[:, None] & (e < SIZE * SIZE)[None, :]
    at = k[:, None] * SIZE * SIZE + e[None, :]
    matrix = tl.load(matrices + at, mask=in_matrix, other=0.0)
    out_in = (row < N) & (e < SIZE * SIZE)[None, :]
    d_out = tl.load(grad_carry + row * SIZE * SIZE + e[None, :], mask=out_in, other=0.0)
    d_weight = tl.sum(d_out[:, None, :] * matrix[None, :, :], 2)
    d_logit = weight * (d_weight - tl.sum(weight * d_weight, 1)[:, None])
    along = _keep(d_logit, score, d_scores, parts, scale, row, one, inside, real, count, 2)
    own = parts + tl.program_id(0).to(tl.int64) * (count + 3) + count
    tl.store(own + 2, tl.sum(tl.sum(along, 1), 0))
    _gate_back(grad_read, scores, scale, bias, d_scores, parts, row, i, N, SIZE, count, 1.0, 0)
    _gate_back(grad_write, scores, scale, bias, d_scores, parts, row, i, N, SIZE, count, WRITE, 1)


@triton.jit
def _placed(read, write, carry, stream, j, inside, SIZE):
    """Numbers of streams by what they are for: read, write, then each destination."""
    stream += 0 * j
    return (
        tl.load(read + stream, mask=inside & (j == 0), other=0.0)
        + tl.load(write + stream, mask=inside & (j == 1), other=0.0)
        + tl.load(carry + stream * SIZE + j - 2, mask=inside & (j > 1), other=0.0)
    )


@triton.jit
def _bounded(scores, shift, at, j, inside, SIZE, TANH: tl.constexpr):
    """f(m + shift) of scores."""
    x = tl.load(scores + at, mask=inside, other=0.0)
    if shift is not None:
        x += tl.load(shift + j, mask=j < SIZE + 2, other=0.0)
    if TANH:
        x = 2.0 * _sigmoid(2.0 * x) - 1.0
    return x


@triton.jit(do_not_specialize=["N"])
def _adjust(
    scores,
    static_read,
    static_write,
    static_carry,
    mix_scale,
    write_scale,
    shift,
    read,
    write,
    carry,
    N,
    SIZE,
    TANH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None, None]
    s, j = tl.arange(0, BLOCK)[None, :, None], tl.arange(0, BLOCK_W)[None, None, :]
    real = (s < SIZE) & (j < SIZE + 2)
    inside = (row < N) & real
    stream = row * SIZE + s
    x = _bounded(scores, shift, stream * (SIZE + 2) + j, j, inside, SIZE, TANH)
    scale = tl.where(j == 1, tl.load(write_scale), tl.load(mix_scale))
    out = _placed(static_read, static_write, static_carry, s, j, real, SIZE) + scale * x
    tl.store(read + stream + 0 * j, out, mask=inside & (j == 0))
    tl.store(write + stream + 0 * j, out, mask=inside & (j == 1))
    tl.store(carry + stream * SIZE + j - 2, out, mask=inside & (j > 1))


@triton.jit(do_not_specialize=["N"])
def _adjust_back(
    grad_read,
    grad_write,
    grad_carry,
    scores,
    mix_scale,
    write_scale,
    shift,
    d_scores,
    parts,
    N,
    SIZE,
    TANH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None, None]
    s, j = tl.arange(0, BLOCK)[None, :, None], tl.arange(0, BLOCK_W)[None, None, :]
    ways = SIZE + 2
    real = (s < SIZE) & (j < ways)
    inside = (row < N) & real
    stream = row * SIZE + s
    x = _bounded(scores, shift, stream * ways + j, j, inside, SIZE, TANH)
    d_out = _placed(grad_read, grad_write, grad_carry, stream, j, inside, SIZE)
    d_score = tl.where(j == 1, tl.load(write_scale), tl.load(mix_scale)) * d_out
    if TANH:
        d_score *= 1.0 - x * x
    tl.store(d_scores + stream * ways + j, d_score, mask=inside)
    # By stream and way, then by way, then of both scales.
    own = parts + tl.program_id(0).to(tl.int64) * (SIZE * ways + ways + 2)
    tl.store(own + s * ways + j, tl.sum(d_out, 0, keep_dims=True), mask=real)
    own += SIZE * ways
    by_way = tl.sum(tl.sum(d_score, 0, keep_dims=True), 1, keep_dims=True)
    tl.store(own + j, by_way, mask=j < ways)
    along = tl.sum(tl.sum(d_out * x, 0, keep_dims=True), 1, keep_dims=True)
    own += ways
    tl.store(own, tl.sum(tl.sum(tl.sum(tl.where(j == 1, 0.0, along), 2), 1), 0))
    tl.store(own + 1, tl.sum(tl.sum(tl.sum(tl.where(j == 1, along, 0.0), 2), 1), 0))


#: Iterations, eps, and whether the softmax runs along the first axis, as of `lrt_kernels.sinkhorn`.
Balance = tuple[int, float, bool]
Three = tuple[Tensor, Tensor, Tensor]


def plan_forward(
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    matrices: Tensor | None,
    balance: Balance,
    write_scale: float,
    read_eps: float,
) -> tuple[Launch, Three]:
    """The launch, and the coefficients that it fills.

    Arguments as of `lrt_kernels.stream_coefficients._op`.
    """
    n, size = scores.shape[0], _streams(bias, matrices)
    filled = scores.new_empty(n, size), scores.new_empty(n, size), scores.new_empty(n, size, size)
    tensors: dict[str, Tensor | None] = {"scores": scores, "scale": scale, "bias": bias}
    tensors |= dict(zip(("read", "write", "carry"), filled, strict=True))
    gates = {"WRITE": write_scale, "READ_EPS": read_eps}
    if matrices is not None:
        launch = _plan_mixture("stream_coefficients", _mixture, tensors, n, matrices, gates)
    else:
        tensors |= {"us": None, "vs": None}
        launch = _plan_balance("stream_coefficients", _balance, tensors, n, size, balance, gates)
    return launch, filled


def plan_backward(
    grads: Three,
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    matrices: Tensor | None,
    balance: Balance,
    write_scale: float,
) -> tuple[list[Launch], Tensor, Tensor]:
    """The launches, the scores' gradient, and parts ``(programs, 2 n + K + 3)`` to be summed.

    Arguments as of `lrt_kernels.stream_coefficients._op_backward`; the parts are bias', then
    scale's.
    """
    n, size = scores.shape[0], _streams(bias, matrices)
    d_scores = torch.empty_like(scores)
    tensors: dict[str, Tensor | None] = {"scores": scores, "scale": scale, "bias": bias}
    names = ("grad_read", "grad_write", "grad_carry")
    back = tensors | dict(zip(names, grads, strict=True)) | {"d_scores": d_scores}
    name, gates = "stream_coefficients backward", {"WRITE": write_scale}
    if matrices is not None:
        programs = ceil_div(n, _mixtures(matrices)[0])
        parts = scores.new_empty(programs, len(bias) + 3)
        back["parts"] = parts
        return [_plan_mixture(name, _mixture_back, back, n, matrices, gates)], d_scores, parts
    parts = scores.new_empty(ceil_div(n, _positions(size)), len(bias) + 3)
    us, vs = scores.new_empty(2, balance[0], n, size)
    scratch = {"us": us, "vs": vs}
    again = _plan_balance(
        "stream_coefficients scales",
        _balance,
        tensors | scratch | {"read": None, "write": None, "carry": None},
        n,
        size,
        balance,
        gates | {"READ_EPS": 0.0},
    )
    back |= {**scratch, "parts": parts}
    launches = [again, _plan_balance(name, _balance_back, back, n, size, balance, gates)]
    return launches, d_scores, parts


def _streams(bias: Tensor, matrices: Tensor | None) -> int:
    return round((len(bias) + 1) ** 0.5) - 1 if matrices is None else matrices.shape[1]


def _positions(size: int) -> int:
    """Of a program, with tiles that are padded to powers of two."""
    return max(1, TILE // power_of_two(size) ** 2)


def _mixtures(matrices: Tensor) -> tuple[int, int, int]:
    """Positions of a program, and both axes of its tile of products."""
    count, size, _ = matrices.shape
    block_k, block_e = power_of_two(count), power_of_two(size * size)
    return max(1, 4 * TILE // (block_k * block_e)), block_k, block_e


def _plan_balance(
    name: str,
    kernel: object,
    tensors: dict[str, Tensor | None],
    n: int,
    size: int,
    balance: Balance,
    gates: dict[str, float],
) -> Launch:
    iterations, eps, transposed = balance
    block_n = _positions(size)
    strides = (1, size) if transposed else (size, 1)
    return Launch(
        name,
        kernel,
        ceil_div(n, block_n),
        {
            **{**tensors, "N": n, "SIZE": size, "T": iterations},
            **dict(zip(("stride_q", "stride_p"), strides, strict=True)),
        },
        {"EPS": eps, **gates, "BLOCK_N": block_n, "BLOCK": power_of_two(size)},
    )


def _plan_mixture(
    name: str,
    kernel: object,
    tensors: dict[str, Tensor | None],
    n: int,
    matrices: Tensor,
    gates: dict[str, float],
) -> Launch:
    count, size, _ = matrices.shape
    block_n, block_k, block_e = _mixtures(matrices)
    return Launch(
        name,
        kernel,
        ceil_div(n, block_n),
        {**tensors, "matrices": matrices, "N": n, "SIZE": size, "K": count},
        {
            **{**gates, "BLOCK_N": block_n, "BLOCK": power_of_two(size)},
            **{"BLOCK_K": block_k, "BLOCK_E": block_e},
        },
    )


def plan_adjust(
    scores: Tensor, learned: tuple[Tensor, ...], shift: Tensor | None, tanh: bool
) -> tuple[Launch, Three]:
    """The launch, and the coefficients that it fills.

    Args:
        scores: ``(N, n, 2 + n)``, in one piece.
        learned: A, B, C, alpha and beta, each in one piece.
        shift: ``(2 + n,)``, in one piece, or None.
        tanh: whether adjustments are bounded.
    """
    n, size, _ = scores.shape
    filled = scores.new_empty(n, size), scores.new_empty(n, size), scores.new_empty(n, size, size)
    names = ("static_read", "static_write", "static_carry", "mix_scale", "write_scale")
    tensors = dict(zip((*names, "read", "write", "carry"), (*learned, *filled), strict=True))
    return _plan_adjust("stream_adjustments", _adjust, tensors, scores, shift, tanh), filled


def plan_adjust_backward(
    grads: Three,
    scores: Tensor,
    scales: tuple[Tensor, Tensor],
    shift: Tensor | None,
    tanh: bool,
) -> tuple[Launch, Tensor, Tensor]:
    """The launch, the scores' gradient, and parts of the others' to be summed.

    Parts are ``(programs, n (2 + n) + 2 + n + 2)``: of what is learned by stream and way, of the
    shift, of alpha and beta. Arguments as of `plan_adjust`.
    """
    n, size, ways = scores.shape
    d_scores = torch.empty_like(scores)
    parts = scores.new_empty(ceil_div(n, _adjusted(size)), (size + 1) * ways + 2)
    names = ("grad_read", "grad_write", "grad_carry", "mix_scale", "write_scale")
    tensors = dict(zip(names, (*grads, *scales), strict=True))
    tensors |= {"d_scores": d_scores, "parts": parts}
    name = "stream_adjustments backward"
    return _plan_adjust(name, _adjust_back, tensors, scores, shift, tanh), d_scores, parts


def _adjusted(size: int) -> int:
    """Positions of a program."""
    return max(1, TILE // (power_of_two(size) * power_of_two(size + 2)))


def _plan_adjust(
    name: str,
    kernel: object,
    tensors: dict[str, Tensor],
    scores: Tensor,
    shift: Tensor | None,
    tanh: bool,
) -> Launch:
    n, size, _ = scores.shape
    block_n = _adjusted(size)
    blocks = {"BLOCK_N": block_n, "BLOCK": power_of_two(size), "BLOCK_W": power_of_two(size + 2)}
    args: dict[str, Tensor | int | None] = {"N": n, "SIZE": size}
    args |= {**tensors, "scores": scores, "shift": shift}
    return Launch(name, kernel, ceil_div(n, block_n), args, {"TANH": tanh, **blocks})


def forward(
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    matrices: Tensor | None,
    balance: Balance,
    write_scale: float,
    read_eps: float,
) -> Three:
    """Runs `plan_forward`."""
    launch, filled = plan_forward(scores, scale, bias, matrices, balance, write_scale, read_eps)
    launch.run()
    return filled


def backward(
    grads: Three,
    scores: Tensor,
    scale: Tensor,
    bias: Tensor,
    matrices: Tensor | None,
    balance: Balance,
    write_scale: float,
) -> tuple[Tensor, Tensor]:
    """Runs `plan_backward` and adds up the parts."""
    launches, d_scores, parts = plan_backward(
        grads, scores, scale, bias, matrices, balance, write_scale
    )
    for launch in launches:
        launch.run()
    return d_scores, parts.sum(0)


def run_adjust(
    scores: Tensor, learned: tuple[Tensor, ...], shift: Tensor | None, tanh: bool
) -> Three:
    """Runs `plan_adjust`."""
    launch, filled = plan_adjust(scores, learned, shift, tanh)
    launch.run()
    return filled


def run_adjust_backward(
    grads: Three,
    scores: Tensor,
    scales: tuple[Tensor, Tensor],
    shift: Tensor | None,
    tanh: bool,
) -> tuple[Tensor, Tensor]:
    """Runs `plan_adjust_backward` and adds up the parts."""
    launch, d_scores, parts = plan_adjust_backward(grads, scores, scales, shift, tanh)
    launch.run()
    return d_scores, parts.sum(0)
