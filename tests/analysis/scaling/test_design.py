"""What a design promises before any run."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.scaling import expected, law, runs
from lrt_lab.errors import UserError
from tests.analysis.scaling.grids import TRUTH, grid

# tokens per parameter: standard errors of alpha and beta, five sizes 5e6..8e7, sd .001
DESIGNS = {
    (10, 20, 40): (0.0078, 0.0041),
    (5, 20, 80): (0.0067, 0.0019),
    (2, 8, 32, 128): (0.0058, 0.0011),
}


@pytest.mark.parametrize("ratios", DESIGNS, ids=str)
def test_wider_ratios_tell_size_and_data_apart(ratios: tuple[float, ...]) -> None:
    found = expected(law(), grid(law(), {}, ratios=ratios), TRUTH, 0.001)
    alpha, beta = DESIGNS[ratios]
    assert found.errors["alpha"] == pytest.approx(alpha, abs=5e-5)
    assert found.errors["beta"] == pytest.approx(beta, abs=5e-5)
    assert found.condition < 100
    assert found.runs == 5 * len(ratios)


def test_one_ratio_is_refused() -> None:
    sizes = np.geomspace(5e6, 8e7, 10)
    planned = runs(sizes, 20 * sizes, np.ones(10))
    with pytest.raises(UserError, match=r"cannot be fitted: condition number .*1 ratio\(s\)"):
        expected(law(), planned, TRUTH)


def test_one_pass_count_cannot_give_phi() -> None:
    with pytest.raises(UserError, match="cannot be fitted: condition number inf"):
        expected(law("iso-recurrence"), grid(law(), {}), TRUTH)


def test_errors_grow_with_the_noise_and_shrink_with_runs() -> None:
    one = grid(law("iso-recurrence"), {"phi": 0.46}, passes=(1, 2, 3, 4))
    twice = runs(
        np.tile(one.size, 2),
        np.tile(one.tokens, 2),
        np.tile(one.loss, 2),
        passes=np.tile(one.passes, 2),
    )
    law_of = law("iso-recurrence")
    small, large = (expected(law_of, g, TRUTH, 0.001).errors["phi"] for g in (twice, one))
    assert large / small == pytest.approx(np.sqrt(2))
    assert expected(law_of, one, TRUTH, 0.004).errors["phi"] == pytest.approx(4 * large)


@pytest.mark.parametrize("sd", [0.0, -1.0])
def test_a_deviation_of_nothing_is_refused(sd: float) -> None:
    with pytest.raises(UserError, match="must be above 0"):
        expected(law(), grid(law(), {}), TRUTH, sd)
