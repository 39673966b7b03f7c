"""The delta rule, with and without decay (arXiv:2102.11174, 2406.06484, 2412.06464).

Per head a matrix state S ``(K, V)`` maps keys to values. With decay a_t = exp(g_t) and strength b_t

    S_t = a_t S_{t-1} + b_t k_t (v_t - (a_t S_{t-1})^T k_t)^T,      o_t = scale S_t^T q_t

Without decay g is None, which equals g = 0. The transition a (I - b k k^T) has the eigenvalues
a (1 - b |k|^2) and a: with unit keys it contracts for b in [0, 2].

The chunkwise form solves C steps at once. Inside a chunk, with D_ij = exp(sum of g over j < l <= i)
for j <= i, e_i = exp(sum of g over l <= i), and the state H before the chunk:

    T     = (I + tril(diag(b) (K K^T * D), -1))^-1
    R     = T diag(b) V - T diag(b e) K H             what each step writes
    O     = scale (diag(e) Q H + (Q K^T * D) R)
    H'    = e_C H + (diag(D_C) K)^T R

Sums of g are taken from j up for every j, never as a difference of two long sums: so a weak decay
after a strong one keeps its digits, and masked entries never reach exp.

Where ``start`` is True the state before that position is forgotten. All of it runs in float32 or
wider and is rounded once at the end; states are float32 or wider.

Shapes: q, k ``(B, T, H, K)``; v ``(B, T, H, V)``; beta, log_decay ``(B, T, H)``; start ``(B, T)``
bool; states ``(B, H, K, V)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.backend import Backend, choose, interpreted
from lrt_kernels.checks import check_tensor
from lrt_kernels.precision import no_autocast, wide

CHUNKS = (16, 32, 64)
#: Features of a key that the kernels have room for.
MOST_FEATURES = 256


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    state: Tensor | None = None,
    start: Tensor | None = None,
    scale: float = 1.0,
    chunk: int = 32,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Outputs ``(B, T, H, V)`` and the state after them, in the form that is fastest here.

    Args:
        q: queries.
        k: keys, of unit length.
        v: values; they and all others bfloat16, float16, float32 or float64.
        beta: strength of each write.
        log_decay: g, at most 0; None is no decay.
        state: before the first position; None is zero.
        start: where a document starts; None is nowhere.
        scale: of the outputs.
        chunk: positions that are solved at once, 16, 32 or 64.
        backend: "auto" takes the kernels on a CUDA device where a key has at most 256 features and
            q, k and v are bfloat16, which is what they multiply, or where a single position needs
            no gradient; elsewhere the reference. "triton" multiplies wider inputs too, but slowly.
            The kernels add up in float32 or wider. Their gradients are the same bits every time,
            and cannot be differentiated again.

    Raises:
        ValueError: naming an argument of the wrong shape, dtype or device, and ``backend`` where
            kernels are asked for that cannot run.
    """
    _check(q, k, v, beta, log_decay, state, start)
    if chunk not in CHUNKS:
        raise ValueError(f"chunk={chunk}: give one of {', '.join(map(str, CHUNKS))}")
    given = (q, k, v, beta, log_decay, state, start)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
    decodes = q.shape[1] == 1 and not keep
    if _runs_by(backend, decodes, q, k, v) == "reference":
        if q.shape[1] > 1:
            return delta_rule_chunkwise(q, k, v, beta, log_decay, state, start, scale, chunk)
        return delta_rule_recurrent(q, k, v, beta, log_decay, state, start, scale)
    dense = [x if x is None else x.contiguous() for x in given]
    if decodes:
        out, last = _step(*dense, float(scale))
    else:
        out, last, *_ = _op(*dense, float(scale), chunk, keep)
    return out, last


def delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """One position: inputs as above without the axis T, in the state's dtype."""
    if log_decay is not None:
        state = state * log_decay.exp()[..., None, None]
    known = (k.unsqueeze(-2) @ state).squeeze(-2)
    state = state + k.unsqueeze(-1) * (beta.unsqueeze(-1) * (v - known)).unsqueeze(-2)
    return scale * (q.unsqueeze(-2) @ state).squeeze(-2), state


