"""Contrasts by name, and every pair of a larger factorial."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lrt_lab.analysis.contrasts import Contrast, against, evaluate, of_square, pairs
from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.square import Square, effects
from lrt_lab.analysis.table import Table, arrange
from lrt_lab.errors import UserError

BACKBONES, ROUTES, WIDTHS = ("P", "M", "A"), ("none", "L", "T"), ("64", "128")


def factorial(widths: tuple[str, ...] = WIDTHS) -> tuple[dict[str, dict[str, str]], Table]:
    cells = {
        f"{b}+{r}+{w}": {"backbone": b, "route": r, "width": w}
        for b, r, w in product(BACKBONES, ROUTES, widths)
    }
    loss = 3 * np.exp(0.01 * generator(1, "factorial").normal(size=(len(cells), 5)))
    return cells, Table(tuple(cells), tuple(range(5)), loss)


def test_every_pair_shares_the_baseline() -> None:
    cells, _ = factorial()
    found = pairs(cells, "backbone", "route", "P", "none")
    assert len(found) == 2 * 2 * 2
    for pair in found:
        assert pair.square.cells[0] == f"P+none+{pair.at['width']}"
        assert (
            pair.square.cells[3] == f"{pair.square.improved}+{pair.square.route}+{pair.at['width']}"
        )
    assert found[0].label == "M x L at width=64"


def test_a_pair_with_a_missing_corner_is_left_out() -> None:
    cells, _ = factorial(("64",))
    del cells["A+T+64"]
    labels = [pair.label for pair in pairs(cells, "backbone", "route", "P", "none")]
    assert labels == ["M x L at width=64", "M x T at width=64", "A x L at width=64"]


def test_a_squares_contrasts_are_its_effects() -> None:
    _, table = factorial()
    square = Square("P", "A", "none", "L", ("P+none+64", "P+L+64", "A+none+64", "A+L+64"))
    found = effects(table, square)
    for name, contrast in of_square(square).items():
        ours = evaluate(table, contrast).estimate
        np.testing.assert_allclose(ours.interval(), found[name].interval(), atol=1e-14)


def test_the_blocked_model_pools_all_cells() -> None:
    _, table = factorial()
    tested = evaluate(table, against("P+none+64", ["A+L+64"])[0])
    assert tested.blocked is not None
    assert tested.blocked.df == (18 - 1) * (5 - 1)
    np.testing.assert_allclose(tested.blocked.point, tested.estimate.point)


def test_a_contrast_uses_the_blocks_that_its_own_cells_complete() -> None:
    table = arrange(
        ["a"] * 3 + ["b"] * 3 + ["c"], [1, 2, 3, 1, 2, 3, 1], [2.0, 2.1, 2.2, 1.9, 2, 2.1, 1.8]
    )
    assert evaluate(table, Contrast("x", {"a": 1, "b": -1})).estimate.n == 3
    assert evaluate(table, Contrast("x", {"a": 1, "c": -1})).estimate.n == 1


@pytest.mark.parametrize(
    "weights", [{"a": 1.0, "b": -0.5}, {"a": 0.0, "b": 0.0}], ids=["sum", "zero"]
)
def test_weights_must_contrast_something(weights: dict[str, float]) -> None:
    with pytest.raises(UserError, match="must sum to 0"):
        Contrast("mine", weights)


def test_unknown_cells_are_named() -> None:
    _, table = factorial()
    with pytest.raises(UserError, match="no cell 'Q'"):
        evaluate(table, Contrast("mine", {"Q": 1.0, "P+none+64": -1.0}))
