"""Attention Residuals: every unit attends over all earlier outputs.

Source: Kimi Team, arXiv:2603.15031 section 3.

With sources r_0 = embedding, r_i = output of unit i (raw, never summed up), a reader u, its query
w_u and its key gain k_u:

    alpha_{uj} = softmax_j( (w_u * k_u) . RMS(r_j) ),    x_u = sum_j alpha_{uj} r_j

over the sources before u; the head is one more reader with a query of its own. Values are raw,
there is no 1/sqrt(d), and logits and softmax are float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from lrt_kernels import depth_mix, depth_score
from lrt_lab.backbones.base import Backbone, Source
from lrt_lab.layers import Shape, constant, parameter


class Bank(NamedTuple):
    """Every source so far, with its logits for all readers that come after it.

    ``logits[j][i]`` is source j's ``(B, P)`` logit for its i-th reader, counted from ``first[j]``.
    Scoring a source once for all its readers costs one matrix product per source instead of one
    pass over it per read. ``query`` is every reader's query times its key gain,
    ``(U + 1, d)``: one tensor, of which every scoring keeps a view for its backward pass.
    """

    query: Tensor
    values: tuple[Tensor, ...]
    logits: tuple[tuple[Tensor, ...], ...]
    first: tuple[int, ...]
    masks: tuple[Tensor | None, ...]
    # The mixture that the coming unit reads, kept from `enter` so that it is not computed twice.
    entered: Tensor | None = None


class AttentionResiduals(Backbone):
    """Full Attention Residuals with one query and one key gain per reader.

    Queries start at zero: at step 0 every read is the plain mean of its sources (*not* PreNorm's
    sum). A route's residual injection changes the coming unit's read and nothing else; a route's
    sources join the bank right after the embedding and are masked where absent.

    Args:
        eps: inside the root mean square of the keys.
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def setup(self, shape: Shape, slots: int) -> None:
        # Reader u < U is unit u, reader U is the head.
        self.readers = shape.units + 1
        self.query = parameter(self.readers, shape.width, init=constant(0.0), role="connection")
        self.key_gain = parameter(self.readers, shape.width, init=constant(1.0), role="connection")

    def start(self, x: Tensor, sources: Sequence[Source]) -> Bank:
        bank = self._add(Bank(self.query * self.key_gain, (), (), (), ()), x, 0, None)
        for value, present in sources:
            bank = self._add(bank, value, 0, present)
        return bank

    def _add(self, bank: Bank, value: Tensor, first: int, mask: Tensor | None) -> Bank:
        logits = depth_score(value, bank.query[first:], self.eps).unbind(-1)
        return Bank(
            bank.query,
            (*bank.values, value),
            (*bank.logits, logits),
            (*bank.first, first),
            (*bank.masks, mask),
        )

    def enter(self, state: Bank, unit: int, inject: Callable[[Tensor], Tensor]) -> Bank:
        return state._replace(entered=inject(self.hidden(state, unit)))

    def read(self, state: Bank, unit: int) -> Tensor:
        return self.hidden(state, unit) if state.entered is None else state.entered

    def write(self, state: Bank, unit: int, y: Tensor) -> Bank:
        return self._add(state, y, unit + 1, None)

    def hidden(self, state: Bank, unit: int) -> Tensor:
        logits = [
            scores[unit - first] for scores, first in zip(state.logits, state.first, strict=True)
        ]
        return depth_mix(logits, state.values, state.masks)

    def finish(self, state: Bank) -> Tensor:
        return self.hidden(state, self.readers - 1)
