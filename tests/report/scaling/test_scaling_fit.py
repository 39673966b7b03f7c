"""`lrt-lab scaling fit`: a table in, a verdict in words first; one clear line for what it cannot
read.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrt_lab.analysis.scaling import WORDS, law
from lrt_lab.analysis.scaling.laws import PASSES
from lrt_lab.cli import main
from lrt_lab.errors import UserError
from lrt_lab.report.scaling import comparisons, figures, study, table, text
from lrt_lab.report.scaling.commands import publish
from lrt_lab.report.scaling.question import Question
from tests.analysis.scaling.grids import grid

Rows = list[dict[str, Any]]
QUICK = Question(law="iso-recurrence", resamples=100)


def rows(phi: float = 0.46, passes: Sequence[float] = (1, 2, 3), sd: float = 0.0005) -> Rows:
    """60 runs of one model with several passes."""
    runs = grid(law("iso-recurrence"), {"phi": phi}, passes=passes, sd=sd)
    return [
        {"parameters": n, "tokens": d, "passes": k, "loss": y}
        for n, d, k, y in zip(runs.size, runs.tokens, runs.passes, runs.loss, strict=True)
    ]


def two_models(m_n: float = 0.9) -> Rows:
    """A plain model, and a latent one with one to three passes."""
    found = law("iso-recurrence", 2)
    truth = {"phi": 0.4, "m_N": m_n, "m_D": 1.0}
    runs = grid(found, truth, passes=(1, 2, 3), models=2, sd=0.0005)
    kept = runs.take((runs.model == 1) | (runs.passes == 1))
    return [
        {"model": ("plain", "latent")[m], "parameters": n, "tokens": d, "passes": k, "loss": y}
        for m, n, d, k, y in zip(
            kept.model, kept.size, kept.tokens, kept.passes, kept.loss, strict=True
        )
    ]


def save(path: Path, found: Rows) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    return path


def summary(path: Path, asked: Question = QUICK, **how: Any) -> dict[str, Any]:
    return study.summarise(table.read(path, table.Columns(), {}, **how), asked, "A title")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole report."""
    folder = tmp_path_factory.mktemp("scaling")
    path = save(folder / "runs.csv", two_models())
    results = summary(path)
    figures.draw(results, folder / "figures")
    publish(results, folder)
    return folder


class TestReport:
    def test_words_come_first(self, written: Path) -> None:
        lines = (written / "report.md").read_text().split("\n\n")
        assert lines[:2] == ["# A title", "## Verdict"]
        assert re.match(r"\*\*crosses at \d\.\d\de\+1\d \[", lines[2]), lines[2]
        assert "in the window 1.00e+07 to 1.00e+14 output tokens" in lines[2]
        assert "times the largest run" in lines[2] or "inside the data" in lines[2]

    def test_every_comparison_is_answered_by_an_enumerated_word(self, written: Path) -> None:
        found = json.loads((written / "results.json").read_text())["crossings"]
        assert [c["ratio"] for c in found] == [0, 1, 10, 100]
        for c in found:
            assert c["word"] in WORDS
            said = text.sentence(c, {})
            assert c["word"].split()[0] in said
            assert "in the window" in said and "times the largest run" in said

    def test_prefill_passes_are_stated(self, written: Path) -> None:
        report = (written / "report.md").read_text()
        assert "a prompt is read with 1, 2 and 3 passes, at 2 N a pass" in report
        assert "an exact prefill of a recurrence is serial" in report

    def test_phi_and_the_law(self, written: Path) -> None:
        found = json.loads((written / "results.json").read_text())
        assert found["phi"]["low"] < 0.4 < found["phi"]["high"]
        assert "phi = 0." in (written / "report.md").read_text()
        assert {c["name"] for c in found["candidates"]} == {
            "iso-recurrence",
            "iso-recurrence + m_N",
            "iso-recurrence + m_N and m_D",
            "separate laws",
        }
        assert found["nested_p"][0] > 0.01
        low, *_, high = found["profile"]["objective"]
        assert low > 1.1 and high > 1.1

    def test_figures_are_there_with_texts(self, written: Path) -> None:
        found = json.loads((written / "results.json").read_text())["figures"]
        names = [f["name"] for f in found]
        assert names == ["isoflop", "fitted", "residuals", "passes", "cost-ratio", "coefficients"]
        for f in found:
            assert (written / "figures" / f"{f['name']}.svg").stat().st_size > 1000
            assert (written / "figures" / f"{f['name']}.png").exists()
            assert f["alt"] and f["caption"]
            assert f"figures/{f['name']}.svg" in (written / "report.md").read_text()

    def test_the_same_table_gives_the_same_bytes(self, written: Path, tmp_path: Path) -> None:
        results = summary(written / "runs.csv")
        figures.draw(results, tmp_path / "figures")
        publish(results, tmp_path)
        for name in ("report.md", "results.json", "figures/cost-ratio.svg"):
            assert (tmp_path / name).read_bytes() == (written / name).read_bytes()

    def test_equal_test_time_compute(self, written: Path) -> None:
        (found,) = json.loads((written / "results.json").read_text())["equal_use"]
        assert len(found["price"]) == 5
        assert all(low <= high for low, high in zip(found["low"], found["high"], strict=True))
        assert "## At equal test-time compute" in (written / "report.md").read_text()


