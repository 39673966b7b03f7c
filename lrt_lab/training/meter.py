"""The one place that knows what a cell costs.

Nothing is written down per part: one training step of one row, one pass over a prompt and one
decoded position run on the meta device, where tensors have shapes and no values, and what they
execute is counted (`lrt_lab.training.tally`); what repeats is executed once
(`lrt_lab.training.repeats`). Every sweep of every pass, its backward and the head
of every supervised pass is counted because it is executed, so a new part needs no formula.
Attention counts as the full rectangle of queries by keys. `model.recompute` is not priced: it saves
memory by executing every pass once more, and is no part of a run's identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lrt_kernels import backends
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Schedule
from lrt_lab.training.loss import training_loss
from lrt_lab.training.tallied import part_names, part_of, tallied
from lrt_lab.training.tally import OUTSIDE, Tally, Work, accumulate

ROUTING = ("connection", "router")
#: What parameters are counted as, by role.
KINDS = {
    "dense": ("matrix", "head", "router"),
    "queries": ("connection", "gain"),
    "tables": ("embedding",),
}
#: Rows up to this long are executed whole, however their schedule goes through them.
WHOLE = 16
#: Places in a longer row at which a schedule's single steps are priced.
PLACES = 9


@dataclass(frozen=True)
class Part:
    """What one part of a model costs: an embedding, all mixers of a kind, the backbone, ...

    Attributes:
        name: what it is, and its class where a config chooses it.
        total: its parameters.
        matmul: those used in matrix products.
        train, prefill, decode: FLOPs per token.
        saved_bytes: activations per token that training keeps for the backward pass.
    """

    name: str
    total: int
    matmul: int
    train: Work
    prefill: Work
    decode: Work
    saved_bytes: float


@dataclass(frozen=True)
class Cost:
    """What one cell costs. Per token means per position of a row, whatever number of passes.

    Attributes:
        total: all parameters.
        matmul: parameters used in matrix products: the head counts, the input table does not.
        dense: weights of maps from features to features, the head's among them.
        queries: queries, biases, gates and gains: vectors that are learnt one by one.
        tables: lookup tables of token vectors. The three kinds make up the total.
        train_flops_per_token: matrix FLOPs, forward and backward, all passes.
        train_pointwise_per_token: pointwise FLOPs, likewise.
        prefill_flops_per_token: matrix FLOPs of one pass over a prompt of the row's length, without
            the head; a prompt that is fed back costs it once per pass.
        prefill_pointwise_per_token: pointwise FLOPs, likewise.
        decode_flops_per_token: matrix FLOPs of the row's last position, decoded, with the head.
        decode_pointwise_per_token: pointwise FLOPs, likewise.
        passes: token-forwards per token.
        graded_passes: those of them with gradients.
        calls: of the stack, or of a range of its units, one after the other, per row.
        heads: logits computed per token.
        rescans: positions that mixers evaluate beside those of their sweep, per token and mixer.
        saved_bytes_per_token: activations that training keeps for the backward pass, at the
            parameters' precision.
        state_bytes: what a sequence of the row's length keeps for decoding, likewise.
        decode_bytes_per_token: what decoding the row's last position reads, likewise: every
            parameter once, one row of a table, and the state of its one sequence.
        length: of the row.
        backends: which implementation each operation of `lrt_kernels` uses here.
        parts: the same by part.
    """

    total: int
    matmul: int
    dense: int
    queries: int
    tables: int
    train_flops_per_token: float
    train_pointwise_per_token: float
    prefill_flops_per_token: float
    prefill_pointwise_per_token: float
    decode_flops_per_token: float
    decode_pointwise_per_token: float
    passes: float
    graded_passes: float
    calls: float
    heads: float
    rescans: float
    saved_bytes_per_token: float
    state_bytes: int
    decode_bytes_per_token: float
    length: int
    backends: dict[str, str]
    parts: tuple[Part, ...]

    def parameters(self) -> dict[str, int]:
        """All parameter counts."""
        counts = ("total", "matmul", *KINDS)
        return {name: getattr(self, name) for name in counts}

    def as_dict(self) -> dict[str, Any]:
        """Everything, for records."""
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole, without parts."""
        return {
            key: value for key, value in asdict(self).items() if key not in ("parts", "backends")
        }


