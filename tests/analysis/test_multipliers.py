"""Multipliers from completed budgets: exact on a power law, honest outside it."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.multipliers import interaction, interpolate, merged, multiplier

COSTS = [1.0, 2.0, 4.0]


def law(cost: float, n: int = 5, sd: float = 1e-3, seed: int = 1) -> np.ndarray:
    """ln loss falls by .1 per unit of ln cost."""
    noise = generator(seed, "law", cost, n).normal(size=n)
    return 3 * cost**-0.1 * np.exp(sd * noise)


@pytest.mark.parametrize("true", [1.0, 1.3, 1.9, 2.0, 3.5])
@pytest.mark.parametrize("pairs", [True, False], ids=["paired", "unpaired"])
def test_a_power_law_gives_back_its_multiplier(true: float, pairs: bool) -> None:
    rows = [law(cost, sd=1e-6) for cost in COSTS]
    variant = law(true, sd=1e-6, seed=2)
    found = multiplier(COSTS, rows, 1.0, variant, paired_seeds=pairs)
    assert found.point == pytest.approx(true, rel=1e-4)
    assert found.low < true < found.high
    assert found.budgets == 3


def test_the_interval_covers() -> None:
    covered = 0
    for k in range(400):
        rows = [law(cost, seed=1000 + k) for cost in COSTS]
        found = multiplier(COSTS, rows, 1.0, law(1.5, seed=5000 + k))
        covered += found.low <= 1.5 <= found.high
    assert covered / 400 == pytest.approx(0.95, abs=0.033)


@pytest.mark.parametrize(("true", "place", "bound"), [(9.0, "above", 4.0), (0.4, "below", 1.0)])
def test_beyond_the_budgets_there_is_only_a_bound(true: float, place: str, bound: float) -> None:
    found = multiplier(COSTS, [law(c) for c in COSTS], 1.0, law(true))
    assert found.place == place
    assert found.point == pytest.approx(bound)
    assert np.isnan(found.low)


def test_just_beyond_is_extrapolated_and_says_so() -> None:
    found = multiplier(COSTS, [law(c, sd=1e-6) for c in COSTS], 1.0, law(4.1, sd=1e-6))
    assert found.place == "extrapolated"
    assert found.point == pytest.approx(4.1, rel=1e-3)


@pytest.mark.parametrize("slope", [0.0, -0.1], ids=["flat", "rising"])
def test_a_baseline_that_does_not_improve_defines_nothing(slope: float) -> None:
    flat = [3 * c**-slope * np.exp(1e-3 * generator(3, c).normal(size=5)) for c in COSTS]
    found = multiplier(COSTS, flat, 1.0, law(1.0))
    assert found.place in ("undefined", "above", "below")
    assert np.isnan(found.low)


def test_one_budget_is_not_a_curve() -> None:
    assert multiplier([1.0], [law(1.0)], 1.0, law(1.0)).place == "undefined"


def test_the_order_of_budgets_does_not_matter() -> None:
    rows = [law(c) for c in COSTS]
    one = multiplier(COSTS, rows, 1.0, law(1.5, seed=2))
    other = multiplier(COSTS[::-1], rows[::-1], 1.0, law(1.5, seed=2))
    assert (one.point, one.low) == (other.point, other.low)


def test_multipliers_that_multiply_have_no_interaction() -> None:
    rows = [law(c) for c in COSTS]
    half = [0.5 * row for row in rows]
    base = multiplier(COSTS, rows, 1.0, law(1.5, seed=2))
    improved = multiplier(COSTS, half, 1.0, 0.5 * law(1.5, seed=2))
    found = interaction(base, improved)
    assert found is not None
    assert abs(float(found.point)) < 1e-12


def test_the_linearised_seeds_average_to_the_multiplier() -> None:
    found = multiplier(COSTS, [law(c) for c in COSTS], 1.0, law(1.5, seed=2))
    assert found.per_seed is not None
    assert np.exp(found.per_seed.mean()) == pytest.approx(found.point, rel=1e-12)


def test_losses_between_budgets_lie_on_the_line_and_never_outside() -> None:
    rows = [law(c, sd=0) for c in COSTS]
    np.testing.assert_allclose(interpolate(COSTS, rows, 3.0), 3 * 3.0**-0.1)
    np.testing.assert_allclose(interpolate(COSTS, rows, 4.0), rows[-1])
    assert interpolate(COSTS, rows, 4.01) is None
    assert interpolate(COSTS[:1], rows[:1], 1.0) is None


@pytest.mark.parametrize("pairs", [True, False], ids=["paired", "unpaired"])
def test_equal_budgets_are_one_budget(pairs: bool) -> None:
    costs, rows = merged(
        [2.0, 1.0, 2.01, 4.0], [law(2.0), law(1.0), law(2.0, seed=9), law(4.0)], pairs
    )
    assert costs == [1.0, pytest.approx(2.005), 4.0]
    assert [len(row) for row in rows] == ([5, 5, 5] if pairs else [5, 10, 5])
