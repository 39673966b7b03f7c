"""The second opinion: refuses where it would mislead, widens where it must."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.bootstrap import percentile
from lrt_lab.analysis.draws import generator
from lrt_lab.errors import UserError


def mean(values: np.ndarray) -> np.ndarray:
    return values.mean(axis=-1)


def test_four_runs_are_refused() -> None:
    with pytest.raises(UserError, match="needs at least 5"):
        percentile(mean, [np.arange(4.0)], generator(1, "few"))


def test_expanded_percentiles_are_wider_and_cover_better() -> None:
    draws = generator(2, "coverage")
    covered = {True: 0, False: 0}
    for k in range(300):
        values = draws.normal(size=5)
        for expanded in covered:
            low, high = percentile(
                mean, [values], generator(3, k), expanded=expanded, resamples=400
            )
            covered[expanded] += low <= 0 <= high
    assert covered[False] / 300 < 0.88 < covered[True] / 300 < 0.96


def test_paired_groups_are_drawn_together() -> None:
    a = generator(4, "pairs").normal(size=8)
    low, high = percentile(
        lambda x, y: (x - y).mean(axis=-1), [a, a - 1], generator(5, "pairs"), paired=True
    )
    assert low == pytest.approx(1.0)
    assert high == pytest.approx(1.0)


def test_equal_seeds_equal_intervals() -> None:
    values = generator(6, "same").normal(size=8)
    one, two = (percentile(mean, [values], generator(7, "draw")) for _ in range(2))
    assert one == two