def measure(decoder: Decoder, schedule: Schedule, length: int) -> Cost:
    """Price a decoder on the meta device under a schedule, at a row length; takes no data."""
    names = part_names(decoder)
    # In the order of a sweep.
    parts = list(dict.fromkeys([names["embedding"], *names.values(), OUTSIDE]))
    total, matmul = dict.fromkeys(parts, 0), dict.fromkeys(parts, 0)
    kinds = counted(decoder)
    for name, parameter in decoder.named_parameters():
        part = part_of(name, names)
        total[part] += parameter.numel()
        role = parameter.role  # type: ignore[attr-defined]
        if role in ("matrix", "head") or (role in ROUTING and parameter.dim() > 1):
            matmul[part] += parameter.numel()
    train = trained(decoder, schedule, length)
    prefill = prefilled(decoder, length)
    decode, state = decoded(decoder, length - 1)
    mixers = len(decoder.mixers())

    def work(tally: Tally, part: str, tokens: int) -> Work:
        found = tally.work.get(part, Work())
        return Work(found.matrix / tokens, found.pointwise / tokens)

    return Cost(
        total=sum(total.values()),
        matmul=sum(matmul.values()),
        dense=kinds["dense"],
        queries=kinds["queries"],
        tables=kinds["tables"],
        train_flops_per_token=train.matrix / length,
        train_pointwise_per_token=train.pointwise / length,
        prefill_flops_per_token=prefill.matrix / length,
        prefill_pointwise_per_token=prefill.pointwise / length,
        decode_flops_per_token=decode.matrix,
        decode_pointwise_per_token=decode.pointwise,
        passes=schedule.cost(length, decoder) / length,
        graded_passes=train.graded / length,
        calls=train.sweeps,
        heads=train.heads / length,
        rescans=train.rescanned / length / mixers,
        saved_bytes_per_token=sum(train.saved.values()) / length,
        state_bytes=state,
        decode_bytes_per_token=weight_bytes(decoder) + state,
        length=length,
        # The decoder is on the meta device; a run is where this machine computes.
        backends=backends(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        parts=tuple(
            Part(
                part,
                total[part],
                matmul[part],
                work(train, part, length),
                work(prefill, part, length),
                work(decode, part, 1),
                train.saved.get(part, 0) / length,
            )
            for part in parts
        ),
    )


def counted(decoder: Decoder) -> dict[str, int]:
    """Parameters by kind; one that has two names is counted once."""
    counts = dict.fromkeys(KINDS, 0)
    for parameter in decoder.parameters():
        role = parameter.role  # type: ignore[attr-defined]
        counts[next(kind for kind, roles in KINDS.items() if role in roles)] += parameter.numel()
    return counts


def trained(decoder: Decoder, schedule: Schedule, length: int, repeat: bool = True) -> Tally:
    """What one training step of one row executes; expected, where batches are drawn."""
    expected = Tally()
    for share, part in schedule.mixture():
        row = length
        if part.stepwise and length > WHOLE:
            row = WHOLE
        frame = part.rehearsal(row, decoder.head.device)
        # Recomputing is how a step is run, and none of what it is: budgets do not depend on it.
        again, decoder.recompute = decoder.recompute, False
        with tallied(decoder, repeat) as tally:
            training_loss(decoder, part, frame, frame.ids, Clock()).backward()
        decoder.zero_grad()
        decoder.recompute = again
        if row < length:
            tally = stretched(decoder, tally, row, length)
        accumulate(expected, tally, share)
    return expected


def stretched(decoder: Decoder, tally: Tally, row: int, length: int) -> Tally:
    """A tally of a short row that is evaluated position by position, for a longer one.

    What a position costs grows with the positions before it, smoothly: it is decoded at some of
    them, and forward and backward are three times that.
    """
    expected = Tally()
    accumulate(expected, tally, length / row)
    places = [round((length - 1) * i / (PLACES - 1)) for i in range(PLACES)]
    costs = [decoded(decoder, place)[0] for place in places]
    expected.work = {}
    for i, cost in enumerate(costs):
        # The trapezoidal rule over the row.
        low, high = places[max(i - 1, 0)], places[min(i + 1, PLACES - 1)]
        share = length * (high - low) / 2 / (length - 1)
        for part, work in cost.work.items():
            expected.add(part, 3 * share * work.matrix, 3 * share * work.pointwise)
    return expected


@torch.no_grad()
def prefilled(decoder: Decoder, length: int) -> Tally:
    """What one pass over a prompt executes, with a route's memory in it."""
    frame = blank(decoder, length)
    with tallied(decoder) as tally:
        memory = empty_memory(decoder, frame, frame.positions)
        decoder.sweep(frame, frame.positions, memory)
    return tally


@torch.no_grad()
def decoded(decoder: Decoder, place: int) -> tuple[Tally, int]:
    """What decoding the position at ``place`` executes, and the bytes kept after it."""
    frame = blank(decoder, place + 1)
    buffers: dict[int, Any] = {}
    if place:
        with tallied(decoder):
            memory = empty_memory(decoder, frame, range(place))
            before = decoder.sweep(frame, range(place), memory)
        buffers = {u: decoder.mixers()[u].commit(b) for u, b in before.buffers.items()}
    here = range(place, place + 1)
    with tallied(decoder) as tally:
        memory = empty_memory(decoder, frame, here)
        out = decoder.sweep(frame, here, memory, buffers, reach=place + 1)
        decoder.logits(out.hidden)
    state = {u: decoder.mixers()[u].commit(b) for u, b in out.buffers.items()}
    held = {id(tensor): tensor for tensor in tensors([state, out.carried])}
    return tally, sum(tensor.numel() * tensor.element_size() for tensor in held.values())


def weight_bytes(decoder: Decoder) -> float:
    """Bytes of the parameters that one position reads: all of them, of a table one row."""
    read = 0.0
    for parameter in decoder.parameters():
        rows = len(parameter) if parameter.role == "embedding" else 1  # type: ignore[attr-defined]
        read += parameter.numel() * parameter.element_size() / rows
    return read


def blank(decoder: Decoder, length: int, rows: int = 1) -> Frame:
    """Rows of so many positions."""
    return Frame(torch.zeros(rows, length, dtype=torch.long, device=decoder.head.device))


def empty_memory(decoder: Decoder, frame: Frame, positions: range) -> Any:
    """Some memory entering these positions; None without a route."""
    if not decoder.route.traits.recurrent:
        return None
    carried = decoder.embedding.new_zeros(len(frame.ids), len(positions), *decoder.route.carries)
    return decoder.receive(carried, decoder.view(frame, positions, frame.length))


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors inside nested containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif is_dataclass(value):
        yield from tensors([getattr(value, member.name) for member in fields(value)])
