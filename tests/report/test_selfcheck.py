"""The simulation of whole reports: coverage, false positives, verdict shares, and that it is the
report's own path.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lrt_lab.analysis.draws import NOISES
from lrt_lab.report import selfcheck, selfcheck_table
from lrt_lab.report.records import Record
from lrt_lab.report.suite_report import gather

SIMULATIONS = 400


def three_errors(share: float, simulations: int = SIMULATIONS) -> float:
    return 3 * math.sqrt(share * (1 - share) / simulations)


SETTINGS = [
    (kind, n, effect) for kind in NOISES for n in selfcheck.SEEDS for effect in selfcheck.EFFECTS
]


@pytest.mark.parametrize(("kind", "n", "effect"), SETTINGS, ids=str)
def test_the_paired_t_covers(kind: str, n: int, effect: float) -> None:
    row = selfcheck.check(kind, n, effect, SIMULATIONS)
    assert not row.problems
    low, high = row.expected
    assert low - three_errors(low) <= row.coverage <= high + three_errors(high)
    if effect == 0:
        assert row.rejected <= 0.05 + three_errors(0.05)
    assert row.undefined_exactly
    assert sum(row.verdicts.values()) == pytest.approx(1)


@pytest.mark.parametrize("n", selfcheck.SEEDS)
def test_a_weak_ratio_is_undefined_exactly_when_its_denominator_covers_zero(n: int) -> None:
    coverage, undefined, exactly = selfcheck.weak_ratio("normal", n, SIMULATIONS)
    assert exactly
    assert undefined > 0.3
    assert abs(coverage - 0.95) <= three_errors(0.95)


@pytest.mark.parametrize("n", [5, 8])
def test_holm_keeps_the_family_wise_error_of_eight_variants(n: int) -> None:
    with_holm, raw = selfcheck.family_wise(n, SIMULATIONS)
    assert abs(with_holm - selfcheck.FAMILY_WISE) <= three_errors(selfcheck.FAMILY_WISE)
    assert raw > 0.2


def test_a_simulated_suite_written_to_disk_gives_the_same_report(tmp_path: Path) -> None:
    """One simulation of the batch, as real run folders through the real report."""
    means = {"P+none": 0.0, "P+R": -0.01, "A+none": -0.03, "A+R": -0.042}
    design, records = selfcheck.suite(means, 5, "normal", 20, selfcheck.SEED)
    study = selfcheck.analysed(design, records)
    chosen = 7
    for record in records:
        run = tmp_path / record.folder
        run.mkdir(parents=True)
        final = selfcheck.final_of(np.asarray(record.loss))
        final["test"]["exact"] = {"loss": float(record.loss[chosen]), "bpb": None}
        (run / "final.json").write_text(json.dumps(final))
        (run / "DONE").touch()
    (tmp_path / "plan.json").write_text("{}")
    found = gather(dict(design.source), tmp_path)[0]["budgets"]["tokens"]
    effect = study.log["interaction"]
    assert found["interaction"]["point"] == effect.point[chosen]
    assert found["interaction"]["low"] == effect.interval()[0][chosen]
    assert found["reading"] == study.verdict.reading[chosen]
    assert found["ratio"]["kind"] == study.ratio.kind[chosen]


def test_equal_seeds_give_equal_tables_and_other_seeds_other_ones() -> None:
    one, again = (selfcheck.check("t4", 5, 0.0, 100) for _ in range(2))
    assert one == again
    assert selfcheck.check("t4", 5, 0.0, 100, seed=1).verdicts != one.verdicts


def test_the_command_says_that_all_is_well_and_notices_when_it_is_not(monkeypatch) -> None:
    text, sound = selfcheck_table.run(SIMULATIONS, selfcheck.SEED)
    assert sound
    assert text.endswith("All as expected.")
    assert text.count("\n| normal |") == 6

    honest = selfcheck.analysed

    def narrow(design, records: list[Record]):
        study = honest(design, records)
        return replace(study, log={k: replace(e, se=0.6 * e.se) for k, e in study.log.items()})

    monkeypatch.setattr(selfcheck, "analysed", narrow)
    text, sound = selfcheck_table.run(100, selfcheck.SEED)
    assert not sound
    assert "coverage" in text.split("Off:")[1]
