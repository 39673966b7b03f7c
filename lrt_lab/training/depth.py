"""How state travels through the depth of a model: what one sweep over a fixed batch shows of it.

Everything is measured on plain tensors, so a notebook can call `diagnose` on any decoder:

    state     root mean square entry of `Backbone.hidden` before each unit, and after the last one
    gradient  norm of dL/dy_u for each unit's output y_u, with L the mean loss of the batch
    kernel    how much of the embedding, of a route's sources and of each earlier output reaches
              each unit, and the head
    residual  the share of that read which no such mixture explains
    weights   the backbone's own read weights over its sources, one list per way (query, key, value
              and residual, or heads); empty before a unit that has none
    cosine    mean pairwise cosine of its streams, where it has several
    forward, backward    gain of the carries' product from unit 0 to each unit
    arriving, leaving    how far each carry is from doubly stochastic

Units count from 0; a list that ends with the head has one entry more than there are units. What a
route injects is no source of the kernel: it shows in the residual, and in the coefficients that
have to make up for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame, Memory
from lrt_lab.training.loss import token_losses


@dataclass
class Passage:
    """One sweep, seen from the units.

    Attributes:
        states: backbone states before units 0 .. U, U standing for the head.
        reads: un-normed input of unit u or the head ``(B, P, d)``: the mean of its reads, where
            queries, keys and values read apart.
        outputs: the units' outputs ``(B, P, d)``.
        embedding: what the stack starts from ``(B, P, d)``.
        slots: the route's depth sources, zero where absent.
        loss: nats per token, with its graph.
    """

    states: dict[int, Any]
    reads: dict[int, Tensor]
    outputs: list[Tensor]
    embedding: Tensor
    slots: list[Tensor]
    loss: Tensor


@dataclass
class Seen:
    """What hooks saw: inputs of every unit's norms and of the final one, and bodies' outputs."""

    reads: dict[int, list[Tensor]] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)


@contextmanager
def watched(decoder: Decoder) -> Iterator[Seen]:
    """Note what the units of the sweeps inside read and write; the model is left as it was."""
    seen, handles = Seen(), []

    def reader(unit: int) -> Any:
        return lambda _, inputs: seen.reads.setdefault(unit, []).append(inputs[0])

    def writer(unit: int) -> Any:
        def note(_: Any, inputs: Any, output: Any) -> None:
            seen.outputs[unit] = output[0] if isinstance(output, tuple) else output

        return note

    for index in range(decoder.shape.units):
        for name, child in decoder.unit(index).named_children():
            if name == "body":
                handles.append(child.register_forward_hook(writer(index)))
            else:
                handles.append(child.register_forward_pre_hook(reader(index)))
    handles.append(decoder.norm.register_forward_pre_hook(reader(decoder.shape.units)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def observe(decoder: Decoder, frame: Frame, targets: Tensor) -> Passage:
    """Sweep all positions by all units; with a recurrent route, the second Jacobi pass is seen."""
    units, memory = decoder.shape.units, None
    with torch.enable_grad():
        if decoder.route.traits.recurrent:
            first = decoder.sweep(frame, frame.positions)
            assert first.carried is not None
            memory = decoder.memory(first.carried, frame, frame.positions)
        with watched(decoder) as seen:
            sweep = decoder.sweep(frame, frame.positions, memory, save=range(units + 1))
        loss = token_losses(decoder, sweep.hidden, targets).mean()
    embedding, slots = _inputs(decoder, frame, memory)
    return Passage(
        sweep.saved,
        {unit: torch.stack(reads).mean(0) for unit, reads in seen.reads.items()},
        [seen.outputs[unit] for unit in range(units)],
        embedding,
        slots,
        loss,
    )


@torch.no_grad()
def _inputs(decoder: Decoder, frame: Frame, memory: Memory | None) -> tuple[Tensor, list[Tensor]]:
    """The embedding and the route's depth sources, as the sweep made them."""
    at = decoder.view(frame, frame.positions, frame.length)
    x = decoder.route.embed(decoder.embed(at), memory, at)
    sources = decoder.route.sources(memory, at)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return x, [torch.where(present.unsqueeze(-1), value, zero) for value, present in sources]


