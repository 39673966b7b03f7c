"""Attention Residuals with a query and a bias of their own for every reader and source.

    alpha_{uj} = softmax_j( (w_{uj} . RMS(s_j) + b_{uj}) / scale ),    x_u = sum_j alpha_{uj} s_j

with sources and readers as in `lrt_lab.backbones.attention_residuals`. A key gain would be the same
as another query, so there is none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lrt_lab.backbones.attention_residuals import AttentionResiduals, Query
from lrt_lab.errors import UserError
from lrt_lab.layers import Shape, constant, parameter


class PairwiseAttentionResiduals(AttentionResiduals):
    """Attention Residuals with pairwise queries and biases, logits divided by a constant.

    Queries and biases start at zero: at step 0 every read is the plain mean of its sources. A
    route's sources have queries and biases of their own, in parameters of their own.

    Axes: ``pair_query (pairs, d)`` and ``pair_bias (pairs,)`` hold the pairs by source, the
    embedding first, and within a source by reader, from the first reader that comes after the
    source (`pairs`); ``slot_query (slot, reader, d)`` and ``slot_bias (slot, reader)``.

    Args:
        scale: divides the logits.
        block_size: units whose outputs are summed into one source; 1 is the full form.
        eps: inside the root mean square of the keys.
    """

    def __init__(self, scale: float = 16.0, block_size: int = 1, eps: float = 1e-6) -> None:
        super().__init__(block_size, key_gain=False, eps=eps)
        if scale <= 0:
            raise UserError(
                f"backbone.scale={scale}: it divides the logits; give a positive number"
            )
        self.scale = scale

    def setup(self, shape: Shape, slots: int) -> None:
        self.measure(shape)
        self.counts = [self.readers - first for first in self.first]
        zero, rows, width = constant(0.0), sum(self.counts), shape.width
        self.pair_query = parameter(rows, width, init=zero, role="connection")
        self.pair_bias = parameter(rows, init=zero, role="connection")
        self.slots = slots
        if slots:
            self.slot_query = parameter(slots, self.readers, width, init=zero, role="connection")
            self.slot_bias = parameter(slots, self.readers, init=zero, role="connection")

    def pairs(self, source: int) -> slice:
        """Rows of a source for readers ``first[source]`` on; source 0 is the embedding."""
        start = sum(self.counts[:source])
        return slice(start, start + self.counts[source])

    def queries(self) -> tuple[Query, ...]:
        weights = self.pair_query.split(self.counts)
        biases = self.pair_bias.split(self.counts)
        return tuple(map(Query, weights, biases, self.first))

    def query_of_slot(self, queries: tuple[Query, ...], slot: int) -> Query:
        return Query(self.slot_query[slot], self.slot_bias[slot], 0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        given: Tensor | None = state_dict.get(f"{prefix}pair_query")
        if given is not None and len(given) != len(self.pair_query):
            raise UserError(
                f"a pairwise table of {len(given)} rows does not fit {self.readers - 1} units with"
                f" block_size={self.block_size}, which need {len(self.pair_query)}: load it into a"
                " model of the depth and block_size that it was trained with"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)
