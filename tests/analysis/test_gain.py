"""The reading of one gain over a baseline, from intervals alone."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.estimate import Estimate, paired
from lrt_lab.analysis.gain import READINGS, judge, shown

MARGIN = 0.01


def estimate(point: float, half: float, n: int = 5) -> Estimate:
    """A gain whose 95% interval is point -+ half."""
    unit = paired(np.array([-1.0, 0.0, 0.0, 0.0, 1.0]))
    se = half / (float(unit.interval()[1]) / float(unit.se))
    return Estimate(np.array(point), np.array(se), np.array(n - 1.0), n)


CASES = {
    "clear": (0.03, 0.02, "supported"),
    "clear but small": (0.005, 0.004, "negligible"),
    "small, but perhaps not": (0.008, 0.006, "supported"),
    "against": (-0.03, 0.02, "reversed"),
    "nothing": (0.001, 0.005, "equivalent"),
    "anything": (0.001, 0.05, "inconclusive"),
}


@pytest.mark.parametrize(("point", "half", "reading"), CASES.values(), ids=CASES.keys())
def test_readings(point: float, half: float, reading: str) -> None:
    gain = estimate(point, half)
    assert judge(gain, MARGIN) == reading
    assert judge(gain, MARGIN, solid=estimate(0.02, 0.01)) == reading
    for weak in (estimate(0.02, 0.03), estimate(-0.02, 0.01)):
        assert not shown(weak)
        assert judge(gain, MARGIN, solid=weak) == "not solid"


def test_whole_arrays_are_read_at_once() -> None:
    point, se = np.array([0.05, -0.05, 0.0]), np.array([0.01, 0.01, 0.0001])
    gains = Estimate(point, se, np.full(3, 4.0), 5)
    solid = Estimate(np.array([0.05, 0.05, -0.05]), se, np.full(3, 4.0), 5)
    found = judge(gains, MARGIN, solid=solid)
    assert list(found) == ["supported", "reversed", "not solid"]
    assert set(found) <= set(READINGS)


def test_a_gain_of_nothing_is_rarely_supported() -> None:
    """5% two-sided, of which half is above 0."""
    drawn = np.random.Generator(np.random.Philox(1)).standard_normal((4000, 5))
    found = judge(paired(drawn), 1e-6)
    assert abs((found == "supported").mean() - 0.025) < 0.01
    assert abs((found == "reversed").mean() - 0.025) < 0.01
