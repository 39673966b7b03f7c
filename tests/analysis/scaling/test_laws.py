"""Laws: their derivatives, their limits, and parameters there and back."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import Law, law
from lrt_lab.analysis.scaling.effects import Repetition
from lrt_lab.analysis.scaling.fitting import objective
from lrt_lab.analysis.scaling.laws import PASSES, Centre
from tests.analysis.scaling.grids import TRUTH, grid

LAWS = {
    **{name: law(name) for name in PASSES},
    "multipliers": law("iso-recurrence", models=3),
    "repetition": law("none", repetition=True),
    "everything": law("saturating term", models=2, repetition=True),
}
EFFECTS = {
    "phi": 0.46,
    "k": 0.39,
    "kappa": 0.7,
    "tau": 0.74,
    "C": 0.05,
    "m_N": 1.3,
    "m_D": 0.8,
    "m_N 1": 1.3,
    "m_D 1": 0.8,
    "m_N 2": 0.9,
    "m_D 2": 1.1,
    "R*": 15.4,
}


def runs_of(found: Law):
    models = 1 + sum(name.startswith("m_N") for name in found.names)
    return grid(found, EFFECTS, passes=(1, 2, 4), models=models, recurrent=0.7, corpus=3e8, sd=0.01)


@pytest.mark.parametrize("name", LAWS)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    found = LAWS[name]
    given = runs_of(found)
    centre = Centre.of(given)
    theta = found.theta({**TRUTH, **EFFECTS}, centre)
    theta = theta + 0.05 * generator(2, name).standard_normal((3, len(found)))
    weights = generator(3, name).integers(0, 3, (3, len(given))).astype(float)
    function = objective(found, given, centre, weights=weights)
    which = np.arange(3)
    gradient = function(theta, which)[1]
    step = 1e-6
    for i in range(len(found)):
        move = step * (np.arange(len(found)) == i)
        slope = (function(theta + move, which)[0] - function(theta - move, which)[0]) / (2 * step)
        np.testing.assert_allclose(gradient[:, i], slope, rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize("name", LAWS)
def test_parameters_there_and_back(name: str) -> None:
    found = LAWS[name]
    centre = Centre(17.0, 20.0)
    theta = found.theta({**TRUTH, **EFFECTS}, centre)
    back = dict(zip(found.names, found.natural(theta, centre), strict=True))
    assert back == pytest.approx({n: {**TRUTH, **EFFECTS}[n] for n in found.names}, rel=1e-12)


def test_the_base_law_is_what_it_says() -> None:
    given = grid(law(), {})
    expected = TRUTH["E"] + TRUTH["A"] / given.size ** TRUTH["alpha"]
    expected += TRUTH["B"] / given.tokens ** TRUTH["beta"]
    np.testing.assert_allclose(given.loss, expected, rtol=1e-12)


@pytest.mark.parametrize("phi", [0.0, 0.46, 1.0])
def test_iso_recurrence_counts_what_recurs(phi: float) -> None:
    given = grid(law("iso-recurrence"), {"phi": phi}, passes=(1, 3), recurrent=0.6)
    size = given.size * (0.4 + 0.6 * given.passes**phi)
    expected = TRUTH["E"] + TRUTH["A"] / size ** TRUTH["alpha"]
    expected += TRUTH["B"] / given.tokens ** TRUTH["beta"]
    np.testing.assert_allclose(given.loss, expected, rtol=1e-12)


def test_a_multiplier_is_that_much_more_of_the_baseline() -> None:
    found = law("none", models=2)
    given = grid(found, {"m_N": 1.3, "m_D": 0.8}, models=2)
    mine = given.take(given.model == 1)
    expected = TRUTH["E"] + TRUTH["A"] / (1.3 * mine.size) ** TRUTH["alpha"]
    expected += TRUTH["B"] / (0.8 * mine.tokens) ** TRUTH["beta"]
    np.testing.assert_allclose(mine.loss, expected, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in PASSES if name != "none"])
def test_one_pass_is_the_base_law_or_its_floor(name: str) -> None:
    truth = {**TRUTH, **EFFECTS}
    given = grid(law(name), EFFECTS)
    plain = grid(law(), {})
    more = truth["C"] if name == "saturating term" else 0.0
    np.testing.assert_allclose(given.loss, plain.loss + more, rtol=1e-12)


def test_the_first_epoch_is_fresh_and_endless_repetition_is_worth_a_bounded_corpus() -> None:
    effect = Repetition()
    star = np.log([15.4])
    once = grid(law(), {}, corpus=1e12)
    np.testing.assert_array_equal(effect(star, once)[0], 0.0)
    many = grid(law(), {}, corpus=1e3)
    worth = many.tokens * np.exp(effect(star, many)[0])
    np.testing.assert_allclose(worth, 1e3 * (1 + 15.4), rtol=1e-9)