def delta_rule_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    state: Tensor | None = None,
    start: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The recurrence position by position: the truth that the chunkwise form is held to."""
    narrow, dtype = v.dtype, wide(v.dtype)
    state = _initial(q, v, state, dtype)
    out = []
    with no_autocast(q.device.type):
        q, k, v, beta = (x.to(dtype) for x in (q, k, v, beta))
        for t in range(q.shape[1]):
            g = None if log_decay is None else log_decay[:, t].to(dtype)
            if start is not None:
                state = state.masked_fill(start[:, t, None, None, None], 0.0)
            o, state = delta_rule_step(q[:, t], k[:, t], v[:, t], beta[:, t], g, state, scale)
            out.append(o)
    return torch.stack(out, dim=1).to(narrow), state


def delta_rule_chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    state: Tensor | None = None,
    start: Tensor | None = None,
    scale: float = 1.0,
    chunk: int = 32,
) -> tuple[Tensor, Tensor]:
    """The chunkwise WY form; any T, any chunk."""
    narrow, dtype, length = v.dtype, wide(v.dtype), q.shape[1]
    state = _initial(q, v, state, dtype)
    size = min(chunk, length)
    with no_autocast(q.device.type):
        # (B, H, chunks, C, features). Zero keys and strengths past the end change nothing.
        q, k, v = (_split(x.to(dtype), size) for x in (q, k, v))
        beta = _split(beta.to(dtype).unsqueeze(-1), size)
        g = None if log_decay is None else _split(log_decay.to(dtype).unsqueeze(-1), size)
        decay, entry = _decays(q, g, None if start is None else _split_start(start, size))
        written = beta * k
        lower = (written @ k.mT * decay).tril(-1)
        eye = torch.eye(size, dtype=dtype, device=q.device)
        solved = torch.linalg.solve_triangular(
            lower + eye, eye.expand_as(lower), upper=False, unitriangular=True
        )
        fresh = solved @ (beta * v)
        stale = solved @ (written * entry)
        keys = k * decay[..., -1:, :].mT
        states, writes = [], []
        # Unbound once: the gradient of an index would be as large as all chunks, for each of them.
        chunks = (x.unbind(2) for x in (fresh, stale, keys.mT, entry[..., -1:, :]))
        for new, old, key, left in zip(*chunks, strict=True):
            states.append(state)
            write, state = chunk_step(state, new, old, key, left)
            writes.append(write)
        out = (q * entry) @ torch.stack(states, 2) + (q @ k.mT * decay) @ torch.stack(writes, 2)
    out = scale * out.flatten(2, 3)[:, :, :length].transpose(1, 2)
    return out.to(narrow), state


def chunk_step(
    state: Tensor, fresh: Tensor, stale: Tensor, keys: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """R of one chunk and the state after it: T diag(b) V, T diag(b e) K, keys and e_C are given."""
    write = fresh - stale @ state
    return write, left * state + keys @ write


def _initial(q: Tensor, v: Tensor, state: Tensor | None, dtype: torch.dtype) -> Tensor:
    if state is not None:
        return state.to(dtype)
    return q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=dtype)


def _split(x: Tensor, size: int) -> Tensor:
    """``(B, T, H, D)`` in chunks, ``(B, H, chunks, C, D)``, zeros past the end."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % size))
    return x.unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4).contiguous()


def _split_start(start: Tensor, size: int) -> Tensor:
    """Documents begun since the chunk's first position, itself counted: ``(B, 1, chunks, C)``."""
    start = F.pad(start, (0, -start.shape[1] % size))
    return start.unflatten(1, (-1, size)).cumsum(-1).unsqueeze(1)


def _decays(q: Tensor, g: Tensor | None, begun: Tensor | None) -> tuple[Tensor, Tensor]:
    """D ``(..., C, C)``, zero above the diagonal and across documents, and e ``(..., C, 1)``."""
    size = q.shape[-2]
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if begun is not None:
        seen = seen & (begun.unsqueeze(-1) == begun.unsqueeze(-2))
    if g is None:
        decay, entry = seen.to(q.dtype), torch.ones_like(q[..., :1])
    else:
        later = torch.ones_like(seen[..., :size, :size]).tril(-1)
        sums = torch.where(later, g, 0.0).cumsum(-2)
        decay = sums.masked_fill(~seen, -torch.inf).exp()
        entry = g.cumsum(-2).exp()
    if begun is not None:
        entry = entry.masked_fill((begun > 0).unsqueeze(-1), 0.0)
    return decay, entry


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    start: Tensor | None,
) -> None:
    shape, device = q.shape, q.device
    if len(shape) != 4 or 0 in shape[1:]:
        raise ValueError(f"q has shape {tuple(shape)}: give (B, T, H, K), T, H and K above 0")
    batch, length, heads, features = shape
    check_tensor(q, "q", tuple(shape), device)
    check_tensor(k, "k", tuple(shape), device)
    if v.dim() != 4 or v.shape[3] == 0:
        raise ValueError(f"v has shape {tuple(v.shape)}: give (B, T, H, V), V above 0")
    check_tensor(v, "v", (batch, length, heads, v.shape[3]), device)
    check_tensor(beta, "beta", (batch, length, heads), device)
    if log_decay is not None:
        check_tensor(log_decay, "log_decay", (batch, length, heads), device)
    if state is not None:
        check_tensor(state, "state", (batch, heads, features, v.shape[3]), device)
    if start is not None:
        check_tensor(start, "start", (batch, length), device, (torch.bool,))


