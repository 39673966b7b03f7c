"""The verdict on one gain over a baseline that must itself be an improvement.

First the baseline must be solid: the 95% interval of its own gain lies above 0. A difference from a
baseline that does no good is a difference and answers nothing. Then the gain G on ln loss decides,
in order:

1. not solid     the baseline's own gain is not shown
2. negligible    G > 0, but its 90% interval lies inside the margin
3. supported     G > 0
4. reversed      G < 0
5. equivalent    the 90% interval lies inside the margin (two one-sided tests)
6. inconclusive  everything else

G is alone in its family, so its interval needs no correction; nor does the baseline's own gain,
which is a gate to pass before it.
"""

from __future__ import annotations

import numpy as np

from lrt_lab.analysis.estimate import Estimate

READINGS = ("not solid", "negligible", "supported", "reversed", "equivalent", "inconclusive")


def shown(gain: Estimate, alpha: float = 0.05) -> np.ndarray:
    """Whether a gain's two-sided interval lies above 0."""
    return gain.interval(1 - alpha)[0] > 0


def judge(
    gain: Estimate, margin: float, alpha: float = 0.05, solid: Estimate | None = None
) -> np.ndarray:
    """The reading of each gain, of the estimates' shape.

    Args:
        gain: G, in ln loss.
        margin: half-width of the band of gains that do not matter.
        alpha: the two-sided level; the equivalence test uses the 1 - 2 alpha interval.
        solid: the baseline's own gain; None where it is not asked for.
    """
    low, high = gain.interval(1 - alpha)
    inner_low, inner_high = gain.interval(1 - 2 * alpha)
    inside = (inner_low > -margin) & (inner_high < margin)
    weak = np.zeros(low.shape, dtype=bool) if solid is None else ~shown(solid, alpha)
    return np.select(
        [weak, (low > 0) & inside, low > 0, high < 0, inside],
        list(READINGS[:-1]),
        default=READINGS[-1],
    )
