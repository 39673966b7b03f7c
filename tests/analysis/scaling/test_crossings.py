"""Costs at a target loss, and every answer that a comparison of two can have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import (
    WORDS,
    Crossing,
    Deployment,
    Draws,
    crossing,
    fit,
    law,
    measured,
    proportional,
    resample,
    timed,
)
from lrt_lab.analysis.scaling import crossings as answers
from lrt_lab.analysis.scaling.costs import reach
from lrt_lab.errors import UserError
from tests.analysis.scaling.grids import TRUTH, grid

BASE = Deployment("baseline", 0, 1, 1.0, proportional(6), proportional(2), proportional(2))
THREE = Deployment("3 passes", 0, 3, 1.0, proportional(18), proportional(6), proportional(2), 3)
TARGET = TRUTH["E"] + TRUTH["A"] / 4e7 ** TRUTH["alpha"] + TRUTH["B"] / 8e8 ** TRUTH["beta"]


def draws_of(phi: float, sd: float = 0.0, resamples: int = 3, **truth: float) -> Draws:
    found = law("iso-recurrence")
    given = grid(found, {"phi": phi, **truth}, passes=(1, 2, 3, 4), sd=sd)
    return resample(fit(found, given), generator(7, "draws"), resamples)


def by_hand(phi: float, use: float, passes: float, train: float, token: float) -> float:
    """ln of the least cost, by scipy, from the equations alone."""

    def cost(ln_n: float) -> float:
        n = np.exp(ln_n)
        left = TARGET - TRUTH["E"] - TRUTH["A"] / (n * passes**phi) ** TRUTH["alpha"]
        if left <= 0:
            return 1e3
        d = (TRUTH["B"] / left) ** (1 / TRUTH["beta"])
        return float(np.log(d * train * n + use * token * n))

    grid_of = np.linspace(np.log(1e5), np.log(1e10), 400)
    best = grid_of[np.argmin([cost(x) for x in grid_of])]
    return float(
        minimize_scalar(
            cost, bounds=(best - 0.1, best + 0.1), method="bounded", options={"xatol": 1e-12}
        ).fun
    )


@pytest.mark.parametrize("use", [1e8, 2e10, 1e13])
@pytest.mark.parametrize("ratio", [0.0, 10.0])
def test_the_least_cost_is_that_of_the_equations(use: float, ratio: float) -> None:
    draws = draws_of(0.46)
    for deployment, train, token in ((BASE, 6, 2 + 2 * ratio), (THREE, 18, 2 + 6 * ratio)):
        found = reach(draws.fit, draws.fit.theta[None], deployment, TARGET)
        value, _ = found.least(np.array([use]), ratio)
        want = by_hand(0.46, use, deployment.passes, train, token)
        assert value[0] == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("ratio", [0.0, 0.1])
def test_the_crossing_is_the_root_of_the_equations(ratio: float) -> None:
    found = crossing(draws_of(0.46), BASE, [THREE], TARGET, ratio=ratio)

    def h(u: float) -> float:
        other = by_hand(0.46, np.exp(u), 3, 18, 2 + 6 * ratio)
        return other - by_hand(0.46, np.exp(u), 1, 6, 2 + 2 * ratio)

    assert found.word == "crosses" and found.better == "above"
    assert found.point == pytest.approx(np.exp(brentq(h, np.log(1e9), np.log(1e12))), rel=1e-3)
    assert found.low == pytest.approx(found.point, rel=1e-3)


def test_prefill_passes_can_eat_the_whole_gain() -> None:
    words = {r: crossing(draws_of(0.46), BASE, [THREE], TARGET, ratio=r).word for r in (0, 1, 100)}
    assert words == {0: "crosses", 1: "never", 100: "never"}
    serial = replace(THREE, prefill=proportional(2))
    assert crossing(draws_of(0.46), BASE, [serial], TARGET, ratio=100).word == "crosses"


class TestWords:
    def test_phi_of_nothing_never_crosses(self) -> None:
        found = crossing(draws_of(0.0, 0.0008, 100), BASE, [THREE], TARGET)
        assert found.word == "never"
        assert found.point == np.inf and found.low == np.inf

    def test_a_small_phi_does_not_cross_in_the_window(self) -> None:
        found = crossing(draws_of(0.02, 0.0008, 100), BASE, [THREE], TARGET)
        assert found.word == "never in window"
        assert found.point == np.inf
        assert found.saving[1] > 0.01

    def test_free_passes_are_always_better(self) -> None:
        free = replace(THREE, train=proportional(6))
        found = crossing(draws_of(0.46), BASE, [free], TARGET)
        assert (found.word, found.point, found.high) == ("always better in window", 0.0, 0.0)

    def test_a_dear_decode_is_better_only_below(self) -> None:
        dear = replace(THREE, train=proportional(4), decode=proportional(6))
        found = crossing(draws_of(0.46), BASE, [dear], TARGET)
        assert (found.word, found.better) == ("crosses", "below")
        assert found.low == pytest.approx(found.point, rel=1e-2)

    def test_far_beyond_the_data_is_said(self) -> None:
        found = crossing(draws_of(0.1), BASE, [THREE], TARGET)
        assert found.word == "crosses beyond the data"
        assert found.extrapolation > 10 and found.beyond in ("compute", "size", "data")

    def test_a_target_below_the_floor_is_undefined(self) -> None:
        found = crossing(draws_of(0.46, 0.0008, 50), BASE, [THREE], 1.7)
        assert (found.word, found.undefined) == ("undefined", 1.0)
        assert np.isnan(found.point)

    def test_a_target_near_the_floor_is_undefined_in_a_share_of_draws(self) -> None:
        draws = draws_of(0.46, 0.004, 200)
        target = float(np.quantile(draws.natural[:, 2], 0.9))
        found = crossing(draws, BASE, [THREE], max(target, draws.fit.natural["E"] * 1.0001))
        assert found.word == "undefined" and 0 < found.undefined < 1

    def test_several_crossings(self) -> None:
        dear = replace(THREE, train=proportional(4), decode=proportional(6))
        found = crossing(draws_of(0.46), BASE, [dear, THREE], TARGET)
        signs = found.log_ratio[0] > 0
        assert (signs[1:] != signs[:-1]).sum() == 2
        assert found.word == "several crossings" and np.isnan(found.point)

    def test_every_answer_is_enumerated(self) -> None:
        names = ("CROSSES", "BEYOND", "ALWAYS", "NEVER_IN_WINDOW", "NEVER", "SEVERAL", "UNDEFINED")
        assert tuple(getattr(answers, name) for name in names) == WORDS


def test_an_interval_may_have_no_upper_end() -> None:
    found = crossing(draws_of(0.06, 0.004, 300), BASE, [THREE], TARGET)
    assert found.high == np.inf
    assert found.low < np.inf


def test_the_cheapest_number_of_passes_counts() -> None:
    two = replace(THREE, passes=2, train=proportional(12), prefill=proportional(4))
    draws = draws_of(0.46)
    alone = [crossing(draws, BASE, [d], TARGET) for d in (two, THREE)]
    both = crossing(draws, BASE, [two, THREE], TARGET)
    np.testing.assert_allclose(
        both.log_ratio[0], np.minimum(alone[0].log_ratio[0], alone[1].log_ratio[0]), atol=1e-7
    )
    assert both.point == pytest.approx(min(a.point for a in alone), rel=1e-6)


def test_a_window_that_does_not_rise_is_refused() -> None:
    with pytest.raises(UserError, match="window must rise"):
        crossing(draws_of(0.46), BASE, [THREE], TARGET, window=(1e9, 1e8))


class TestPrices:
    def test_measured_prices_go_through_their_points_and_on(self) -> None:
        price = measured([1e6, 1e7, 1e8], [2e6, 3e7, 4e8])
        np.testing.assert_allclose(price(np.array([1e6, 1e7, 1e8])), [2e6, 3e7, 4e8])
        slope = np.log(4e8 / 3e7) / np.log(10)
        np.testing.assert_allclose(price(np.array([1e9])), 4e8 * 10**slope)

    def test_equal_sizes_are_averaged_and_one_size_is_proportional(self) -> None:
        np.testing.assert_allclose(measured([1e6, 1e6], [2e6, 8e6])(np.array([3e6])), 12e6)

    @pytest.mark.parametrize(
        ("costs", "power"),
        [([2.0, 20.0, 200.0], 1.0), ([3.0, 2.0, 1.0], 0.0), ([1.0, 4.0, 1.0], 0.0)],
        ids=["a power", "falling", "noise"],
    )
    def test_timed_prices_follow_one_power_that_never_falls(self, costs, power: float) -> None:
        sizes = np.array([1e6, 1e7, 1e8])
        price = timed(sizes, costs)
        middle = np.exp(np.log(costs).mean())
        np.testing.assert_allclose(price(sizes), middle * (sizes / 1e7) ** power)
        np.testing.assert_allclose(price(np.array([1e12])), middle * 1e5**power)

    def test_one_size_has_one_time(self) -> None:
        np.testing.assert_allclose(timed([1e6, 1e6], [2.0, 8.0])(np.array([1.0, 9e9])), 4.0)


def test_the_record_is_complete() -> None:
    found = crossing(draws_of(0.46), BASE, [THREE], TARGET)
    assert isinstance(found, Crossing)
    assert found.window == (1e7, 1e14) and found.target == TARGET
    assert found.tokens.shape == found.reached.shape == (found.log_ratio.shape[1],)
    assert (np.diff(found.log_ratio[0]) < 0).all()
    assert (found.log_ratio[1] <= found.log_ratio[2]).all()
