"""The one table that every analysis starts from: losses by cell and seed.

Rows come in any order, one per run. `arrange` puts them in their places and refuses what cannot be
analysed. The loss may carry leading axes (simulated tables): they stay in front, `(..., cells,
seeds)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from lrt_lab.errors import UserError


@dataclass(frozen=True)
class Table:
    """Loss in nats per token, `(..., cells, seeds)`; NaN where a cell has no finished run of that
    seed.
    """

    cells: tuple[str, ...]
    seeds: tuple[Hashable, ...]
    loss: np.ndarray
    paired: bool = True

    def select(self, cells: Sequence[str]) -> Table:
        """These cells, in this order."""
        missing = [cell for cell in cells if cell not in self.cells]
        if missing:
            raise UserError(
                f"the table has no cell {missing[0]!r}; it has: {', '.join(self.cells)}"
            )
        index = [self.cells.index(cell) for cell in cells]
        return replace(self, cells=tuple(cells), loss=self.loss[..., index, :])

    def blocks(self) -> Table:
        """Complete pair blocks only: the seeds for which every cell has a loss. Unpaired tables are
        left as they are.
        """
        if not self.paired:
            return self
        whole = np.isfinite(self.loss).all(axis=-2)
        keep = whole.all(axis=tuple(range(whole.ndim - 1)))
        seeds = tuple(seed for seed, kept in zip(self.seeds, keep, strict=True) if kept)
        return replace(self, seeds=seeds, loss=self.loss[..., keep])

    def row(self, cell: str) -> np.ndarray:
        """One cell's losses, (..., seeds)."""
        return self.loss[..., self.cells.index(cell), :]


def arrange(
    cell: Sequence[str],
    seed: Sequence[Hashable],
    loss: ArrayLike,
    *,
    cells: Iterable[str] | None = None,
    seeds: Iterable[Hashable] | None = None,
    paired: bool = True,
) -> Table:
    """Rows to a table.

    Args:
        cell: each row's cell.
        seed: each row's seed.
        loss: each row's loss in nats per token, (..., rows); NaN for a run that has none.
        cells: the cells and their order; those of the rows by default.
        seeds: the seeds and their order; those of the rows by default.
        paired: whether equal seeds of different cells form pair blocks.
    """
    loss = np.asarray(loss, dtype=float)
    if loss.shape[-1] != len(cell) or len(cell) != len(seed):
        raise UserError(
            f"{len(cell)} cells, {len(seed)} seeds and {loss.shape[-1]} losses do not make one "
            "table"
        )
    twice = [key for key, count in Counter(zip(cell, seed, strict=True)).items() if count > 1]
    if twice:
        raise UserError(
            f"duplicated runs: cell {twice[0][0]!r} has seed {twice[0][1]!r} more than once; keep "
            "one row each"
        )
    if np.any(loss <= 0) or np.any(np.isinf(loss)):
        raise UserError(
            "losses must be positive and finite (nats per token); mark a diverged run by its "
            "status or leave it empty"
        )
    names = tuple(dict.fromkeys(cells if cells is not None else cell))
    columns = tuple(dict.fromkeys(seeds if seeds is not None else _sorted(seed)))
    grid = np.full((*loss.shape[:-1], len(names), len(columns)), np.nan)
    place = {name: i for i, name in enumerate(names)}
    column = {name: i for i, name in enumerate(columns)}
    rows = [i for i in range(len(cell)) if cell[i] in place and seed[i] in column]
    grid[..., [place[cell[i]] for i in rows], [column[seed[i]] for i in rows]] = loss[..., rows]
    return Table(names, columns, grid, paired)


def _sorted(seeds: Sequence[Hashable]) -> list[Hashable]:
    unique = list(dict.fromkeys(seeds))
    try:
        return sorted(unique)  # type: ignore[type-var]
    except TypeError:
        return sorted(unique, key=str)
