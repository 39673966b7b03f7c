"""Whether a route's recurrence contracts, and how stable its state is over depth and positions.

Write m^k for what leaves the positions of a row in Jacobi pass k, m* for what leaves them in the
exact recurrence. `diagnose` measures, on plain tensors and for any decoder:

    passes      loss of every pass; change |m^k - m^{k-1}| / |m^k|, and the ratio of two changes
                |m^k - m^{k-1}| / |m^{k-1} - m^{k-2}|, their geometric mean over the later half of
                the passes being the rate
    radius      spectral radius of the temporal Jacobian J_t = dm_t / dm_{t-1} at m*
    state       root mean square entry of the hidden state before each unit, by position
    directions  of the carried vectors, and of a route that gathers the bank what its slots gather
    slots       (`lrt_lab.training.carried`)
    gradient    norm of d loss_T / d m_t and d loss_T / d e_t against the lag T - t, through the
                complete exact recurrence, its attention included

A Jacobi pass as a map of all T positions is nilpotent: pass k leaves positions below k - 1 exact,
whatever the model, so its spectral radius is 0 and T passes always arrive. What contracts or grows
on the way there is the map of one position, and that is what is measured: J_t holds the keys and
values of earlier positions at their exact values and recomputes those of t itself, and changes are
taken over those positions alone that the pass could still change. For m_t = A m_{t-1} + b_t the
radius is that of A, and with a scalar a the ratio is |a| at every pass.

Where nothing travels from position to position there are states and gradients, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lrt_lab.data.batch import IGNORED
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame, View
from lrt_lab.rng import generator
from lrt_lab.schedules import Schedule
from lrt_lab.training.carried import binned, centres, directions, rollout, slots
from lrt_lab.training.loss import token_losses

#: Jacobi passes that are looked at.
PASSES = 32
#: Positions whose Jacobian is looked at, products with each of them, and positions that gradients
#: reach back.
SITES, PRODUCTS, LAGS = 8, 32, 64
#: A rate within so much of 1 is neutral; a loss so much above the best pass's is worse.
NEUTRAL, WORSE = 0.05, 0.01
#: Relative changes below so many units of rounding say nothing any more.
ROUNDING = 100


def diagnose(
    decoder: Decoder, frame: Frame, targets: Tensor, passes: int = PASSES
) -> dict[str, Any]:
    """Everything above as plain numbers and lists; entries that make no sense are None.

    Args:
        decoder: the model, in evaluation mode; its gradients and generators are left alone.
        frame: ids ``(B, T)``.
        targets: the next token of each position ``(B, T)``.
        passes: Jacobi passes, at least 3.
    """
    units, traits = decoder.shape.units, decoder.route.traits
    with torch.no_grad():
        top, left = rollout(decoder, frame)
        exact = mean_loss(decoder, top, targets)
        carried = memory = None
        received = decoder.route.receives(decoder.view(frame, frame.positions, frame.length))
        if traits.recurrent and received.any():
            carried = torch.cat(left, dim=1)
            memory = decoder.memory(carried, frame, frame.positions)
        for _ in range(traits.loops):
            sweep = decoder.sweep(frame, frame.positions, memory, save=range(units + 1))
            if sweep.carried is not None:
                memory = decoder.memory(sweep.carried, frame, frame.positions)
        states = [decoder.backbone.hidden(s, unit) for unit, s in sorted(sweep.saved.items())]
    row: dict[str, Any] = {
        "loss": exact,
        "passes": None,
        "radius": None,
        "state": magnitudes(states, carried),
        "directions": None,
        "slots": None,
        "gradient": gradients(decoder, frame, targets, carried is not None),
    }
    if carried is None:
        return row | {"verdict": "nothing is carried", "beyond": None}
    row["passes"] = jacobi(decoder, frame, targets, passes)
    sites = range(1, frame.length, max(1, (frame.length - 1) // SITES))
    row["radius"] = radius(decoder, frame, carried, sweep.buffers, sites)
    row["directions"] = directions(carried)
    assert memory is not None
    row["slots"] = slots(decoder, frame, memory)
    word, beyond = verdict(row["passes"]["loss"], row["passes"]["size"], row["passes"]["rate"])
    return row | {"verdict": word, "beyond": beyond}


def depth(schedule: Schedule, decoder: Decoder, length: int) -> float:
    """How deep a schedule trains: the most passes of any batch, in token-forwards a position."""
    return max(part.cost(length, decoder) / length for _, part in schedule.mixture())


def mean_loss(decoder: Decoder, hidden: Tensor, targets: Tensor) -> float:
    """Nats per predicted token."""
    losses = token_losses(decoder, hidden, targets)
    return float(losses.sum() / (targets != IGNORED).sum())


def distance(frame: Frame) -> Tensor:
    """Positions since the document's start, ``(B, T)``."""
    start = frame.start()
    column = torch.arange(frame.length, device=start.device).expand_as(start)
    return column - torch.where(start, column, 0).cummax(dim=1).values


