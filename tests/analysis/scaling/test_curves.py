"""Saturating curves, isoFLOP optima and exponents of known functions."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.scaling import exponent, interaction_law, isoflop, saturation
from lrt_lab.errors import UserError


@pytest.mark.parametrize("tau", [0.4, 1.7, 6.0])
def test_a_saturating_curve_comes_back(tau: float) -> None:
    k = np.array([1, 2, 3, 4, 6, 8, 12, 16])
    found = saturation(k, 0.8 + 0.05 * np.exp(-(k - 1) / tau))
    assert (found.floor, found.height, found.tau) == pytest.approx((0.8, 0.05, tau), rel=1e-5)
    np.testing.assert_allclose(found(k), 0.8 + 0.05 * np.exp(-(k - 1) / tau), rtol=1e-7)


def test_three_pass_counts_are_too_few() -> None:
    with pytest.raises(UserError, match="3 pass counts are too few"):
        saturation([1, 2, 3, 3], [1.0, 0.9, 0.85, 0.86])


def test_weights_pull_an_exponent() -> None:
    x = np.array([1.0, 10.0, 100.0, 1000.0])
    y = 3 * x**0.5
    assert exponent(x, y).point == pytest.approx(0.5)
    y[3] *= 2
    trusted = exponent(x, y, [0.01, 0.01, 0.01, 10.0])
    assert trusted.point == pytest.approx(0.5, abs=1e-4)
    assert exponent(x, y).point > 0.55


def test_the_minimum_of_a_parabola() -> None:
    size = np.geomspace(1e6, 1e8, 9)
    best = np.log(9e6)
    found = isoflop(size, 3 * np.exp(0.02 * (np.log(size) - best) ** 2))
    assert found is not None
    assert found.log_size == pytest.approx(best)
    assert found.loss == pytest.approx(3.0)
    assert found.points >= 5


def test_a_curve_without_a_minimum_inside_has_no_optimum() -> None:
    size = np.geomspace(1e6, 1e8, 9)
    assert isoflop(size, 3 - 0.1 * np.log(size / 1e6)) is None
    assert isoflop(size[:4], np.array([3.0, 2.9, 2.95, 3.1])) is None


class TestInteraction:
    size, tokens, seed = map(
        np.ravel, np.meshgrid([1e6, 4e6, 16e6], [1e8, 4e8], np.arange(5), indexing="ij")
    )

    def values(self, noise: float = 0.0) -> np.ndarray:
        draws = np.random.default_rng(3).standard_normal(self.size.shape)
        n, d = self.size / 4e6, self.tokens / 2e8
        return 0.01 - 0.004 * np.log(n) + 0.002 * np.log(d) + noise * draws

    def test_its_slopes_come_back(self) -> None:
        found = interaction_law(self.size, self.tokens, self.values(1e-9))
        assert (found.size, found.tokens) == pytest.approx((4e6, 2e8))
        assert found.middle.point == pytest.approx(0.01, abs=1e-8)
        assert found.by_size.point == pytest.approx(-0.004, abs=1e-8)
        assert found.by_data.point == pytest.approx(0.002, abs=1e-8)
        assert found.vanishes == pytest.approx(4e6 * np.exp(2.5), rel=1e-4)

    def test_intervals_hold_the_truth(self) -> None:
        found = interaction_law(self.size, self.tokens, self.values(0.001))
        low, high = found.by_size.interval()
        assert low < -0.004 < high and high - low < 0.002
        assert found.by_size.df == 30 - 3

    def test_a_slope_that_is_not_shown_vanishes_nowhere(self) -> None:
        assert np.isnan(interaction_law(self.size, self.tokens, self.values(0.1)).vanishes)

    def test_one_axis_alone(self) -> None:
        found = interaction_law(self.size, 2e8 + 0 * self.tokens, self.values(0.001))
        assert found.by_data is None and found.by_size is not None

    @pytest.mark.parametrize(
        ("size", "tokens", "said"),
        [
            (1 + 0 * size, 1 + 0 * size, "neither size nor data varies"),
            (size, 20 * size, "grow together"),
            (size[:2] * [1, 2], tokens[:2], "too few"),
        ],
        ids=["one cell", "one ratio", "two entries"],
    )
    def test_what_has_no_law_is_refused(self, size, tokens, said: str) -> None:
        with pytest.raises(UserError, match=said):
            interaction_law(size, tokens, np.linspace(0, 1, len(size)) ** 2)