def _runs_by(backend: Backend, decodes: bool, q: Tensor, k: Tensor, v: Tensor) -> str:
    """The implementation of one call: the one place that says what the kernels leave alone.

    Products of wider numbers than bfloat16 would not fit into registers.
    """
    chosen = choose("delta_rule", backend, q.device)
    if chosen == "reference":
        return chosen
    if q.shape[3] > MOST_FEATURES:
        if backend == "triton":
            raise ValueError(
                f"backend='triton': k has {q.shape[3]} features, and at most {MOST_FEATURES} fit"
            )
        return "reference"
    return chosen if backend == "triton" or decodes or _narrow(q, k, v) else "reference"


def _narrow(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return q.dtype == k.dtype == v.dtype == torch.bfloat16


@torch.library.custom_op("lrt_kernels::delta_rule", mutates_args=())
def _op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    start: Tensor | None,
    scale: float,
    chunk: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs, the state after them, and what the gradient needs, by chunk (`_empty`)."""
    from lrt_kernels.gpu import delta_rule as kernels

    inputs = kernels.Inputs(q, k, v, beta, log_decay, state, start)
    out, last, *kept = filled = _empty(q, k, v, chunk, keep)
    kernels.forward(inputs, out, last, kernels.Kept(*kept), scale)
    return filled


@torch.library.custom_op("lrt_kernels::delta_rule_backward", mutates_args=())
def _op_backward(
    d_out: Tensor,
    d_last: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    start: Tensor | None,
    kept: Sequence[Tensor],
    scale: float,
) -> list[Tensor]:
    """Gradients of q, k, v, beta, log_decay and state; empty where there is none of the latter."""
    from lrt_kernels.gpu import delta_rule as kernels

    inputs = kernels.Inputs(q, k, v, beta, log_decay, state, start)
    return kernels.backward(d_out, d_last, inputs, kernels.Kept(*kept), scale)


@torch.library.custom_op("lrt_kernels::delta_rule_step", mutates_args=())
def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    start: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The output of one position, T = 1, and the state after it; it has no gradient."""
    from lrt_kernels.gpu import delta_rule as kernels

    out, last, *_ = _empty(q, k, v, 1, False)
    inputs = kernels.Inputs(q, k, v, beta, log_decay, state, start)
    kernels.step(inputs, out, last, scale)
    return out, last


@_op.register_fake
def _(q, k, v, beta, log_decay, state, start, scale, chunk, keep):  # type: ignore[no-untyped-def]
    return _empty(q, k, v, chunk, keep)


@_op_backward.register_fake
def _(d_out, d_last, q, k, v, beta, log_decay, state, start, kept, scale):  # type: ignore[no-untyped-def]
    inputs = (q, k, v, beta, log_decay, state)
    return [q.new_empty(0) if x is None else torch.empty_like(x) for x in inputs]


@_step.register_fake
def _(q, k, v, beta, log_decay, state, start, scale):  # type: ignore[no-untyped-def]
    return _empty(q, k, v, 1, False)[:2]


def _empty(
    q: Tensor, k: Tensor, v: Tensor, chunk: int, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for outputs, for the state after them, and for what is known of N chunks.

    That is states before each ``(B, H, N, K, V)`` and R ``(B, H, N, C, V)``, both empty where no
    backward will ask for them, T and Q K^T * D ``(B, H, N, C, C)``, e and D_C ``(B, H, N, C)``.
    States are kept as they are multiplied, in bfloat16 where the inputs are.
    """
    (batch, length, heads, features), values = q.shape, v.shape[3]
    rule, numbers = wide(v.dtype), _multiplied(q, k, v)
    chunks = -(-length // chunk)
    own = (batch, heads, chunks)
    return (
        torch.empty_like(v),
        v.new_empty(batch, heads, features, values, dtype=rule),
        v.new_empty((*own, features, values) if keep else (0,), dtype=numbers),
        v.new_empty((*own, chunk, values) if keep else (0,), dtype=numbers),
        v.new_empty(*own, chunk, chunk, dtype=numbers),
        v.new_empty(*own, chunk, chunk, dtype=numbers),
        v.new_empty(*own, chunk, dtype=rule),
        v.new_empty(*own, chunk, dtype=rule),
    )


def _multiplied(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    """What the kernels' matrix products take: bfloat16 where all three are, else float32 or wider.

    Float16 has no room for states. Triton's interpreter cannot multiply bfloat16.
    """
    return torch.bfloat16 if _narrow(q, k, v) and not interpreted() else wide(v.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, _, _ = inputs
    _, _, *kept = output
    ctx.mark_non_differentiable(*kept)
    ctx.save_for_backward(*tensors, *kept)


def _differentiate(ctx: Any, d_out: Tensor, d_last: Tensor, *_: Any) -> tuple[Any, ...]:
    tensors, kept = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
    *found, d_decay, d_state = _op_backward(
        d_out.contiguous(), d_last.contiguous(), *tensors, kept, ctx.scale
    )
    log_decay, state = tensors[4:6]
    return (
        *found,
        None if log_decay is None else d_decay,
        None if state is None else d_state,
        *(None,) * 4,
    )


_op.register_autograd(_differentiate, setup_context=_save)
