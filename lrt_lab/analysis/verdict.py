"""The gated verdict of "a better residual stream multiplies the gain of a latent route".

First both gains must be shown: each 95% interval above 0, and Holm's adjusted p at most alpha for
the two. Then the interaction I on ln loss decides. Improvements *multiply* when I = 0 and *more
than multiply* when I > 0. In order:

1. qualitative    I > 0 without both gains
2. substitution   one improvement alone reaches what both together reach, and neither alone is
                  better than both together by more than the margin
3. negligible     I > 0, but its 90% interval lies inside the margin
4. supported      I > 0
5. reversed       I < 0
6. equivalent     the 90% interval lies inside the margin (two one-sided tests)
7. inconclusive   everything else

An improvement that alone is better than both together, by an amount whose interval lies beyond the
margin, is no substitute: the other one then harms it, which neither substitution nor a ceiling
does.

Fewer than five seeds make a pilot: the reading is printed, a verdict is not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lrt_lab.analysis.estimate import Estimate
from lrt_lab.analysis.multiplicity import holm

FEWEST_SEEDS = 5
READINGS = (
    "qualitative",
    "substitution",
    "negligible",
    "supported",
    "reversed",
    "equivalent",
    "inconclusive",
)


@dataclass(frozen=True)
class Verdict:
    """One reading per table, with what it rests on. All arrays of the estimates' shape."""

    reading: np.ndarray
    gain_base: np.ndarray
    gain_improved: np.ndarray
    holm_base: np.ndarray
    holm_improved: np.ndarray
    backbone_alone: np.ndarray
    route_alone: np.ndarray
    backbone_better: np.ndarray
    route_better: np.ndarray
    pilot: bool

    @property
    def both_gains(self) -> np.ndarray:
        """Whether the gate is open: both gains shown."""
        return self.gain_base & self.gain_improved


def decide(
    effects: Mapping[str, Estimate], margin: float, alpha: float = 0.05, fewest: int = FEWEST_SEEDS
) -> Verdict:
    """The verdict from the square's contrasts on ln loss (`square.effects`).

    Args:
        effects: the contrasts of `square.CONTRASTS`.
        margin: m, half-width of the band of interactions that do not matter, in ln loss.
        alpha: the two-sided level; the equivalence test uses the 1 - 2 alpha interval.
        fewest: below this many seeds the result is a pilot.
    """
    gains = [effects["gain_base"], effects["gain_improved"]]
    adjusted = holm(np.stack([np.asarray(gain.p()) for gain in gains], axis=-1))
    shown = [
        (gain.interval(1 - alpha)[0] > 0) & (adjusted[..., i] <= alpha)
        for i, gain in enumerate(gains)
    ]

    interaction = effects["interaction"]
    low, high = interaction.interval(1 - alpha)
    inner_low, inner_high = interaction.interval(1 - 2 * alpha)
    inside = (inner_low > -margin) & (inner_high < margin)
    positive = low > 0
    backbone_alone, route_alone = alone(effects, margin, alpha)
    backbone_better, route_better = better_alone(effects, margin, alpha)
    reading = np.select(
        [
            positive & ~(shown[0] & shown[1]),
            (backbone_alone | route_alone) & ~(backbone_better | route_better),
            positive & inside,
            positive,
            high < 0,
            inside,
        ],
        list(READINGS[:-1]),
        default=READINGS[-1],
    )
    return Verdict(
        reading=reading,
        gain_base=shown[0],
        gain_improved=shown[1],
        holm_base=adjusted[..., 0],
        holm_improved=adjusted[..., 1],
        backbone_alone=backbone_alone,
        route_alone=route_alone,
        backbone_better=backbone_better,
        route_better=route_better,
        pilot=interaction.n < fewest,
    )


def alone(
    effects: Mapping[str, Estimate], margin: float, alpha: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Whether the residual improvement, and whether the route, alone reaches what both together
    reach.

    Both must be improvements: each shown over the baseline by itself. What the other one adds to
    the single one must be shown to be below the margin (one-sided, level alpha), and the baseline
    itself must not reach that far.
    """

    def adds_less(name: str) -> np.ndarray:
        return effects[name].interval(1 - 2 * alpha)[1] < margin

    def shown(name: str) -> np.ndarray:
        return effects[name].interval(1 - alpha)[0] > 0

    improvements = shown("improvement") & shown("gain_base") & ~adds_less("together")
    return improvements & adds_less("gain_improved"), improvements & adds_less("improvement_routed")


def better_alone(
    effects: Mapping[str, Estimate], margin: float, alpha: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Whether the residual improvement, and whether the route, alone is better than both together
    by more than the margin.

    It must be shown over the baseline by itself, and the whole two-sided interval of what the other
    one takes away must lie beyond the margin.
    """

    def better(single: str, added: str) -> np.ndarray:
        shown = effects[single].interval(1 - alpha)[0] > 0
        return shown & (effects[added].interval(1 - alpha)[1] < -margin)

    return better("improvement", "gain_improved"), better("gain_base", "improvement_routed")
