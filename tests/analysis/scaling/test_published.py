"""Published fits to real runs, reproduced. Skipped where their numbers are absent."""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import (
    Fit,
    Runs,
    exponent,
    fit,
    isoflop,
    law,
    resample,
    runs,
    saturation,
)
from lrt_lab.analysis.scaling.fitting import DELTA, objective
from lrt_lab.analysis.scaling.laws import Centre

# Besiroglu et al. (arXiv:2404.10102): their printed point and bootstrap standard errors
POINT = {"A": 482.00572, "B": 2085.43420, "E": 1.81686, "alpha": 0.34781, "beta": 0.36585}
ERRORS = {"A": 124.52, "B": 1293.28, "E": 0.02566, "alpha": 0.01540, "beta": 0.02060}
# where a mean-scaled objective on uncentred logarithms stops without a word
TRAP = {"A": 817.6, "B": 666.0, "E": 1.7791, "alpha": 0.3788, "beta": 0.3094}
SETTINGS = {
    ("base", "long", "kaplan", "kaplan", "train"): 0.83530,
    ("base", "long", "kaplan", "standard", "val"): 0.70647,
    ("base", "short", "kaplan", "standard", "val"): 0.60204,
    ("base", "short", "chinchilla", "standard", "val"): 0.57149,
    ("tuned", "short", "const", "standard", "val"): 0.49690,
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def chinchilla(real_results: Path) -> Runs:
    found = rows(real_results / "epoch_chinchilla_svg_extracted.csv")
    size, flops, loss = (
        np.array([float(row[name]) for row in found])
        for name in ("Model Size", "Training FLOP", "loss")
    )
    kept = loss < np.sort(loss)[-5]
    assert kept.sum() == 240
    return runs(size[kept], (flops / 6 / size)[kept], loss[kept], compute=flops[kept])


@pytest.fixture(scope="module")
def fitted(chinchilla: Runs) -> Fit:
    return fit(law(), chinchilla)


class TestChinchilla:
    def test_the_optimum(self, fitted: Fit) -> None:
        assert fitted.objective <= 1.01828e-3
        assert fitted.natural["A"] == pytest.approx(477.83, abs=0.5)
        assert fitted.natural["B"] == pytest.approx(2143.4, abs=3)
        assert fitted.natural["E"] == pytest.approx(1.81722, abs=5e-4)
        assert fitted.natural["alpha"] == pytest.approx(0.34731, abs=3e-4)
        assert fitted.natural["beta"] == pytest.approx(0.36717, abs=3e-4)
        assert fitted.agreeing > 0.9 and not fitted.flags

    def test_near_the_published_point(self, fitted: Fit) -> None:
        assert fitted.natural["A"] == pytest.approx(POINT["A"], rel=0.01)
        assert fitted.natural["B"] == pytest.approx(POINT["B"], rel=0.03)
        assert fitted.natural["E"] == pytest.approx(POINT["E"], abs=5e-4)
        assert fitted.natural["alpha"] == pytest.approx(POINT["alpha"], abs=6e-4)
        assert fitted.natural["beta"] == pytest.approx(POINT["beta"], abs=1.4e-3)

    def test_no_start_ends_in_the_trap(self, chinchilla: Runs, fitted: Fit) -> None:
        centre = Centre.of(chinchilla)
        function = objective(law(), chinchilla, centre)
        trap = law().theta(TRAP, centre)[None]
        value, gradient = function(trap, np.zeros(1, dtype=int))
        assert value[0] * DELTA**2 == pytest.approx(1.1086e-3, rel=2e-3)
        # it is no optimum at all: the scaled gradient there is far from zero
        assert np.abs(gradient).max() > 1e3 * fitted.gradient
        assert abs(fitted.natural["beta"] - TRAP["beta"]) > 0.05

    def test_without_exclusions(self, real_results: Path) -> None:
        found = rows(real_results / "epoch_chinchilla_svg_extracted.csv")
        size, flops, loss = (
            np.array([float(row[name]) for row in found])
            for name in ("Model Size", "Training FLOP", "loss")
        )
        all_points = fit(law(), runs(size, flops / 6 / size, loss))
        assert all_points.objective == pytest.approx(1.8260105e-3, rel=1e-5)
        assert all_points.natural["beta"] == pytest.approx(0.45305, abs=5e-4)

    def test_a_thousand_refits_are_quick(self, fitted: Fit) -> None:
        started = time.process_time()
        assert resample(fitted, generator(20260101, "price"), 1000, stratify=False).failed == 0
        assert time.process_time() - started < 90

    def test_bootstrap_errors(self, fitted: Fit) -> None:
        # B has a heavy upper tail: from 1000 draws its deviation varies by 12% between seeds
        draws = resample(fitted, generator(20260101, "chinchilla"), 8000, stratify=False)
        assert draws.failed < 1e-3
        sd = dict(zip(fitted.law.names, draws.natural.std(axis=0, ddof=1), strict=True))
        assert sd == pytest.approx(ERRORS, rel=0.15)
        alpha, beta = draws.natural[:, 3], draws.natural[:, 4]
        assert (beta / (alpha + beta)).std(ddof=1) == pytest.approx(0.020, rel=0.15)


class TestIsoFlop:
    @pytest.mark.parametrize("setting", SETTINGS, ids="-".join)
    def test_the_exponent_of_the_optimal_size(
        self, real_results: Path, setting: tuple[str, ...]
    ) -> None:
        optima = [
            [float(row[name]) for name in ("flops", "n_star", "n_star_log_std")]
            for row in rows(real_results / "porian_optimal_pairs.csv")
            if row["n_star"] and _setting(row) == setting
        ]
        found = exponent(*np.array(optima).T)
        assert found.point == pytest.approx(SETTINGS[setting], abs=1e-5)

    @pytest.mark.parametrize("setting", SETTINGS, ids="-".join)
    def test_parabolas_come_near_it(self, real_results: Path, setting: tuple[str, ...]) -> None:
        budgets = defaultdict(list)
        for row in rows(real_results / "porian_isoflop_points.csv"):
            if _setting(row) == setting:
                budgets[float(row["flops"])].append((float(row["n"]), float(row["loss"])))
        best = [(c, isoflop(*np.array(points).T)) for c, points in budgets.items()]
        best = [(c, found) for c, found in best if found is not None]
        assert len(best) >= 10
        found = exponent(
            [c for c, _ in best],
            [np.exp(o.log_size) for _, o in best],
            [o.deviation for _, o in best],
        )
        assert found.point == pytest.approx(SETTINGS[setting], abs=0.03)


def _setting(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("hparams", "warmup", "decay", "param_count", "val"))


def test_the_saturating_curve_of_test_time_depth(real_results: Path) -> None:
    found = [
        (float(row["r_eval"]), float(row["val_bpb"]))
        for row in rows(real_results / "looped_nanochat_testtime_depth.csv")
        if row["model"] == "r4_sample"
    ]
    curve = saturation(*np.array(found).T)
    assert curve.floor == pytest.approx(0.83345, abs=1e-5)
    assert curve.tau == pytest.approx(0.736, abs=1e-3)
