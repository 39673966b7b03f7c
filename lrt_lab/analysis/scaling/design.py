"""What a planned grid of runs can tell, before any of them is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lrt_lab.analysis.scaling.fitting import MOST_CONDITION, condition, require_enough
from lrt_lab.analysis.scaling.laws import Centre, Law
from lrt_lab.analysis.scaling.run_table import Runs
from lrt_lab.errors import UserError

FEWEST_RATIOS = 3
# a published fit to 240 language models (arXiv:2404.10102), for designs without a pilot
TYPICAL = {"A": 482.0, "B": 2085.4, "E": 1.8169, "alpha": 0.3478, "beta": 0.3658}


@dataclass(frozen=True)
class Expected:
    """Expected standard errors of a law's parameters.

    Attributes:
        errors: by name; of the logarithm where the logarithm is fitted, and for A, B and E.
        condition: of the derivatives of ln L.
        runs: number of runs.
        sd: deviation of one run in ln L that was assumed.
    """

    errors: Mapping[str, float]
    condition: float
    runs: int
    sd: float


def expected(law: Law, planned: Runs, truth: Mapping[str, float], sd: float = 0.001) -> Expected:
    """Standard errors sd sqrt(diag (J' J)^-1) from the derivatives J of ln L at an assumed truth.

    A and B enter centred (the height of their term in the middle of the design): uncentred, their
    errors only restate those of alpha and beta.

    Args:
        law: the law that will be fitted.
        planned: the runs of the design; their losses are not looked at.
        truth: parameters by name; those of effects default to their first start.
        sd: deviation of one run in ln L.

    Raises:
        UserError: the condition number is above 1e4, there are fewer than three ratios of tokens to
            parameters, or too few runs: such a design cannot be fitted.
    """
    require_enough(law, planned)
    if not sd > 0:
        raise UserError(f"the deviation of a run in ln loss must be above 0, not {sd:g}")
    centre = Centre.of(planned)
    default = {p.name: np.exp(p.starts[-1]) if p.log else p.starts[-1] for p in law.parameters}
    theta = law.theta({**default, **truth}, centre)
    slopes = law.log_loss(theta, planned, centre)[1]
    found = condition(slopes)
    # steps are whole, so that equal ratios differ a little; passes alone would tell size from data
    # only by the form of the law
    ratios = len(np.unique(np.round(np.log(planned.tokens / planned.size), 1)))
    if not found <= MOST_CONDITION or ratios < FEWEST_RATIOS:
        raise UserError(
            f"this design cannot be fitted: condition number {found:.2g} (at most "
            f"{MOST_CONDITION:g}), {ratios} ratio(s) of tokens to parameters; size and data are "
            f"told apart by {FEWEST_RATIOS} ratios or more, and passes by several pass counts"
        )
    errors = sd * np.sqrt(np.diag(np.linalg.inv(slopes @ slopes.T)))
    return Expected(
        dict(zip(law.names, errors.tolist(), strict=True)), found, len(planned), float(sd)
    )
