"""Choice by the held-out largest runs, nested tests, profiles, outliers."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.scaling import (
    candidate,
    choose,
    correlations,
    fit,
    largest,
    law,
    nested_p,
    outliers,
    profile,
    runs,
    separate,
)
from lrt_lab.errors import UserError
from tests.analysis.scaling.grids import grid


def of(name: str, truth: dict[str, float], **more):
    return grid(law(name), truth, ratios=(5, 20, 80), passes=(1, 2, 4, 8), **more)


def test_the_largest_runs_are_a_fifth_and_ties_stay_together() -> None:
    given = of("none", {})
    out = largest(given)
    assert out.sum() >= round(0.2 * len(given))
    assert given.compute[out].min() > given.compute[~out].max()


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("iso-recurrence", {"phi": 0.5}),
        ("saturating size", {"kappa": 1.0, "tau": 0.7}),
        ("saturating term", {"C": 0.1, "tau": 0.7}),
        ("none", {}),
    ],
    ids=["iso-recurrence", "saturating size", "saturating term", "none"],
)
def test_the_law_that_made_the_runs_is_chosen(name: str, truth: dict[str, float]) -> None:
    given = of(name, truth, sd=0.0005)
    # the smallest law that holds the truth: others that hold it too may predict as well
    rivals = [n for n in ("none", "iso-recurrence", "saturating term") if n != name]
    found = {n: candidate(law(n), given) for n in (name, *rivals)}
    best = choose(list(found.values()))
    if name == "none":
        assert found[name].held_out < 1.1 * best.held_out
        assert found[name].aicc == min(c.aicc for c in found.values())
    else:
        assert best is found[name]
        assert found[name].held_out < 0.002
    assert abs(found[name].bias) <= found[name].held_out


def test_a_law_with_too_many_parameters_is_out_and_none_left_is_an_error() -> None:
    few = of("none", {}).take(np.arange(9))
    refused = candidate(law("saturating term"), few)
    assert refused.fit is None and "needs 9 runs" in refused.refused
    with pytest.raises(UserError, match="no law can be fitted"):
        choose([refused])


class TestSeparateLaws:
    def test_shared_exponents_are_enough_where_they_are_true(self) -> None:
        shared = law("none", models=2)
        given = grid(
            shared, {"m_N": 1.4, "m_D": 1.0}, ratios=(2, 5, 20, 80), models=2, sd=0.001, seed=4
        )
        small, large = candidate(shared, given), separate([law(), law()], given)
        assert (small.parameters, large.parameters) == (7, 10)
        assert nested_p(small, large, len(given)) > 0.05
        assert small.aicc < large.aicc

    def test_and_not_where_they_are_false(self) -> None:
        one = grid(law(), {}, ratios=(2, 5, 20, 80), sd=0.001)
        two = grid(law(), {"alpha": 0.42}, ratios=(2, 5, 20, 80), sd=0.001, seed=2)
        both = runs(
            np.concatenate([one.size, two.size]),
            np.concatenate([one.tokens, two.tokens]),
            np.concatenate([one.loss, two.loss]),
            model=np.repeat([0, 1], len(one)),
        )
        small, large = candidate(law("none", models=2), both), separate([law(), law()], both)
        assert nested_p(small, large, len(both)) < 1e-4

    def test_what_is_not_nested_has_no_p(self) -> None:
        given = grid(law(), {}, ratios=(2, 5, 20, 80), sd=0.001)
        one = candidate(law(), given)
        assert np.isnan(nested_p(one, one, len(given)))


class TestIdentifiability:
    def test_a_profile_rises_on_both_sides_of_the_optimum(self) -> None:
        found = fit(law("iso-recurrence"), of("iso-recurrence", {"phi": 0.5}, sd=0.001))
        phi = found.theta[5]
        values = profile(found, "phi", phi + np.array([-0.05, 0.0, 0.05]))
        assert values[1] == pytest.approx(found.objective, rel=1e-6)
        assert values[0] > 1.2 * values[1] and values[2] > 1.2 * values[1]

    def test_height_and_exponent_of_a_term_are_one(self) -> None:
        found = correlations(fit(law(), grid(law(), {}, sd=0.001)))
        assert found[0, 3] > 0.99 and found[1, 4] > 0.99
        np.testing.assert_allclose(np.diag(found), 1.0)


def test_a_late_run_is_listed_and_others_are_not() -> None:
    clean = grid(law(), {}, ratios=(5, 10, 20, 40), sd=0.001)
    loss = clean.loss.copy()
    loss[7] *= 1.05
    assert list(outliers(fit(law(), runs(clean.size, clean.tokens, loss)))) == [7]
    assert len(outliers(fit(law(), clean))) == 0