class TestWhatItReads:
    def test_passes_alone_make_two_models(self, tmp_path: Path) -> None:
        found = summary(save(tmp_path / "runs.csv", rows()))
        assert found["models"] == ["one pass", "more passes"]
        assert found["crossings"][0]["word"] == "crosses"

    def test_one_model_has_a_law_and_no_crossing(self, tmp_path: Path) -> None:
        found = summary(save(tmp_path / "runs.csv", rows(passes=(1,))), Question(resamples=100))
        assert found["crossings"] == [] and found["law"]["name"] == "chinchilla"
        assert text.verdict(found)[0].startswith("One model with one number of passes")
        found["figures"] = []
        assert "## Where they cross" not in text.render(found)

    def test_a_preface_stands_before_every_verdict(self, tmp_path: Path) -> None:
        asked = Question(law="iso-recurrence", resamples=100, preface="pilot: machinery only.")
        found = summary(save(tmp_path / "runs.csv", rows()), asked)
        assert all(line.startswith("pilot: machinery only. ") for line in text.verdict(found))

    def test_bits_and_other_names(self, tmp_path: Path) -> None:
        renamed = {"parameters": "N", "tokens": "D", "loss": "L", "passes": "K"}
        other = [
            {renamed[k]: v / np.log(2) if k == "loss" else v for k, v in row.items()}
            for row in rows()
        ]
        columns = table.Columns(size="N", tokens="D", loss="L", passes="K")
        one = table.read(save(tmp_path / "one.csv", rows()), table.Columns(), {})
        two = table.read(save(tmp_path / "two.csv", other), columns, {}, unit="bits")
        np.testing.assert_allclose(two.runs.loss, one.runs.loss)
        np.testing.assert_array_equal(two.runs.model, one.runs.model)

    def test_measured_costs_are_used(self, tmp_path: Path) -> None:
        priced = [
            {**row, "prefill_flops": 2.5 * row["parameters"], "decode_flops": 3 * row["parameters"]}
            for row in rows()
        ]
        given = table.read(save(tmp_path / "runs.csv", priced), table.Columns(), {})
        base, *_ = comparisons.deployments(given, given.runs, given.costs, "FLOPs", 0, None)
        np.testing.assert_allclose(base.prefill(np.array([3e7])), 7.5e7)
        np.testing.assert_allclose(base.decode(np.array([3e7])), 9e7)

    def test_seconds_and_bytes_stand_beside_flops(self, tmp_path: Path) -> None:
        timed = [
            {
                **row,
                "train_seconds": 1e-12 * row["parameters"] * row["tokens"] * row["passes"],
                "prefill_seconds": 1e-12 * row["parameters"],
                "decode_seconds": 4e-12 * row["parameters"],
                "decode_bytes": 2 * row["parameters"] + 1e6 * (row["passes"] > 1),
            }
            for row in rows()
        ]
        found = summary(save(tmp_path / "runs.csv", timed))["crossings"]
        assert [c["unit"] for c in found] == ["FLOPs"] * 4 + ["seconds"] * 4
        assert all(0 < c["moved"] < 2 for c in found)

    def test_seeds_of_a_cell_stay_together(self, tmp_path: Path) -> None:
        seeded = [{**row, "seed": s} for s in (1, 2) for row in rows()]
        given = table.read(save(tmp_path / "runs.csv", seeded), table.Columns(), {})
        assert len(np.unique(given.runs.cell)) == len(rows())

    @pytest.mark.parametrize("repeated", ["refuse", "term"])
    def test_repeated_data_is_refused_or_gets_a_term_and_it_says_which(
        self, tmp_path: Path, repeated: str
    ) -> None:
        many = [{**row, "corpus_tokens": 1.5e8} for row in rows(passes=(1, 2))]
        path = save(tmp_path / "runs.csv", many)
        found = summary(path, Question(law="none", resamples=100, repeated=repeated))
        found["figures"] = []
        report = text.render(found)
        if repeated == "term":
            assert found["runs"]["refused"] == 0 and "R*" in report
            assert "repetition term fitted" in report
        else:
            assert found["runs"]["refused"] == found["runs"]["all"] - found["runs"]["fitted"] > 0
            assert "saw their corpus more than 4 times: refused" in report

    def test_the_highest_losses_go_by_rule(self, tmp_path: Path) -> None:
        path = save(tmp_path / "runs.csv", rows())
        given = table.read(path, table.Columns(), {}, drop_highest=3)
        assert len(given.runs) == len(rows()) - 3 and given.dropped == 3
        assert given.runs.loss.max() < sorted(r["loss"] for r in rows())[-3]


