"""Swaps in S5: following a permutation of five things through one transposition after the other.

The word problem of S5 is complete for NC1 (Barrington 1989; Merrill, Petty, Sabharwal,
arXiv:2404.08819): a stack of fixed depth cannot solve it at every length, a recurrence can. With
only the four adjacent transpositions for letters a token changes little of the state.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations

import torch
from torch import Tensor

from lrt_lab.data.batch import Batch
from lrt_lab.data.tasks.base import Task

__all__ = ["SwapsS5", "states", "transitions"]

THINGS = 5
SWAPS = THINGS - 1


class SwapsS5(Task):
    """Adjacent transpositions, and at each position the permutation that all so far compose to.

    State s is a permutation of 0..4, the identity at first; swap i exchanges what stands at places
    i and i + 1. Tokens 0..119 are the states in lexicographic order, 120..123 the swaps.
    """

    @property
    def vocabulary(self) -> int:
        """120 states and 4 swaps."""
        return len(states()) + SWAPS

    def draw(self, count: int, length: int, g: torch.Generator) -> Batch:
        swaps = torch.randint(SWAPS, (count, length), generator=g)
        state, table = torch.zeros(count, dtype=torch.long), transitions()
        targets = torch.empty_like(swaps)
        for t in range(length):
            state = table[state, swaps[:, t]]
            targets[:, t] = state
        return {"tokens": len(states()) + swaps, "targets": targets}


@cache
def states() -> tuple[tuple[int, ...], ...]:
    """All 120 permutations in lexicographic order, the identity first."""
    return tuple(permutations(range(THINGS)))


@cache
def transitions() -> Tensor:
    """The state after each swap in each state, ``(120, 4)``."""
    index = {state: number for number, state in enumerate(states())}
    rows = []
    for state in states():
        after = []
        for i in range(SWAPS):
            moved = list(state)
            moved[i], moved[i + 1] = moved[i + 1], moved[i]
            after.append(index[tuple(moved)])
        rows.append(after)
    return torch.tensor(rows)
