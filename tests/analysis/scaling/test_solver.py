"""The batched minimiser against known minima and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import fit, law
from lrt_lab.analysis.scaling.bootstrap import counts, refit
from lrt_lab.analysis.scaling.fitting import objective
from lrt_lab.analysis.scaling.solver import minimise
from tests.analysis.scaling.grids import grid


def rosenbrock(x: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a - x)^2 + 100 (y - x^2)^2, its a another for every problem: minimum at (a, a^2)."""
    a = 1.0 + which
    value = (a - x[:, 0]) ** 2 + 100 * (x[:, 1] - x[:, 0] ** 2) ** 2 + 1
    slope = -2 * (a - x[:, 0]) - 400 * x[:, 0] * (x[:, 1] - x[:, 0] ** 2)
    return value, np.stack([slope, 200 * (x[:, 1] - x[:, 0] ** 2)], axis=1)


def test_every_problem_finds_its_own_minimum() -> None:
    found = minimise(rosenbrock, np.tile([-1.2, 1.0], (3, 1)), np.eye(2), tolerance=1e-14)
    assert found.converged.all()
    np.testing.assert_allclose(found.points, [[1, 1], [2, 4], [3, 9]], rtol=1e-5)


def test_a_step_out_of_the_domain_is_cut() -> None:
    def function(x: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(invalid="ignore", divide="ignore"):
            value = x[:, 0] - np.log(x[:, 0])
            return np.where(x[:, 0] > 0, value, np.inf), 1 - 1 / x

    found = minimise(function, np.array([[8.0], [0.1]]), 20 * np.eye(1))
    assert found.converged.all()
    np.testing.assert_allclose(found.points, 1.0, rtol=1e-5)


def test_a_search_that_ran_out_of_steps_says_so() -> None:
    found = minimise(rosenbrock, np.array([[-1.2, 1.0]]), np.eye(2), iterations=3)
    assert not found.converged.any()


@pytest.mark.parametrize("name", ["none", "iso-recurrence"])
def test_refits_are_as_low_as_scipy_gets(name: str) -> None:
    given = grid(law(name), {"phi": 0.46}, passes=(1, 2, 3, 4), sd=0.003)
    found = fit(law(name), given)
    weights = counts(given.cell, np.zeros(len(given), dtype=int), 8, generator(5, name))
    theta, converged = refit(found, weights)
    assert converged.all()
    function = objective(found.law, given, found.centre, weights=weights)
    values = function(theta, np.arange(8))[0]
    for i in range(8):
        other = minimize(
            lambda p, i=i: tuple(part[0] for part in function(p[None], np.array([i]))),
            found.theta + 0.02,
            jac=True,
            method="BFGS",
            options={"gtol": 1e-9, "maxiter": 1000},
        )
        assert values[i] <= other.fun * (1 + 1e-6)
