"""The engine: evaluates a rectangle of the lattice of positions by units.

One primitive, the sweep, carries every training schedule and every decode mode: it evaluates a set
of positions by a range of units, given the memory that enters those positions and the mixers'
buffers for the positions that it does not recompute. The decoder is the only place that knows all
four parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lrt_lab.backbones import Backbone, PreNorm
from lrt_lab.backbones.base import unchanged
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame, Memory, View
from lrt_lab.layers import (
    FeedForward,
    RMSNorm,
    Shape,
    SquaredReLU,
    initialize,
    normal,
    parameter,
    rms_norm,
)
from lrt_lab.mixers import Attention, Mixer
from lrt_lab.mixers.base import Reads, alone
from lrt_lab.routes import NoRoute, Route

Attend = Literal["all", "own"]
Depth = Literal["all", "newest"]
#: Standard deviation of the head's start values.
HEAD_STD = 0.02


@dataclass(frozen=True)
class Sweep:
    """What one sweep leaves behind.

    Attributes:
        positions: the P positions that were evaluated.
        hidden: normed top state ``(B, P, d)``, the head's input; None where the sweep stops below
            the top.
        carried: what leaves these positions, ``(B, P, ...)``; None where the route carries nothing.
        buffers: the mixers' buffers by unit.
        saved: backbone states before the units that were asked for.
    """

    positions: range
    hidden: Tensor
    carried: Tensor | None
    buffers: dict[int, Any]
    saved: dict[int, Any]


@dataclass(frozen=True)
class Cache:
    """Decoding so far: the frame, the mixers' buffers and what left the last position.

    Going back to an earlier cache is allowed (buffers hold later positions, which are written
    again); keeping two continuations of one cache alive needs `select` on all rows first, since
    buffers are written in place.

    Attributes:
        frame: the batch so far.
        buffers: the mixers' buffers by unit, for each of the sweeps that a position takes.
        carried: what left the last position.
    """

    frame: Frame | None
    buffers: tuple[dict[int, Any], ...]
    carried: Tensor | None

    @property
    def length(self) -> int:
        """Positions decoded."""
        return 0 if self.frame is None else self.frame.length


def each(reads: Reads, change: Callable[[Tensor], Tensor]) -> Reads:
    """The reads of a unit, each of them changed."""
    if isinstance(reads, tuple):
        q, k, v = reads
        return change(q), change(k), change(v)
    return change(reads)


class Unit(nn.Module):
    """One sublayer: the norms of what it reads, and its body, a token mixer or an FFN.

    Args:
        body: the mixer or FFN.
        width: features of a read.
        eps: inside the norms' root mean square.
        reads: 1, or 3 for queries, keys and values with a norm each.
    """

    def __init__(self, body: Mixer | FeedForward, width: int, eps: float, reads: int = 1) -> None:
        super().__init__()
        if reads == 1:
            self.norm = RMSNorm(width, eps)
        else:
            self.query_norm = RMSNorm(width, eps)
            self.key_norm = RMSNorm(width, eps)
            self.value_norm = RMSNorm(width, eps)
        self.body = body

    def normed(self, reads: Reads) -> Reads:
        """The reads as the body sees them."""
        if isinstance(reads, tuple):
            q, k, v = reads
            return self.query_norm(q), self.key_norm(k), self.value_norm(v)
        return self.norm(reads)


class Decoder(nn.Module):
    """A decoder-only language model: embedding, units over a backbone, a route, and the head.

    Args:
        width: features of a hidden state.
        blocks: number of blocks; a block is a mixer unit and an FFN unit.
        vocab: number of token ids.
        backbone: how state travels through depth.
        route: what travels from one position to the next.
        mixer: the token mixer, or a pattern of them that is repeated over the blocks; every block
            gets a copy of its own.
        ffn: the feed-forward body, likewise.
        eps: inside the norms' root mean square.
        seed: initial values are keyed on it and on each parameter's name.
        depth_scale: multiply every unit's output by 1 / sqrt(2 L), so that a sum of all of them
            stays of order one at any depth L (Full-bandwidth's depth scaling, whose factor its
            paper leaves open).
        tied: one table ``(V, d)`` for tokens and head; lookups are brought to the scale that a
            table of its own starts with.
        recompute: keep nothing of a sweep but what it leaves, and evaluate it again when gradients
            need its activations: those of one sweep are then held at a time, however many there
            are, for the time of one more forward.
        attend: the positions that mixers reach: "all" that they are made for, or each position its
            "own" only, which switches the path of token attention off.
        depth: the sources that units read: "all" of them, or the "newest" only, which switches off
            residual routing where a backbone chooses among sources. A route's sources stay.
    """

    def __init__(
        self,
        width: int = 64,
        blocks: int = 4,
        vocab: int = 257,
        backbone: Backbone | None = None,
        route: Route | None = None,
        mixer: Mixer | Sequence[Mixer] | None = None,
        ffn: FeedForward | None = None,
        eps: float = 1e-6,
        seed: int = 1,
        depth_scale: bool = False,
        tied: bool = False,
        recompute: bool = False,
        attend: Attend = "all",
        depth: Depth = "all",
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("blocks", blocks), ("vocab", vocab)):
            if value < 1:
                raise UserError(f"model.{name}={value}: it must be at least 1")
        for option, chosen, known in (
            ("attend", attend, get_args(Attend)),
            ("depth", depth, get_args(Depth)),
        ):
            if chosen not in known:
                raise UserError(f"model.{option}={chosen!r}: give {' or '.join(known)}")
        self.eps, self.recompute, self.attend = eps, recompute, attend
        # Parts are templates until setup: copying keeps one instance usable for several decoders.
        self.backbone = copy.deepcopy(backbone or PreNorm())
        self.route = copy.deepcopy(route or NoRoute())
        pattern = list(mixer) if isinstance(mixer, Sequence) else [mixer or Attention()]
        if not pattern:
            raise UserError("model.mixer=[]: a pattern names at least one mixer")
        mixers = [copy.deepcopy(pattern[block % len(pattern)]) for block in range(blocks)]
        bare = Shape(width, blocks, vocab)
        self.shape = replace(bare, kv=tuple(mixer.kv(bare) for mixer in mixers))
        units: list[Unit] = []
        for block, block_mixer in enumerate(mixers):
            block_mixer.setup(self.shape, block)
            block_ffn = copy.deepcopy(ffn or SquaredReLU())
            block_ffn.inner_norm |= self.backbone.inner_norm
            block_ffn.setup(self.shape, block)
            for body in (block_mixer, block_ffn):
                units.append(Unit(body, width, eps, self.backbone.reads(len(units))))
        self.units = nn.ModuleList(units)
        self.route.setup(self.shape)
        if self.route.readers is not None:
            self.backbone.restrict(self.route.readers)
        if depth == "newest":
            self.backbone.narrow()
        self.backbone.setup(self.shape, self.route.slots)
        if not tied:
            self.embedding = parameter(vocab, width, init=normal(1.0), role="embedding")
        self.norm = RMSNorm(width, eps)
        self.head = parameter(vocab, width, init=normal(HEAD_STD), role="head")
        if tied:
            # One parameter, which goes by the head's name and role: it decays, and is a matrix.
            self.embedding = self.head
        self.lookup_scale = 1 / HEAD_STD if tied else 1.0
        self.output_scale = self.shape.units**-0.5 if depth_scale else 1.0
        initialize(self, seed)

    def logits(self, hidden: Tensor) -> Tensor:
        """The head's scores ``(..., vocab)`` for normed top states ``(..., d)``."""
        return F.linear(hidden, self.head)

    def sweep(
        self,
        frame: Frame,
        positions: range,
        memory: Memory | None = None,
        buffers: dict[int, Any] | None = None,
        units: range | None = None,
        entry: Any = None,
        save: Sequence[int] = (),
        reach: int | None = None,
    ) -> Sweep:
        """Evaluate positions by units.

        Args:
            frame: the batch.
            positions: which positions, in order.
            memory: what enters them; None is the initializer sweep.
            buffers: what the mixers kept of positions that are not recomputed, by unit.
            units: which units; None is all of them.
            entry: the backbone state to enter ``units`` with, from an earlier sweep's ``saved``;
                None embeds.
            save: units before which the backbone state is kept.
            reach: how many positions the mixers can attend to; None is all up to the last one
                evaluated, or the whole frame when there are buffers.
        """
        units = range(self.shape.units) if units is None else units
        if reach is None:
            reach = positions[-1] + 1 if buffers is None else frame.length
        given = (frame, positions, memory, buffers, units, entry, save, reach)
        if self.recompute and torch.is_grad_enabled():
            # Nothing in a sweep is random.
            return checkpoint(self.evaluated, *given, use_reentrant=False, preserve_rng_state=False)
        return self.evaluated(*given)

    def evaluated(
        self,
        frame: Frame,
        positions: range,
        memory: Memory | None,
        buffers: dict[int, Any] | None,
        units: range,
        entry: Any,
        save: Sequence[int],
        reach: int,
    ) -> Sweep:
        """The sweep itself, a function of its arguments and the parameters alone."""
        at = self.view(frame, positions, reach)
        backbone, route = self.backbone, self.route
        if memory is not None:
            # What routes derive from it belongs to this evaluation.
            memory = replace(memory, derived={})
        memory = route.incoming(memory, at, self.lookup)
        bank: list[tuple[Tensor, Tensor | None]] = []
        if entry is None:
            x = route.embed(self.embed(at), memory, at)
            sources = list(route.sources(memory, at))
            bank = [(x, None), *sources]
            state = backbone.start(x, sources)
        else:
            state = entry
        new_buffers = dict(buffers or {})
        saved: dict[int, Any] = {}
        taps: dict[Any, Any] = {}
        for unit in units:
            if unit in route.needs.units:
                taps[unit] = backbone.hidden(state, unit)
            if unit in save:
                saved[unit] = state
            inject = unchanged
            if "enter" in route.ports:
                inject = partial(route.enter, unit, memory=memory, at=at)
            state = backbone.enter(state, unit, inject)
            read = backbone.read(state, unit)
            if "read" in route.ports:
                read = each(read, partial(route.read, unit, memory=memory, at=at))
            y, buffer = self.evaluate(unit, read, at, memory, new_buffers.get(unit))
            if self.output_scale != 1.0:
                y = self.output_scale * y
            if buffer is not None:
                new_buffers[unit] = buffer
            if route.needs.bank:
                bank.append((y, None))
            state = backbone.write(state, unit, y)
        if units.stop in route.needs.units:
            taps[units.stop] = backbone.hidden(state, units.stop)
        if units.stop in save:
            saved[units.stop] = state
        hidden = None
        if units.stop == self.shape.units:
            hidden = taps["top"] = self.norm(backbone.finish(state))
            if entry is None:
                # From a saved state on, the bank lacks what was written before it.
                taps["bank"] = bank
        wanted = [*route.needs.units, *["top"] * route.needs.top, *["bank"] * route.needs.bank]
        ready = all(tap in taps for tap in wanted)
        carried = route.emit(taps, memory, at) if route.needs and ready else None
        return Sweep(positions, hidden, carried, new_buffers, saved)  # type: ignore[arg-type]

    def view(self, frame: Frame, positions: range, reach: int) -> View:
        """The frame at these positions, with the raw token embedding."""
        at = frame.at(positions, reach)
        at.embedding = self.lookup(at.ids)
        return at

    def lookup(self, ids: Tensor) -> Tensor:
        """The raw token embedding ``(..., d)``."""
        rows = F.embedding(ids, self.embedding)
        return rows if self.lookup_scale == 1.0 else self.lookup_scale * rows

    def embed(self, at: View) -> Tensor:
        """The plain input of the stack: the normed token embedding, ``(B, P, d)``."""
        assert at.embedding is not None
        return rms_norm(at.embedding, self.eps)

    def evaluate(
        self, unit: int, reads: Reads, at: View, memory: Memory | None, buffer: Any
    ) -> tuple[Tensor, Any]:
        """One unit's output and its new buffer."""
        module = self.unit(unit)
        reads = module.normed(reads)
        if isinstance(module.body, Mixer):
            inject = partial(self.route.keys_values, unit, memory=memory, at=at)
            if self.attend == "own":
                return alone(module.body, reads, at, inject), buffer
            return module.body(reads, at, buffer, inject)
        return module.body(reads), None

    def unit(self, index: int) -> Unit:
        """The unit of this number."""
        return cast(Unit, self.units[index])

    def mixers(self) -> dict[int, Mixer]:
        """The mixers by unit."""
        bodies = {index: self.unit(index).body for index in range(self.shape.units)}
        return {index: body for index, body in bodies.items() if isinstance(body, Mixer)}

    def memory(
        self, carried: Tensor, frame: Frame, positions: range, keep: Tensor | None = None
    ) -> Memory:
        """What enters these positions, from what left every position: shift, reset, receive.

        Nothing is shifted where nothing travels from one position to the next.

        Args:
            carried: ``(B, T, ...)``, what left each position of the frame most recently.
            frame: the batch.
            positions: the positions of the coming sweep.
            keep: ``(B, T)`` bool, False where a position is to run without memory (prefix mix-in).
        """
        cut = slice(positions.start, positions.stop, positions.step)
        if not self.route.traits.recurrent:
            before = carried[:, cut]
        elif positions.start == 0:
            # Nothing left position -1: a zero that `receive` marks absent.
            before = torch.cat([torch.zeros_like(carried[:, :1]), carried[:, :-1]], dim=1)[:, cut]
        else:
            before = carried[:, positions.start - 1 : positions.stop - 1 : positions.step]
        return self.receive(
            before,
            self.view(frame, positions, frame.length),
            None if keep is None else keep[:, cut],
        )

    def receive(self, before: Tensor, at: View, keep: Tensor | None = None) -> Memory:
        """What enters positions whose predecessors left ``before``, ``(B, P, ...)``."""
        present = self.route.receives(at)
        present = present if keep is None else present & keep
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(
                self.route.receive,
                before,
                present,
                at,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        return self.route.receive(before, present, at)

    def cache(self, batch: int, capacity: int) -> Cache:
        """An empty decoding cache.

        Without gradients its buffers are written in place and grow past ``capacity`` when they
        must; with gradients they are values.
        """
        loops = range(self.route.traits.loops)
        if torch.is_grad_enabled():
            return Cache(None, tuple({} for _ in loops), None)
        mixers = self.mixers()
        buffers = [
            {unit: m.allocate(batch, capacity, self.embedding) for unit, m in mixers.items()}
            for _ in loops
        ]
        return Cache(None, tuple(buffers), None)

    def step(self, new: Frame, cache: Cache) -> tuple[Tensor, Cache]:
        """Decode further columns by the exact recurrence, one stack traversal each.

        Args:
            new: the columns to come, ``(B, n)``; documents are numbered on from the cache's.
            cache: everything before them.

        Returns:
            normed top states ``(B, n, d)`` and the cache after them.
        """
        frame = new if cache.frame is None else cache.frame.append(new)
        return self.serial(frame, cache)

    def serial(self, frame: Frame, cache: Cache) -> tuple[Tensor, Cache]:
        """Run the exact recurrence over the frame's positions that the cache lacks."""
        hidden: list[Tensor] = []
        carried, buffers, mixers = cache.carried, list(cache.buffers), self.mixers()
        recurrent = self.route.traits.recurrent
        for t in range(cache.length, frame.length):
            here = range(t, t + 1)
            if recurrent and carried is None:
                carried = self.embedding.new_zeros(len(frame.ids), 1, *self.route.carries)
            for loop, kept in enumerate(buffers):
                memory = None
                if carried is not None and (recurrent or loop):
                    memory = self.receive(carried, self.view(frame, here, t + 1))
                out = self.sweep(frame, here, memory, kept, reach=t + 1)
                carried, kept = out.carried, out.buffers
                if not torch.is_grad_enabled():
                    kept = {unit: mixers[unit].commit(b) for unit, b in kept.items()}
                buffers[loop] = kept
            hidden.append(out.hidden)
        return torch.cat(hidden, dim=1), Cache(frame, tuple(buffers), carried)

    def select(self, cache: Cache, rows: Tensor) -> Cache:
        """The cache of some rows (beam search), independent of the old one."""
        mixers = self.mixers()
        buffers = [
            {unit: mixers[unit].select(b, rows) for unit, b in kept.items()}
            for kept in cache.buffers
        ]
        return Cache(
            None if cache.frame is None else cache.frame.select(rows),
            tuple(buffers),
            None if cache.carried is None else cache.carried[rows],
        )
