"""From rows to a table, in any order, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.table import arrange
from lrt_lab.errors import UserError


def test_rows_come_in_any_order() -> None:
    cells, seeds, loss = ["b", "a", "b", "a"], [2, 2, 1, 1], [4.0, 3.0, 2.0, 1.0]
    table = arrange(cells, seeds, loss, cells=["a", "b"])
    assert table.seeds == (1, 2)
    np.testing.assert_array_equal(table.loss, [[1, 3], [2, 4]])


def test_a_simulated_batch_keeps_its_axis_in_front() -> None:
    table = arrange(["a", "b"], [1, 1], np.ones((7, 2)))
    assert table.loss.shape == (7, 2, 1)
    assert table.row("b").shape == (7, 1)


def test_gaps_stay_empty_and_their_seeds_drop_out_of_the_blocks() -> None:
    table = arrange(["a", "a", "b"], [1, 2, 1], [1.0, 2.0, 3.0])
    assert np.isnan(table.loss[1, 1])
    assert table.blocks().seeds == (1,)


def test_unpaired_tables_have_no_blocks() -> None:
    table = arrange(["a", "a", "b"], [1, 2, 1], [1.0, 2.0, 3.0], paired=False)
    assert table.blocks() is table


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((["a", "a"], [1, 1], [1.0, 2.0]), "duplicated runs: cell 'a' has seed 1 more than once"),
        ((["a"], [1], [0.0]), "must be positive"),
        ((["a"], [1], [-2.0]), "must be positive"),
        ((["a"], [1], [np.inf]), "must be positive and finite"),
        ((["a", "b"], [1], [1.0]), "do not make one table"),
    ],
    ids=["duplicate", "zero", "negative", "infinite", "ragged"],
)
def test_what_is_refused(rows, says: str) -> None:
    with pytest.raises(UserError, match=says):
        arrange(*rows)


def test_a_missing_cell_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match="no cell 'c'; it has: a, b"):
        arrange(["a", "b"], [1, 1], [1.0, 2.0]).select(["a", "c"])