BAD: Mapping[str, tuple[Rows, str]] = {
    "no size": ([{"tokens": 1, "loss": 2}], "has no column 'parameters' (--size)"),
    "text": (
        [{"parameters": "7B", "tokens": 1, "loss": 2}],
        "line 2: column 'parameters' holds '7B', which is not a number",
    ),
    "no loss": (
        [{"parameters": 1, "tokens": 1, "loss": "nan"}],
        "line 2: column 'loss' must be a number from 0, not 'nan'; take diverged",
    ),
    "zero": (
        [{"parameters": 0, "tokens": 1, "loss": 2}],
        "line 2: column 'parameters' must be above 0",
    ),
    "share": (
        [{"parameters": 1, "tokens": 1, "loss": 2, "recurrent": 1.2}],
        "run 1: the recurrent share lies in [0, 1], not 1.2",
    ),
    "nameless": (
        [{"parameters": 1, "tokens": 1, "loss": 2, "model": " "}],
        "line 2: the model has no name",
    ),
    "few": (rows()[:6], "no law can be fitted: "),
    "one ratio": (
        [row for row in rows(passes=(1,)) if row["tokens"] < 11 * row["parameters"]],
        "no law can be fitted: ",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_one_line(name: str, tmp_path: Path, capsys) -> None:
    found, said = BAD[name]
    path = save(tmp_path / "runs.csv", found)
    assert main(["scaling", "fit", str(path), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1
    assert not (tmp_path / "out").exists()


OPTIONS = {
    "baseline": (["--baseline", "x"], "--baseline names 'x'; the table has: one pass, more passes"),
    "column": (["--corpus", "x"], "has no column 'x' (--corpus)"),
    "law": (["--law", "moore"], f"--law is one of {', '.join(PASSES)}, not 'moore'"),
    "unit": (["--unit", "bytes"], "--unit is 'nats' or 'bits', not 'bytes'"),
    "target": (["--target", "-1"], "--target is a loss above 0, not -1"),
    "window": (["--window", "[1e7]"], "--window is two token counts, from and to, not 1"),
    "window falls": (["--window", "[1e9,1e8]", "--law", "none"], "the window must rise"),
    "ratios": (["--ratios", "[-1]"], "--ratios are prompt tokens per output token, from 0"),
    "prefill": (["--prefill-passes", "0.5"], "--prefill-passes is 1 or more, not 0.5"),
    "resamples": (["--resamples", "10"], "--resamples is 10; below 100"),
    "drop": (["--drop-highest", "45"], "--drop-highest is between 0 and the 45 rows"),
    "repeated": (["--repeated", "ignore"], "repeated data is 'refuse' or 'term', not 'ignore'"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_bad_options_are_one_line(name: str, tmp_path: Path, capsys) -> None:
    options, said = OPTIONS[name]
    path = save(tmp_path / "runs.csv", rows())
    options = [*options, "--resamples", "100"] if "--resamples" not in options else options
    assert main(["scaling", "fit", str(path), "--out", str(tmp_path / "out"), *options]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


def test_the_command_prints_words_coefficients_and_a_path(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "draw", lambda results, _: results.update(figures=[]))
    save(tmp_path / "mine.csv", rows())
    options = ["--law", "iso-recurrence", "--resamples", "100", "--ratios", "0"]
    assert main(["scaling", "fit", "mine.csv", *options]) == 0
    said = capsys.readouterr().out
    assert said.startswith("crosses at ")
    assert "phi" in said and "alpha" in said
    assert said.rstrip().endswith("report: reports/mine/report.md")
    assert (tmp_path / "reports" / "mine" / "results.json").exists()


def test_a_target_below_every_floor_is_undefined_in_words(tmp_path: Path) -> None:
    path = save(tmp_path / "runs.csv", rows())
    found = summary(path, Question(law="iso-recurrence", resamples=100, target=1.0, ratios=(0,)))
    line = text.verdict(found)[0]
    assert line.startswith("**undefined: target loss below E of a model in 100% of draws**")
    json.dumps(found, allow_nan=False)
    figures.draw(found, tmp_path / "figures")
    assert "cost-ratio" not in [f["name"] for f in found["figures"]]


def test_an_unsound_fit_says_so_before_anything_else(tmp_path: Path) -> None:
    found = summary(save(tmp_path / "runs.csv", rows()))
    found["law"]["flags"] = ["the search did not converge"]
    said = text.verdict(found)
    assert said[0].startswith("**undefined**: the fit is not sound, the search did not converge.")
    assert not any("output tokens" in line for line in said)


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    path = save(tmp_path / "runs.csv", [{"parameters": 1, "tokens": 1, "loss": 2}])
    code = (
        "import sys; from lrt_lab.cli import main; main(sys.argv[1:]); "
        "import lrt_lab.report.scaling.figures; "
        "print(sorted({'torch', 'lightning', 'litdata'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "scaling", "fit", str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    assert done.stdout.strip() == "[]"


def test_user_errors_are_the_only_errors_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not there"):
        table.read(tmp_path / "none.csv", table.Columns(), {})
