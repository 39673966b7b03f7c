"""Attention Residuals: units attend over what came before (Kimi Team, arXiv:2603.15031 section 3).

With sources s_0 = embedding, s_j = sum of the outputs of the units of block j (with one unit per
block: its raw output), a reader u, its query w_u and its key gain k_u:

    alpha_{uj} = softmax_j( (w_u * k_u) . RMS(s_j) ),    x_u = sum_j alpha_{uj} s_j

over the blocks before u and what its own block has summed up so far. The head is one more reader
with a query of its own. Values are raw, there is no 1/sqrt(d), and logits and softmax are float32
or wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lrt_kernels import Scored, depth_mix, head_queries, read_scored, score_source, wide
from lrt_lab.backbones.base import Backbone, Source, unchanged
from lrt_lab.errors import UserError
from lrt_lab.layers import Shape, constant, parameter


class Query(NamedTuple):
    """What scores one source: ``weight (readers, d)`` and ``bias (readers,)``, from ``first`` on.

    With heads the weight has one row per reader and head.
    """

    weight: Tensor
    bias: Tensor | None
    first: int


class Bank(NamedTuple):
    """Every source so far, with what the readers that come after it score it by.

    The i-th reader of ``sources[j]`` is counted from ``first[j]``; a block that is still open has
    one reader only, since the next write replaces it. ``queries`` are those of the embedding and of
    every block.
    """

    queries: tuple[Query, ...]
    sources: tuple[Scored, ...] = ()
    first: tuple[int, ...] = ()
    masks: tuple[Tensor | None, ...] = ()
    # The mixture that the coming unit reads, kept from `enter` so that it is not computed twice.
    entered: Tensor | None = None

    @property
    def values(self) -> tuple[Tensor, ...]:
        """The sources themselves, ``(B, P, d)`` each."""
        return tuple(source.value for source in self.sources)

    def without_last(self) -> Bank:
        """The bank without its last source."""
        return self._replace(
            sources=self.sources[:-1],
            first=self.first[:-1],
            masks=self.masks[:-1],
        )


class AttentionResiduals(Backbone):
    """Attention Residuals: every unit reads a softmax mixture of earlier outputs.

    The default is the full form; ``block_size`` makes it the block form, in which Kimi-K3 seals
    the running sum after the first read of the next block, which sees the same sum either way.
    Queries start at zero: at step 0 every read is the plain mean of its sources (*not* PreNorm's
    sum). With one head a read is never longer than its longest source. A route's residual injection
    changes the coming unit's read and nothing else; a route's sources join the bank right after the
    embedding and are masked where absent, and from readers that are not to see them.

    Args:
        block_size: units whose outputs are summed into one source; 1 is full Attention Residuals.
            Two units are one decoder layer of the paper. The last block may be shorter.
        heads: slices of the features with a softmax each, dividing the width; keys are normed
            whole.
        key_gain: learn a gain on the normed keys, one vector per reader. It acts through its
            product with the query only.
        eps: inside the root mean square of the keys.
    """

    stands_for = "the softmax mixture that the next unit reads, a mean and no sum"

    scale = 1.0
    slot_readers: frozenset[int] | None = None
    newest_only = False

    def __init__(
        self, block_size: int = 1, heads: int = 1, key_gain: bool = True, eps: float = 1e-6
    ) -> None:
        super().__init__()
        if block_size < 1:
            raise UserError(
                f"backbone.block_size={block_size}: give the units per block, at least 1 (full)"
            )
        if heads < 1:
            raise UserError(f"backbone.heads={heads}: give at least 1")
        self.block_size, self.heads, self.gains, self.eps = block_size, heads, key_gain, eps

    def setup(self, shape: Shape, slots: int) -> None:
        if shape.width % self.heads:
            raise UserError(
                f"backbone.heads={self.heads} does not divide model.width={shape.width}"
            )
        self.measure(shape)
        self.query = parameter(self.readers, shape.width, init=constant(0.0), role="connection")
        if self.gains:
            self.key_gain = parameter(
                self.readers, shape.width, init=constant(1.0), role="connection"
            )

    def restrict(self, readers: frozenset[int]) -> None:
        self.slot_readers = readers

    def narrow(self) -> None:
        self.newest_only = True

    def measure(self, shape: Shape) -> None:
        """Number of readers, and for the embedding and every block the first reader."""
        # Reader u < U is unit u, reader U is the head.
        self.readers = shape.units + 1
        self.first = (0, *range(1, shape.units + 1, self.block_size))

    def queries(self) -> tuple[Query, ...]:
        """What scores the embedding and every block, one entry per source.

        One tensor holds them all, of which every scoring keeps a view for its backward pass.
        """
        weight = head_queries(self.query * self.key_gain if self.gains else self.query, self.heads)
        return tuple(Query(weight[first * self.heads :], None, first) for first in self.first)

    def query_of_slot(self, queries: tuple[Query, ...], slot: int) -> Query:
        """What scores a route's source."""
        return queries[0]

    def start(self, x: Tensor, sources: Sequence[Source]) -> Bank:
        queries = self.queries()
        bank = self._add(Bank(queries), x, queries[0], range(self.readers), None)
        for slot, (value, present) in enumerate(sources):
            query = self.query_of_slot(queries, slot)
            bank = self._add(bank, value, query, range(self.readers), present)
        return bank

    def _add(
        self, bank: Bank, value: Tensor, query: Query, readers: range, mask: Tensor | None
    ) -> Bank:
        rows = slice(readers.start - query.first, readers.stop - query.first)
        by_head = slice(rows.start * self.heads, rows.stop * self.heads)
        bias = None if query.bias is None else query.bias[rows]
        weight = query.weight[by_head]
        source = score_source(value, weight, bias, self.scale, self.eps, self.heads)
        return Bank(
            bank.queries,
            (*bank.sources, source),
            (*bank.first, readers.start),
            (*bank.masks, mask),
        )

    def enter(self, state: Bank, unit: int, inject: Callable[[Tensor], Tensor]) -> Bank:
        if inject is unchanged:
            return state
        return state._replace(entered=inject(self.hidden(state, unit)))

    def read(self, state: Bank, unit: int) -> Tensor:
        return self.hidden(state, unit) if state.entered is None else state.entered

    def write(self, state: Bank, unit: int, y: Tensor) -> Bank:
        block, inside = divmod(unit, self.block_size)
        if inside:
            y, state = state.values[-1] + y, state.without_last()
        full = inside == self.block_size - 1
        readers = range(unit + 1, self.readers if full else unit + 2)
        return self._add(state, y, state.queries[block + 1], readers, None)

    def hidden(self, state: Bank, unit: int) -> Tensor:
        seen = self._seen(state, unit)
        readers = [unit - state.first[source] for source in seen]
        masks = [state.masks[source] for source in seen]
        return read_scored([state.sources[source] for source in seen], readers, masks)

    def _seen(self, state: Bank, unit: int) -> list[int]:
        """Which sources a reader sees."""
        seen = list(range(len(state.sources)))
        if self.newest_only:
            # Only what is a route's has a mask.
            newest = [j for j in seen if state.masks[j] is None][-1]
            seen = [j for j in seen if j == newest or state.masks[j] is not None]
        if self.slot_readers is not None and unit not in self.slot_readers:
            seen = [source for source in seen if state.masks[source] is None]
        return seen

    def finish(self, state: Bank) -> Tensor:
        return self.hidden(state, self.readers - 1)

    def routing(self, state: Bank, unit: int) -> dict[str, Tensor]:
        # A mixture of one-hot values is the weights themselves, one copy per head.
        like, count = state.values[0], len(state.values)
        marks = torch.eye(count, dtype=wide(like.dtype), device=like.device).repeat(1, self.heads)
        ones = marks.expand(*like.shape[:-1], -1, -1).unbind(-2)
        seen = self._seen(state, unit)
        logits = [state.sources[j].logit(unit - state.first[j]) for j in seen]
        weights = depth_mix(logits, [ones[j] for j in seen], [state.masks[j] for j in seen])
        return {"weights": weights.unflatten(-1, (self.heads, count))}
