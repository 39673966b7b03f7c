"""Published results of real training runs, reproduced from their logs. Skipped where the logs are
absent.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from lrt_lab.analysis.bootstrap import percentile
from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.estimate import independent, paired
from lrt_lab.analysis.multipliers import multiplier
from lrt_lab.analysis.seed_noise import seed_noise

# arm: mean loss, sd, mean seconds, one-sided p of "the mean is below 3.28" where it was published
PUBLISHED = {
    "baseline-s1480": (3.2788, 0.0011, 84.7039, 0.0036),
    "baseline-s1430": (3.2867, 0.0014, 81.6762, None),
    "this_pr_v1": (3.2783, 0.0016, 83.2020, 0.0040),
    "this_pr_v1-s1415": (3.2815, 0.0012, 82.1446, 0.9982),
    "this_pr_v2": (3.2781, 0.0010, 82.1289, 0.0001),
    "this_pr_v3": (3.2780, 0.0009, 81.9146, None),
}


@pytest.fixture(scope="module")
def arms(real_results: Path) -> dict[str, dict[str, np.ndarray]]:
    """Final loss and seconds of every run by arm."""
    rows = defaultdict(list)
    with (real_results / "modded_nanogpt_mudd_trajectories.csv").open() as file:
        for row in csv.DictReader(file):
            if row["step"] == row["schedule_steps"]:
                seconds = float(row["train_time_ms"]) / 1e3
                rows[row["arm"]].append((float(row["val_loss"]), seconds, float(row["step"])))
    return {
        arm: dict(zip(("loss", "seconds", "steps"), np.array(found).T, strict=True))
        for arm, found in rows.items()
    }


@pytest.mark.parametrize("arm", PUBLISHED)
def test_means_deviations_and_times(arms, arm: str) -> None:
    mean, sd, seconds, below = PUBLISHED[arm]
    loss = arms[arm]["loss"]
    assert len(loss) == 10
    assert loss.mean() == pytest.approx(mean, abs=5.01e-5)
    assert loss.std(ddof=1) == pytest.approx(sd, abs=5.01e-5)
    assert arms[arm]["seconds"].mean() == pytest.approx(seconds, abs=5.01e-5)
    if below is not None:
        two_sided = paired(loss).p(3.28)
        one_sided = two_sided / 2 if loss.mean() < 3.28 else 1 - two_sided / 2
        assert one_sided == pytest.approx(below, abs=5.01e-5)


def test_the_gain_of_the_residual_change(arms) -> None:
    losses = np.stack([arms["baseline-s1430"]["loss"], arms["this_pr_v1"]["loss"]])
    found = independent(losses, (1, -1))
    np.testing.assert_allclose(found.point, 0.00841, atol=5e-6)
    np.testing.assert_allclose(found.interval(), (0.00700, 0.00982), atol=5e-6)
    np.testing.assert_allclose(found.p(), 2.6e-10, rtol=0.03)
    assert found.point / losses[0].mean() == pytest.approx(0.00256, abs=5e-6)


def test_the_step_multiplier(arms) -> None:
    names = ("baseline-s1430", "baseline-s1480", "this_pr_v1")
    first, second, variant = (arms[name]["loss"] for name in names)
    costs = [float(arms[name]["steps"][0]) for name in names]
    found = multiplier(
        costs[:2], [first, second], costs[2], variant, paired_seeds=False, straight="linear"
    )
    assert found.point == pytest.approx(1.0368, abs=5e-5)
    # Fieller with a t quantile, a little wider than the published percentile bootstrap
    assert (found.low, found.high) == pytest.approx((1.0319, 1.0423), abs=8e-4)
    assert found.low < 1.0319 and found.high > 1.0423

    def steps(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        a, b, v = (values.mean(axis=-1) for values in (x, y, z))
        return (costs[0] + (costs[1] - costs[0]) * (a - v) / (a - b)) / costs[2]

    second_opinion = percentile(
        steps,
        [first, second, variant],
        generator(20260101, "steps"),
        expanded=False,
        resamples=20000,
    )
    assert second_opinion == pytest.approx((1.0319, 1.0423), abs=2e-4)


def test_the_noise_of_many_groups_of_runs(real_results: Path) -> None:
    groups = defaultdict(list)
    with (real_results / "modded_nanogpt_final_losses.csv").open() as file:
        for row in csv.DictReader(file):
            groups[row["record_folder"], row["final_step"]].append(float(row["final_val_loss"]))
    found = seed_noise(list(groups.values()), least=8)
    assert (found.groups, found.runs) == (87, 1114)
    np.testing.assert_allclose(found.sd, (0.00085, 0.00105, 0.00129, 0.00147, 0.00230), atol=6e-6)
    assert found.median == pytest.approx(0.00129, abs=6e-6)
    assert found.pooled == pytest.approx(0.00166, abs=6e-6)
    assert found.cv == pytest.approx(0.00039, abs=6e-6)
    assert found.skew == pytest.approx(0.20, abs=0.01)
    assert found.excess_kurtosis == pytest.approx(-0.29, abs=0.03)


def test_runs_of_one_arm_are_quieter_at_the_end_than_in_the_middle(real_results: Path) -> None:
    by_step = defaultdict(list)
    with (real_results / "modded_nanogpt_mudd_trajectories.csv").open() as file:
        for row in csv.DictReader(file):
            if row["arm"] == "baseline-s1430":
                by_step[int(row["step"])].append(float(row["val_loss"]))
    sds = {step: np.std(values, ddof=1) for step, values in by_step.items()}
    np.testing.assert_allclose(
        [sds[250], sds[1000], sds[1430]], [0.0069, 0.0020, 0.0014], atol=6e-5
    )