def depth_kernel(read: Tensor, sources: Sequence[Tensor]) -> tuple[Tensor, float]:
    """Which mixture of the sources a read is, ``(..., d)`` and S of ``(..., d)``.

    Least squares per position in float64: exact where the read is a mixture with one number per
    source and the sources are independent, so at most d of them. A source that is zero, as every
    output is at step 0, gets 0; among dependent ones the smallest coefficients are taken.

    Returns:
        coefficients ``(..., S)``, and the residual: the norm of what is left over that of the read.
    """
    # LAPACK's rank-revealing driver exists on the CPU only.
    matrix = torch.stack([s.detach().double().cpu() for s in sources], dim=-1)
    target = read.detach().double().cpu().unsqueeze(-1)
    if not (matrix.isfinite().all() and target.isfinite().all()):
        return torch.full(matrix.shape[:-2] + matrix.shape[-1:], torch.nan), torch.nan
    found = torch.linalg.lstsq(matrix, target, driver="gelsd").solution
    left = torch.linalg.vector_norm(target - matrix @ found)
    whole = torch.linalg.vector_norm(target).clamp_min(torch.finfo(torch.float64).tiny)
    return found.squeeze(-1), float(left / whole)


def pairwise_cosine(streams: Tensor) -> float:
    """Mean cosine over all pairs of streams ``(..., n, d)`` and all positions; 1: all are alike."""
    unit = torch.nn.functional.normalize(streams.detach().double(), dim=-1)
    n = unit.shape[-2]
    # Of all n^2 products the n squares are 1.
    return float(((unit.sum(-2).square().sum(-1) - n) / (n * (n - 1))).mean())


def composite_gains(carries: Sequence[Tensor]) -> tuple[list[float], list[float]]:
    """Largest gains over positions of C_0 C_1 ... C_u for every u.

    Every C is ``(..., source, destination)``.

    Forward: how much a destination can receive, max over destinations of sum over sources of the
    absolute entries (the row sum of the papers' transposed matrices). Backward: how much gradient a
    source can receive, the same with the axes exchanged. Both are 1 if all are doubly stochastic.
    """
    forward, backward, product = [], [], None
    for carry in carries:
        carry = carry.detach().double()
        product = carry if product is None else product @ carry
        forward.append(float(product.abs().sum(-2).max()))
        backward.append(float(product.abs().sum(-1).max()))
    return forward, backward


def stochastic_errors(carry: Tensor) -> tuple[float, float]:
    """Largest deviations from 1 of what arrives at a destination and of what leaves a source.

    For ``(..., source, destination)``; the papers' row and column errors, in this order.
    """
    carry = carry.detach().double()
    return float((carry.sum(-2) - 1).abs().max()), float((carry.sum(-1) - 1).abs().max())


def diagnose(decoder: Decoder, frame: Frame, targets: Tensor) -> dict[str, Any]:
    """Every diagnostic that the decoder's backbone has, as plain numbers and lists.

    Args:
        decoder: the model; its gradients and its generators are left alone.
        frame: ids ``(B, T)``.
        targets: the next token of each position ``(B, T)``.
    """
    passage, backbone = observe(decoder, frame, targets), decoder.backbone
    gradients = torch.autograd.grad(passage.loss, passage.outputs)
    with torch.no_grad():
        hidden = [backbone.hidden(state, unit).detach() for unit, state in passage.states.items()]
        routing = [backbone.routing(state, unit) for unit, state in passage.states.items()]
    row: dict[str, Any] = {
        "loss": float(passage.loss.detach()),
        "state": [float(h.double().square().mean().sqrt()) for h in hidden],
        "gradient": [float(torch.linalg.vector_norm(g.double())) for g in gradients],
        "kernel": [],
        "residual": [],
    }
    before = [passage.embedding, *passage.slots]
    for unit, read in sorted(passage.reads.items()):
        coefficients, residual = depth_kernel(read, before + passage.outputs[:unit])
        row["kernel"].append(coefficients.flatten(0, -2).mean(0).tolist())
        row["residual"].append(residual)
    weights = [found.get("weights") for found in routing]
    if any(w is not None for w in weights):
        row["weights"] = [
            [] if w is None else w.double().flatten(0, 1).mean(0).tolist() for w in weights
        ]
    streams = [found["streams"] for found in routing if "streams" in found]
    if streams:
        row["cosine"] = [pairwise_cosine(x) for x in streams]
    carries = [found["carry"] for found in routing if "carry" in found]
    if carries:
        row["forward"], row["backward"] = composite_gains(carries)
        errors = [stochastic_errors(carry) for carry in carries]
        row["arriving"], row["leaving"] = map(list, zip(*errors, strict=True))
    return row