@torch.no_grad()
def jacobi(decoder: Decoder, frame: Frame, targets: Tensor, passes: int) -> dict[str, Any]:
    """Losses and changes of Jacobi passes 1 .. K.

    Returns:
        ``loss`` and ``change`` (relative), ``size`` (root mean square) and ``ratio`` of the
        changes, K entries each, None where no earlier pass or no position is left to compare with;
        and their ``rate``.
    """
    since, offset = distance(frame), decoder.route.traits.offset
    found: dict[str, Any] = {"loss": [], "change": [], "size": [], "ratio": []}
    memory = before = None
    for number in range(1, passes + 1):
        out = decoder.sweep(frame, frame.positions, memory)
        carried = out.carried
        assert carried is not None
        change = size = ratio = None
        live = since >= number - 1 - offset
        if before is not None and live.any():
            moved, whole = ((x[live].double()) for x in (carried - before, carried))
            size = float(moved.square().mean().sqrt())
            change = size / max(float(whole.square().mean().sqrt()), torch.finfo(whole.dtype).tiny)
            last = found["size"][-1]
            ratio = size / last if last else None
        found["loss"].append(mean_loss(decoder, out.hidden, targets))
        found["change"].append(change)
        found["size"].append(size)
        found["ratio"].append(ratio)
        memory, before = decoder.memory(carried, frame, frame.positions), carried
    floor = ROUNDING * torch.finfo(decoder.embedding.dtype).eps
    return found | {"rate": rate(found["size"], found["change"], floor)}


