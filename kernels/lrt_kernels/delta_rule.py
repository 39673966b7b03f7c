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

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels.precision import no_autocast, wide

CHUNKS = (16, 32, 64)


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
) -> tuple[Tensor, Tensor]:
    """Outputs ``(B, T, H, V)`` and the state after them, in the form that is fastest here.

    Args:
        q: queries.
        k: keys, of unit length.
        v: values.
        beta: strength of each write.
        log_decay: g, at most 0; None is no decay.
        state: before the first position; None is zero.
        start: where a document starts; None is nowhere.
        scale: of the outputs.
        chunk: positions that are solved at once, 16, 32 or 64.
    """
    if chunk not in CHUNKS:
        raise ValueError(f"chunk={chunk}: give one of {', '.join(map(str, CHUNKS))}")
    if q.shape[1] > 1:
        return delta_rule_chunkwise(q, k, v, beta, log_decay, state, start, scale, chunk)
    return delta_rule_recurrent(q, k, v, beta, log_decay, state, start, scale)


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
