"""The 2x2: its symmetries and its scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.square import (
    Square,
    absolute,
    effects,
    excess,
    log,
    relative_gains,
    relative_ratio,
    signs_disagree,
)
from lrt_lab.analysis.study import analyse
from lrt_lab.analysis.table import Table

CELLS = ("P+none", "P+R", "A+none", "A+R")
SQUARE = Square("P", "A", "none", "R", CELLS)
# differences of losses, the ratio and everything in ln loss must not care about a common factor
TO_BITS = 1 / np.log(2)


def table(n: int = 5, *, paired: bool = True, batch: tuple[int, ...] = ()) -> Table:
    draws = generator(1, "square", n, batch)
    means = np.array([3.30, 3.26, 3.24, 3.18])[:, None]
    noise = 0.01 * draws.normal(size=(*batch, 4, n)) + 0.02 * draws.normal(size=(*batch, 1, n))
    return Table(CELLS, tuple(range(n)), means * np.exp(noise), paired)


@pytest.mark.parametrize("paired", [True, False], ids=["paired", "unpaired"])
@pytest.mark.parametrize("scale", [log, absolute, excess(1.0)], ids=["log", "absolute", "excess"])
def test_swapping_backbones_flips_the_interaction(paired: bool, scale) -> None:
    data = table(paired=paired)
    one, other = effects(data, SQUARE, scale), effects(data, SQUARE.swapped, scale)
    low, high = one["interaction"].interval()
    np.testing.assert_allclose(other["interaction"].interval(), (-high, -low), rtol=1e-9)
    np.testing.assert_allclose(other["interaction"].p(), one["interaction"].p(), rtol=1e-9)
    np.testing.assert_allclose(other["gain_base"].point, one["gain_improved"].point)


@pytest.mark.parametrize("paired", [True, False], ids=["paired", "unpaired"])
def test_nats_or_bits_change_nothing(paired: bool) -> None:
    data = table(paired=paired)
    bits = replace(data, loss=data.loss * TO_BITS)
    one, other = analyse(data, SQUARE, 0.01), analyse(bits, SQUARE, 0.01)
    for name, estimate in one.log.items():
        np.testing.assert_allclose(other.log[name].interval(), estimate.interval(), atol=1e-12)
    for name, estimate in one.relative.items():
        np.testing.assert_allclose(other.relative[name].interval(), estimate.interval(), atol=1e-12)
    np.testing.assert_allclose(other.ratio.low, one.ratio.low, rtol=1e-6)
    assert other.verdict.reading == one.verdict.reading


def test_a_constant_added_to_a_seed_changes_nothing() -> None:
    data = table()
    shift = np.array([0.3, -0.1, 0.0, 0.7, -0.4])
    one = analyse(data, SQUARE, 0.01)
    other = analyse(replace(data, loss=data.loss * np.exp(shift)), SQUARE, 0.01)
    for name in one.log:
        np.testing.assert_allclose(other.log[name].interval(), one.log[name].interval(), atol=1e-12)
        np.testing.assert_allclose(
            other.blocked[name].interval(), one.blocked[name].interval(), atol=1e-12
        )
        np.testing.assert_allclose(other.sign_flip[name], one.sign_flip[name])
    on_nats = effects(replace(data, loss=data.loss + shift + 1), SQUARE, absolute)["interaction"]
    was = effects(data, SQUARE, absolute)["interaction"]
    np.testing.assert_allclose(on_nats.interval(), was.interval(), atol=1e-12)


def test_permuted_seed_labels_leave_unpaired_results_alone() -> None:
    data = table(paired=False)
    draws = generator(2, "permute")
    mixed = np.stack([row[draws.permutation(5)] for row in data.loss])
    one, other = effects(data, SQUARE), effects(replace(data, loss=mixed), SQUARE)
    for name in one:
        np.testing.assert_allclose(other[name].interval(), one[name].interval(), rtol=1e-12)
    paired = effects(replace(data, loss=mixed, paired=True), SQUARE)["interaction"]
    assert not np.isclose(paired.se, effects(replace(data, paired=True), SQUARE)["interaction"].se)


def test_the_interaction_is_the_log_of_the_ratio_of_ratios() -> None:
    data = table(n=1)
    p0, p1, a0, a1 = data.loss[:, 0]
    expected = (p1 / p0) / (a1 / a0)
    np.testing.assert_allclose(np.exp(effects(data, SQUARE)["interaction"].point), expected)


def test_relative_gains_and_their_ratio() -> None:
    data = table()
    gains, ratio = relative_gains(data, SQUARE), relative_ratio(data, SQUARE)
    np.testing.assert_allclose(ratio.point, gains["gain_improved"].point / gains["gain_base"].point)


def test_incomplete_blocks_are_left_out_whole() -> None:
    data = table()
    loss = data.loss.copy()
    loss[1, 3] = np.nan
    found = analyse(replace(data, loss=loss), SQUARE, 0.01)
    assert found.seeds == (0, 1, 2, 4)
    rest = replace(data, seeds=(0, 1, 2, 4), loss=np.delete(data.loss, 3, axis=1))
    assert found.log["interaction"].point == effects(rest, SQUARE)["interaction"].point


class TestScaleDependence:
    """Losses whose interaction is negative in nats, nil on ln loss and positive over a floor of
    1.8.
    """

    LOSSES = np.array([[3.300], [3.270], [3.250], [3.2205]])

    def scales(self, loss: np.ndarray):
        data = Table(CELLS, tuple(range(loss.shape[-1])), loss)
        found = [
            effects(data, SQUARE, scale)["interaction"] for scale in (log, absolute, excess(1.8))
        ]
        return data, found

    def test_the_numbers(self) -> None:
        data, (on_log, in_nats, over_floor) = self.scales(self.LOSSES)
        gains = relative_gains(data, SQUARE)
        np.testing.assert_allclose(gains["gain_base"].point, 0.00909, atol=1e-5)
        np.testing.assert_allclose(gains["gain_improved"].point, 0.00908, atol=1e-5)
        np.testing.assert_allclose(in_nats.point, -0.0005, atol=1e-12)
        assert abs(on_log.point) < 2e-5
        assert over_floor.point > 3e-4

    def test_without_seeds_the_points_decide(self) -> None:
        _, found = self.scales(self.LOSSES)
        assert signs_disagree(found)
        assert not signs_disagree(found[:2])

    @pytest.mark.parametrize(
        ("sd", "expected"), [(1e-5, True), (1e-2, False)], ids=["sharp", "noisy"]
    )
    def test_with_seeds_the_intervals_decide(self, sd: float, expected: bool) -> None:
        noise = sd * generator(3, "scales", sd).normal(size=(4, 5))
        _, found = self.scales(self.LOSSES * np.exp(noise))
        assert signs_disagree(found) is expected
