"""Scaling laws of finished runs, and where two models cost the same.

from lrt_lab.analysis.scaling import crossing, fit, law, proportional, resample, runs

found = fit(law("iso-recurrence"), runs(size, tokens, loss, passes=passes))
draws = resample(found, generator(1, "bootstrap"))
found.natural["phi"], draws.interval(draws.natural)

base = Deployment("baseline", 0, 1, 1.0, *map(proportional, (6, 2, 2)))
three = Deployment("3 passes", 0, 3, 1.0, *map(proportional, (18, 6, 2)))
crossing(draws, base, [three], target=3.0, ratio=10).word
"""

from lrt_lab.analysis.scaling.bootstrap import Draws, resample
from lrt_lab.analysis.scaling.checks import (
    Candidate,
    candidate,
    choose,
    correlations,
    largest,
    nested_p,
    outliers,
    profile,
    separate,
)
from lrt_lab.analysis.scaling.costs import Deployment, measured, proportional, reach, timed
from lrt_lab.analysis.scaling.crossings import WINDOW, WORDS, Crossing, crossing
from lrt_lab.analysis.scaling.curves import Saturation, exponent, isoflop, saturation
from lrt_lab.analysis.scaling.design import TYPICAL, Expected, expected
from lrt_lab.analysis.scaling.equal_use import EqualUse, equal_use, sampled
from lrt_lab.analysis.scaling.fitting import DELTA, Fit, fit
from lrt_lab.analysis.scaling.interaction import (
    InteractionLaw,
    expected_interaction,
    interaction_law,
)
from lrt_lab.analysis.scaling.laws import PASSES, Law, law
from lrt_lab.analysis.scaling.run_table import MOST_EPOCHS, Admitted, Runs, admit, runs, told_apart

__all__ = [
    "DELTA",
    "MOST_EPOCHS",
    "PASSES",
    "TYPICAL",
    "WINDOW",
    "WORDS",
    "Admitted",
    "Candidate",
    "Crossing",
    "Deployment",
    "Draws",
    "EqualUse",
    "Expected",
    "Fit",
    "InteractionLaw",
    "Law",
    "Runs",
    "Saturation",
    "admit",
    "candidate",
    "choose",
    "correlations",
    "crossing",
    "equal_use",
    "expected",
    "expected_interaction",
    "exponent",
    "fit",
    "interaction_law",
    "isoflop",
    "largest",
    "law",
    "measured",
    "nested_p",
    "outliers",
    "profile",
    "proportional",
    "reach",
    "resample",
    "runs",
    "sampled",
    "saturation",
    "separate",
    "timed",
    "told_apart",
]
