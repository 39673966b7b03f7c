"""The gate, the order of precedence, and the pilot."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.square import Square, effects
from lrt_lab.analysis.table import Table
from lrt_lab.analysis.verdict import READINGS, decide

CELLS = ("P0", "P1", "A0", "A1")
SQUARE = Square("P", "A", "none", "R", CELLS)
MARGIN = 0.002


def verdict(means: tuple[float, ...], sd: float = 2e-4, n: int = 5, margin: float = MARGIN):
    """Means of ln loss for P0, P1, A0, A1."""
    draws = generator(5, "verdict", *means, sd, n)
    noise = draws.normal(size=(4, n))
    # exactly the wanted means: the reading is then a matter of the setting and not of luck
    noise -= noise.mean(axis=1, keepdims=True)
    loss = 3 * np.exp(np.array(means)[:, None] + sd * noise)
    return decide(effects(Table(CELLS, tuple(range(n)), loss), SQUARE), margin)


# gains of the route on P and on A and the advantage of A over P, in ln loss
READS = {
    "both gain, I > 0": ((0, -0.01, -0.03, -0.06), "supported"),
    "both gain, I > 0 and tiny": ((0, -0.01, -0.03, -0.0408), "negligible"),
    "both gain, I = 0": ((0, -0.01, -0.03, -0.04), "equivalent"),
    "both gain, I < 0": ((0, -0.02, -0.03, -0.04), "reversed"),
    "only A gains, I > 0": ((0, 0.0, -0.03, -0.06), "qualitative"),
    "P is harmed and A gains": ((0, 0.01, -0.03, -0.06), "qualitative"),
    "both harmed, I > 0": ((0, 0.03, -0.03, -0.02), "qualitative"),
    "both harmed, I = 0": ((0, 0.02, -0.03, -0.01), "equivalent"),
    "only P gains, A untouched by both": ((0, -0.03, 0.0, 0.0), "reversed"),
    "A0 = P1 = A1": ((0, -0.03, -0.03, -0.03), "substitution"),
    "A0 = A1, P1 between": ((0, -0.015, -0.03, -0.03), "substitution"),
    "P1 = A1, A0 between": ((0, -0.03, -0.015, -0.03), "substitution"),
    "A0 beats both together by half the margin": ((0, -0.01, -0.03, -0.029), "substitution"),
    "A0 beats both together by five margins": ((0, -0.01, -0.03, -0.02), "reversed"),
    "P1 beats both together by five margins": ((0, -0.03, -0.01, -0.02), "reversed"),
    "P1 beats both by five margins, A0 = A1": ((0, -0.03, -0.02, -0.02), "reversed"),
    "A0 beats both, the route alone does nothing": ((0, 0.0, -0.03, -0.02), "reversed"),
    "A alone helps, the route does nothing": ((0, 0.0, -0.03, -0.03), "equivalent"),
    "nothing does anything": ((0, 0.0, 0.0, 0.0), "equivalent"),
}


@pytest.mark.parametrize(("means", "expected"), READS.values(), ids=READS.keys())
def test_each_truth_has_its_reading(means: tuple[float, ...], expected: str) -> None:
    assert verdict(means).reading == expected


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((0, -0.01, -0.03, -0.029), (False, False)),
        ((0, -0.01, -0.03, -0.02), (True, False)),
        ((0, -0.03, -0.01, -0.02), (False, True)),
        ((0, -0.03, -0.03, -0.02), (True, True)),
        ((0, 0.03, 0.01, 0.05), (False, False)),
    ],
    ids=["within", "backbone", "route", "each", "neither-improves"],
)
def test_better_alone_than_together(means: tuple[float, ...], expected: tuple[bool, bool]) -> None:
    found = verdict(means)
    assert (found.backbone_better, found.route_better) == expected


def test_an_excess_that_straddles_the_margin_is_not_told_from_one_within_it() -> None:
    found = verdict((0, -0.03, -0.03, -0.0275), sd=5e-4)
    assert found.reading == "substitution"


def test_noise_makes_it_inconclusive() -> None:
    assert verdict((0, -0.05, -0.08, -0.132), sd=2e-3).reading == "inconclusive"


def test_a_gain_without_holms_blessing_keeps_the_gate_shut() -> None:
    # both p near .04: each alone would pass, Holm asks .025 of the smaller one
    draws = generator(6, "holm")
    for _ in range(2000):
        means = np.array([0, -0.01, -0.03, -0.04])[:, None]
        loss = 3 * np.exp(means + 5.4e-3 * draws.normal(size=(4, 5)))
        found = effects(Table(CELLS, tuple(range(5)), loss), SQUARE)
        p = sorted(float(found[name].p()) for name in ("gain_base", "gain_improved"))
        if p[0] > 0.025 and p[1] < 0.05 and found["gain_base"].point > 0:
            assert not decide(found, MARGIN).both_gains
            return
    pytest.fail("no such table was drawn")


@pytest.mark.parametrize(("n", "pilot"), [(2, True), (4, True), (5, False), (8, False)])
def test_fewer_than_five_seeds_are_a_pilot(n: int, pilot: bool) -> None:
    assert verdict((0, -0.01, -0.03, -0.06), n=n).pilot is pilot


def test_a_batch_of_tables_gets_a_batch_of_readings() -> None:
    draws = generator(7, "batch")
    loss = 3 * np.exp(
        np.array([0, -0.01, -0.03, -0.04])[:, None] + 1e-3 * draws.normal(size=(500, 4, 5))
    )
    whole = decide(effects(Table(CELLS, tuple(range(5)), loss), SQUARE), MARGIN).reading
    assert whole.shape == (500,)
    assert set(whole) <= set(READINGS)
    for i in range(0, 500, 50):
        one = decide(effects(Table(CELLS, tuple(range(5)), loss[i]), SQUARE), MARGIN).reading
        assert one == whole[i]
