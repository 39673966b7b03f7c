"""Few combinations of parts in which every class meets every other and every variant occurs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product

from tests.support.registry import Case


def goals(cell: Iterable[Case]) -> set[tuple[object, ...]]:
    """What a combination shows: pairs of classes, and each of its variants."""
    cases = list(cell)
    pairs = {(a.part, b.part) for a, b in combinations(cases, 2)}
    return pairs | {(case,) for case in cases}


def covering(
    axes: Sequence[Sequence[Case]], meet: Callable[[Case, Case], bool]
) -> list[tuple[Case, ...]]:
    """One case per axis in every combination; always the same ones.

    Greedy: the first pair that shows what is still missing, then on every other axis the case that
    adds most, the first of equals.

    Args:
        axes: cases of each axis; some case of every later axis meets any that are chosen.
        meet: whether two cases may be combined, that of the earlier axis first.
    """
    sides = combinations(range(len(axes)), 2)
    pairs = [{i: a, j: b} for i, j in sides for a, b in product(axes[i], axes[j]) if meet(a, b)]
    missing = set().union(*(goals(pair.values()) for pair in pairs))
    found = []
    for pair in pairs:
        if not goals(pair.values()) & missing:
            continue
        chosen = dict(pair)
        for axis in range(len(axes)):
            if axis in chosen:
                continue
            trials = [dict(sorted({**chosen, axis: case}.items())) for case in axes[axis]]
            fitting = [
                trial
                for trial in trials
                if all(meet(a, b) for a, b in combinations(trial.values(), 2))
            ]
            chosen = max(fitting, key=lambda trial: len(goals(trial.values()) & missing))
        cell = tuple(chosen[axis] for axis in range(len(axes)))
        missing -= goals(cell)
        found.append(cell)
    return found
