"""Power, detectable effects and the chance of each verdict, against measured tables."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.estimate import paired
from lrt_lab.analysis.planning import chances, detectable, interaction_sd, power, seeds_needed

# minimum detectable effect in % of the loss at a run's deviation of .04%:
# gain, interaction, interaction at rho = .5
DETECTABLE = {
    3: (0.183, 0.259, 0.183),
    4: (0.119, 0.169, 0.119),
    5: (0.094, 0.133, 0.094),
    6: (0.080, 0.114, 0.080),
    8: (0.065, 0.092, 0.065),
    10: (0.056, 0.079, 0.056),
}
# seeds for 80% power on interactions of .1, .2 and .5%, by a run's deviation in % and rho
NEEDED = {
    (0.04, 0.0): (8, 4, 3),
    (0.04, 0.5): (5, 3, 3),
    (0.1, 0.0): (34, 10, 4),
    (0.1, 0.5): (18, 7, 3),
    (0.2, 0.0): (128, 34, 8),
    (0.2, 0.5): (65, 18, 5),
}
# supported, negligible, reversed, equivalent, inconclusive at sd_I = 8e-4, margin 1e-3
CHANCES = {
    (0.0, 3): (0.013, 0.012, 0.025, 0.194, 0.756),
    (0.0, 5): (0.013, 0.012, 0.025, 0.507, 0.442),
    (0.0, 8): (0.010, 0.016, 0.026, 0.839, 0.109),
    (0.001, 5): (0.541, 0.015, 0.0, 0.034, 0.410),
    (0.001, 8): (0.832, 0.023, 0.0, 0.026, 0.120),
    (0.001, 10): (0.910, 0.031, 0.0, 0.018, 0.042),
    (0.002, 3): (0.616, 0.0, 0.0, 0.0, 0.384),
    (-0.002, 5): (0.0, 0.0, 0.982, 0.0, 0.018),
}


@pytest.mark.parametrize("n", DETECTABLE)
def test_detectable_effects(n: int) -> None:
    sds = (0.04 * 2**0.5, interaction_sd(0.04, 0.0), interaction_sd(0.04, 0.5))
    np.testing.assert_allclose([detectable(sd, n) for sd in sds], DETECTABLE[n], rtol=0.02)


@pytest.mark.parametrize(("cv", "rho"), NEEDED, ids=str)
def test_seeds_needed(cv: float, rho: float) -> None:
    sd = interaction_sd(cv, rho)
    assert tuple(seeds_needed(effect, sd) for effect in (0.1, 0.2, 0.5)) == NEEDED[cv, rho]


@pytest.mark.parametrize(("effect", "n"), CHANCES, ids=str)
def test_chances_of_each_verdict(effect: float, n: int) -> None:
    found = chances(effect, 8e-4, n, 1e-3)
    np.testing.assert_allclose(list(vars(found).values()), CHANCES[effect, n], atol=0.012)


def test_power_is_the_share_of_rejections() -> None:
    values = generator(1, "power").normal(1.0, 1.0, (20000, 6))
    assert power(1.0, 1.0, 6) == pytest.approx((paired(values).p() < 0.05).mean(), abs=0.01)


def test_the_level_is_the_power_at_no_effect() -> None:
    assert power(0.0, 1.0, 5) == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize(
    ("effect", "sd", "expected"), [(0.0, 1.0, None), (1e-6, 1.0, None), (1.0, 0.0, 2)]
)
def test_ends_of_the_scale(effect: float, sd: float, expected: int | None) -> None:
    assert seeds_needed(effect, sd) == expected
    assert detectable(1.0, 1) == float("inf")