def rate(
    sizes: Sequence[float | None], changes: Sequence[float | None], floor: float
) -> float | None:
    """Geometric mean ratio of changes over the later half of the passes that still change anything.

    0 where nothing does from the first feedback pass on; None where fewer than two passes do.
    """
    usable = []
    for size, change in zip(sizes, changes, strict=True):
        if size is None or change is None:
            continue
        if not math.isfinite(size):
            return math.inf
        if change <= floor:
            break
        usable.append(size)
    if not usable:
        return 0.0
    if len(usable) < 2:
        return None
    later = usable[(len(usable) - 1) // 2 :]
    return (later[-1] / later[0]) ** (1 / (len(later) - 1))


def verdict(
    losses: Sequence[float], sizes: Sequence[float | None], rate: float | None
) -> tuple[str, int | None]:
    """In words: contracts, neutral or diverges; and the pass beyond which it diverges.

    Bounded states cannot grow for ever, so a recurrence whose changes stay as large as they are
    also counts as diverging where more passes make the loss worse, by 1 % of the best pass's.

    Args:
        losses: of passes 1, 2, ...
        sizes: of the changes that these passes made.
        rate: at which the changes shrink (below 1) or grow.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        return "diverges", 0
    kept = max(k for k, loss in enumerate(losses, 1) if loss <= (1 + WORSE) * min(finite))
    if len(finite) < len(losses):
        return "diverges", min(k for k, loss in enumerate(losses) if not math.isfinite(loss))
    if rate is None or rate < 1 - NEUTRAL:
        return "contracts", None
    if rate > 1 + NEUTRAL:
        seen = {k: size for k, size in enumerate(sizes, 1) if size is not None}
        return "diverges", min(seen, key=lambda k: seen[k])
    return ("neutral", None) if kept == len(losses) else ("diverges", kept)


def radius(
    decoder: Decoder,
    frame: Frame,
    carried: Tensor,
    buffers: dict[int, Any],
    sites: Sequence[int],
    products: int = PRODUCTS,
) -> dict[str, Any] | None:
    """Spectral radius of J_t at some positions, over all rows: its mean and its largest value.

    Power iteration on J_t transposed, whose eigenvalues are those of J_t: one vector-Jacobian
    product each time, and the geometric mean of the later half of their growths, since a complex
    pair of eigenvalues makes single ones swing.

    Args:
        decoder: the model.
        frame: ids ``(B, T)``.
        carried: m* ``(B, T, ...)``.
        buffers: the mixers' buffers of the exact recurrence.
        sites: the positions t, none 0.
        products: number of products; they tell eigenvalues apart that differ by 1 / products.
    """
    found = []
    for t in sites:
        here, before = range(t, t + 1), carried[:, t - 1 : t].detach().requires_grad_()
        with torch.enable_grad():
            memory = decoder.receive(before, decoder.view(frame, here, frame.length))
            after = decoder.sweep(frame, here, memory, buffers).carried
        assert after is not None
        drawn = torch.randn(after.shape, generator=generator(1, "contraction", t))
        vector = drawn.to(after.device, after.dtype)
        growths = []
        for _ in range(products):
            (vector,) = torch.autograd.grad(after, before, vector, retain_graph=True)
            growth = vector.flatten(1).norm(dim=1)
            growths.append(growth.double())
            shape = (-1, *[1] * (vector.dim() - 1))
            vector = vector / growth.clamp_min(torch.finfo(growth.dtype).tiny).view(shape)
        later = torch.stack(growths[products // 2 :]).log().mean(0).exp()
        found += later[memory.present[:, 0]].tolist()
    if not found:
        return None
    return {"mean": sum(found) / len(found), "largest": max(found), "samples": len(found)}


def magnitudes(states: Sequence[Tensor], carried: Tensor | None) -> dict[str, Any]:
    """Root mean square entries by position, of the state before each unit and of what is carried.

    Args:
        states: ``(B, T, d)`` before units 0 .. U, U standing for the head.
        carried: ``(B, T, ...)``.

    Returns:
        ``position``, centres of bins; ``units``, a list of bins for each unit; ``carried``, a list
        of bins.
    """
    return {
        "position": centres(states[0].shape[1]),
        "units": [binned(state) for state in states],
        "carried": None if carried is None else binned(carried),
    }


def gradients(decoder: Decoder, frame: Frame, targets: Tensor, memory: bool) -> dict[str, Any]:
    """How far back a late loss reaches, over the first `LAGS` positions of the rows.

    Returns:
        ``embedding``, the norm for each lag from 0 on (mean over rows); ``memory``, the same for
        what left the position that many before, from lag 1 on, or None.
    """
    frame = frame.head(min(frame.length, LAGS))
    embedding = decoder.view(frame, frame.positions, frame.length).embedding
    assert embedding is not None
    embedding = embedding.detach().requires_grad_()
    with torch.enable_grad(), embedded(decoder, embedding):
        top, left = rollout(decoder, frame)
        loss = token_losses(decoder, top, targets[:, : frame.length])[:, -1].sum()
    inputs = [embedding, *left[:-1]] if memory else [embedding]
    found = torch.autograd.grad(loss, inputs, materialize_grads=True)

    def norm(gradient: Tensor) -> float:
        return float(gradient.double().flatten(1).norm(dim=1).mean())

    by_position = [norm(part) for part in found[0].split(1, dim=1)]
    return {
        "embedding": by_position[::-1],
        "memory": [norm(gradient) for gradient in found[1:]][::-1] if memory else None,
    }


@contextmanager
def embedded(decoder: Decoder, embedding: Tensor) -> Iterator[None]:
    """Let the decoder's views take their raw token embeddings from ``(B, T, d)``."""
    view = decoder.view

    def taken(frame: Frame, positions: range, reach: int) -> View:
        at = view(frame, positions, reach)
        at.embedding = embedding[:, positions.start : positions.stop : positions.step]
        return at

    # An attribute of the instance hides the method, and goes away again.
    vars(decoder)["view"] = taken
    try:
        yield
    finally:
        del vars(decoder)["view"]
