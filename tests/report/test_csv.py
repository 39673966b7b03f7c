"""Reports from anybody's table: what it reads, and one clear line for each thing it cannot read."""

from __future__ import annotations

import csv
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrt_lab.errors import UserError
from lrt_lab.report import commands
from lrt_lab.report.csv_rows import Columns
from lrt_lab.report.csv_table import read_csv
from lrt_lab.report.markdown import render
from lrt_lab.report.results import summarise
from lrt_lab.report.table_report import write
from tests.report import synthetic

Rows = list[dict[str, Any]]
MEANS = {("P", "none"): 0.0, ("P", "R"): -0.02, ("A", "none"): -0.03, ("A", "R"): -0.06}


def rows(
    seeds: Sequence[int] = (1, 2, 3, 4, 5), budgets: Mapping[str, float] | None = None
) -> Rows:
    """A table of a 2x2, at one budget or at several (ln loss falls by .1 per unit of ln budget)."""
    found = []
    for (backbone, route), mean in MEANS.items():
        for seed in seeds:
            draws = synthetic.stream(seed, f"{backbone}{route}")
            for budget, cost in (budgets or {"1": 1.0}).items():
                loss = 3 * math.exp(mean - 0.1 * math.log(cost) + 5e-4 * draws.standard_normal())
                row = {"backbone": backbone, "route": route, "seed": seed, "loss": loss}
                found.append({**row, "budget": budget, "flops": cost * (2 if route == "R" else 1)})
    return found


def save(path: Path, table: Rows) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path


def results(path: Path, columns: Columns | None = None) -> dict[str, Any]:
    return json.loads(json.dumps(summarise(*read_csv(path, columns or Columns()))))


class TestWhatItReads:
    def test_backbone_route_seed_loss_need_no_option(self, tmp_path: Path) -> None:
        found = results(save(tmp_path / "runs.csv", rows()))
        assert found["square"]["cells"] == ["P+none", "P+R", "A+none", "A+R"]
        assert found["budgets"]["tokens"]["reading"] == "supported"
        assert found["budgets"]["tokens"]["interaction"]["point"] == pytest.approx(0.01, abs=1e-3)

    def test_rows_in_any_order_give_the_same_numbers(self, tmp_path: Path) -> None:
        table = rows()
        order = synthetic.stream(1, "order").permutation(len(table))
        one = results(save(tmp_path / "one.csv", table))
        columns = Columns(baseline=("P", "none"), improved=("A", "R"))
        other = results(save(tmp_path / "two.csv", [table[i] for i in order]), columns)
        assert one["budgets"]["tokens"] == other["budgets"]["tokens"]

    def test_named_columns_and_another_baseline_swap_the_sign(self, tmp_path: Path) -> None:
        names = {"backbone": "Residual", "route": "Latent", "seed": "Run", "loss": "Final loss"}
        table = [{new: row[old] for old, new in names.items()} for row in rows()]
        columns = Columns(axes=("Residual", "Latent"), seed="Run", loss="Final loss")
        path = save(tmp_path / "runs.csv", table)
        one = results(path, columns)["budgets"]["tokens"]["interaction"]["point"]
        other = results(path, replace(columns, baseline=("A", "none")))
        assert other["budgets"]["tokens"]["interaction"]["point"] == pytest.approx(-one)

    @pytest.mark.parametrize("column", [False, True], ids=["option", "column"])
    def test_bits_are_turned_into_nats(self, tmp_path: Path, column: bool) -> None:
        table = [{**row, "loss": row["loss"] / math.log(2), "unit": "bits"} for row in rows()]
        one = results(save(tmp_path / "nats.csv", rows()))
        found = results(
            save(tmp_path / "bits.csv", table), Columns(unit="unit" if column else "bits")
        )
        np.testing.assert_allclose(
            found["budgets"]["tokens"]["interaction"]["high"],
            one["budgets"]["tokens"]["interaction"]["high"],
        )
        np.testing.assert_allclose(
            found["cells"][0]["loss"]["mean"], one["cells"][0]["loss"]["mean"]
        )

    def test_diverged_runs_are_marked_in_a_column(self, tmp_path: Path) -> None:
        table = [{**row, "state": "ok"} for row in rows()]
        table[7].update(state="diverged", loss="")
        columns = Columns(status="state", vocabulary=257)
        found = results(save(tmp_path / "runs.csv", table), columns)
        assert found["registration"]["runs"]["diverged"] == 1
        assert found["budgets"]["tokens"]["n"] == 4
        assert found["budgets"]["tokens"]["sensitivity"]["n"] == 5
        assert found["budgets"]["tokens"]["sensitivity"]["unscored"] == 0

    def test_unpaired_runs_may_be_unequal_in_number(self, tmp_path: Path) -> None:
        table = [row for row in rows() if not (row["backbone"] == "A" and row["seed"] == 5)]
        found = results(save(tmp_path / "runs.csv", table), Columns(paired=False))
        assert found["budgets"]["tokens"]["n"] == 4
        assert found["budgets"]["tokens"]["interaction"]["p_sign_flip"] is None
        assert "Welch" in render(found)

    def test_three_budgets_give_multipliers_and_all_four_scales(self, tmp_path: Path) -> None:
        budgets = {"100": 1.0, "200": 2.0, "400": 4.0}
        path = save(tmp_path / "runs.csv", rows(budgets=budgets))
        columns = Columns(
            budget="budget", costs={"train_flops": "flops", "tokens": "budget"}, floors=(0.5,)
        )
        found = results(path, columns)
        assert found["square"]["cells"] == ["P+none@100", "P+R@100", "A+none@100", "A+R@100"]
        tokens = {name: m["point"] for name, m in found["multipliers"]["tokens"].items()}
        assert tokens == pytest.approx({"P": math.exp(0.2), "A": math.exp(0.3)}, rel=0.02)
        flops = {name: m["point"] for name, m in found["multipliers"]["train_flops"].items()}
        assert flops == pytest.approx({k: v / 2 for k, v in tokens.items()}, rel=1e-6)
        effect = found["budgets"]["tokens"]["interaction"]
        assert list(effect["scales"]) == [
            "ln loss",
            "absolute",
            "log excess over E = 0.5",
            "ln compute multiplier",
        ]
        assert effect["scales"]["ln compute multiplier"]["point"] == pytest.approx(0.1, abs=0.02)
        assert effect["all_scales"]
        assert "supported, all scales" in render(found)

    def test_matched_flops_are_read_off_between_budgets(self, tmp_path: Path) -> None:
        path = save(tmp_path / "runs.csv", rows(budgets={"100": 1.0, "400": 4.0}))
        found = results(path, Columns(budget="budget", costs={"train_flops": "flops"}))
        matched = found["budgets"]["train_flops"]
        assert matched["interpolated"]
        gains = [gain["log"]["point"] for gain in matched["gains"].values()]
        assert gains == pytest.approx(
            [0.02 - 0.1 * math.log(2), 0.03 - 0.1 * math.log(2)], abs=1e-3
        )
        assert (
            render(found)
            .split("\n")[4]
            .startswith("At matched training FLOPs the gain of R is negative")
        )

    def test_a_larger_factorial_tests_every_pair(self, tmp_path: Path) -> None:
        table = [
            {
                "backbone": b,
                "route": r,
                "width": w,
                "seed": s,
                "loss": 3 + 0.01 * draws.standard_normal(),
            }
            for b in ("P", "M", "A")
            for r in ("none", "R", "T")
            for w in (64, 128)
            for s in range(1, 6)
            for draws in [synthetic.stream(s, f"{b}{r}{w}")]
        ]
        columns = Columns(axes=("backbone", "route", "width"))
        found = results(save(tmp_path / "runs.csv", table), columns)
        assert len(found["pairs"]) == 8
        assert found["pairs"][0]["name"] == "M x R at width=64"
        assert found["pairs"][0]["factor"]["point"] == pytest.approx(
            math.exp(found["pairs"][0]["point"])
        )
        assert min(row["p_holm"] for row in found["pairs"]) >= min(
            row["p"] for row in found["pairs"]
        )
        assert "## All pairs" in render(found)

    def test_variants_against_one_baseline(self, tmp_path: Path) -> None:
        table = [
            {
                "cell": cell,
                "seed": s,
                "loss": 3 * math.exp(mean + 1e-3 * synthetic.stream(s, cell).standard_normal()),
            }
            for cell, mean in (("base", 0.0), ("good", -0.02), ("same", 0.0))
            for s in range(1, 7)
        ]
        found = results(save(tmp_path / "runs.csv", table), Columns(baseline=("base",)))
        assert {row["name"]: row["p_holm"] < 0.05 for row in found["family"]} == {
            "good": True,
            "same": False,
        }
        assert "No 2x2 is declared" in render(found)


def test_an_interaction_without_seeds_may_be_scale_dependent(tmp_path: Path) -> None:
    losses = {("P", "none"): 3.300, ("P", "R"): 3.270, ("A", "none"): 3.250, ("A", "R"): 3.2205}
    table = [{"backbone": b, "route": r, "loss": loss} for (b, r), loss in losses.items()]
    path = save(tmp_path / "example.csv", table)
    found = results(path, Columns(seed=None, floors=(1.8,)))
    scales = {
        name: value["point"]
        for name, value in found["budgets"]["tokens"]["interaction"]["scales"].items()
    }
    assert scales["absolute"] == pytest.approx(-0.0005)
    assert abs(scales["ln loss"]) < 2e-5
    assert scales["log excess over E = 1.8"] > 0
    text = render(found)
    assert "Even its sign is scale-dependent." in text
    assert "**The interaction is scale-dependent**" in text


def test_a_written_report_is_byte_identical_when_rebuilt(tmp_path: Path) -> None:
    path = save(tmp_path / "runs.csv", rows())
    for name in ("one", "two"):
        write(path, Columns(), tmp_path / name)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 8
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def without(*keys: tuple[str, str]) -> Callable[[Rows], Rows]:
    return lambda table: [row for row in table if (row["backbone"], row["route"]) not in keys]


def changed(line: int, **values: Any) -> Callable[[Rows], Rows]:
    def change(table: Rows) -> Rows:
        return [{**row, **values} if i == line else row for i, row in enumerate(table)]

    return change


def units(table: Rows) -> Rows:
    return [{**row, "unit": "bits" if row["backbone"] == "A" else "nats"} for row in table]


BAD: dict[str, tuple[Callable[[Rows], Rows], Columns, str]] = {
    "missing-cell": (
        without(("A", "R")),
        Columns(),
        r"runs.csv: missing cell: the 2x2 needs one with backbone A and route R; it has: P\+none, ",
    ),
    "unequal-seeds": (
        lambda table: table[:-1],
        Columns(),
        r"unequal seeds across cells: A\+R lacks seed 5; give every cell the same seeds",
    ),
    "nan-loss": (changed(3, loss="nan"), Columns(), r"line 5 \(P\+none\): the loss is 'nan'"),
    "empty-loss": (changed(3, loss=""), Columns(), r"line 5 \(P\+none\): the loss is 'empty'"),
    "text-loss": (
        changed(3, loss="3,1"),
        Columns(),
        "column 'loss' holds '3,1', which is not a number",
    ),
    "negative-loss": (changed(3, loss=-1), Columns(), "losses must be positive"),
    "mixed-units": (units, Columns(unit="unit"), "mixed units in column 'unit': bits, nats"),
    "mixed-units-unsaid": (
        changed(3, loss=3 / math.log(2)),
        Columns(),
        r"P\+none: the losses of seeds 3 and 4 differ by the factor 1/ln 2",
    ),
    "unknown-unit": (
        lambda table: table,
        Columns(unit="bytes"),
        "--unit is 'nats', 'bits' or a column",
    ),
    "duplicates": (
        lambda table: [*table, table[0]],
        Columns(),
        r"duplicated runs: cell 'P\+none' has seed 1 more than once",
    ),
    "one-seed": (
        lambda table: [r for r in table if r["seed"] == 1],
        Columns(),
        r"one seed only \(1\)",
    ),
    "no-loss-column": (
        lambda table: table,
        Columns(loss="val"),
        r"has no column 'val' \(--loss\); its columns are: backbone, route, seed, loss",
    ),
    "no-seed-column": (lambda table: table, Columns(seed="rng"), r"has no column 'rng' \(--seed\)"),
    "no-cost-column": (
        lambda table: table,
        Columns(costs={"tokens": "toks"}),
        r"has no column 'toks' \(--tokens\)",
    ),
    "empty-seed": (changed(3, seed=""), Columns(), r"line 5 \(P\+none\): the seed is empty"),
    "odd-seed": (changed(3, seed="4.5"), Columns(), r"P\+none lacks seed 4; give every cell"),
    "no-axes": (
        lambda table: [{k: v for k, v in row.items() if k != "route"} for row in table],
        Columns(),
        "neither 'backbone' and 'route' nor 'cell' among its columns",
    ),
    "one-value": (
        without(("A", "none"), ("A", "R")),
        Columns(),
        "column 'backbone' holds only 'P'; a comparison needs two values",
    ),
    "unknown-baseline": (
        lambda table: table,
        Columns(baseline=("Q", "none")),
        r"--baseline \(backbone\) names 'Q', which the table does not have; it has: P, A",
    ),
    "unknown-improved": (
        lambda table: table,
        Columns(improved=("P", "R")),
        r"--improved \(backbone\) names 'P', which the table does not have; it has: A",
    ),
    "no-baseline": (
        lambda table: table,
        Columns(axes=("backbone",), seed=None),
        "which cell is the baseline",
    ),
    "unknown-ladder": (
        lambda table: table,
        Columns(ladder=("Q+none",)),
        r"--ladder names 'Q\+none', which the table does not have",
    ),
}


@pytest.mark.parametrize(("change", "columns", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_clear_line(tmp_path: Path, change, columns: Columns, says: str) -> None:
    path = save(tmp_path / "runs.csv", change(rows()))
    with pytest.raises(UserError, match=says) as error:
        results(path, columns)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "is not there"), ("", "has no rows"), ("a,b\n", "has no rows")],
    ids=["absent", "empty", "header"],
)
def test_no_table_is_one_clear_line(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "runs.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=says):
        results(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_a_table_in_another_encoding_is_one_clear_line(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes("backbone,route,seed,loss\nPré,none,1,3.0\n".encode(encoding))
    with pytest.raises(UserError, match=r"runs.csv is not UTF-8 text; save it as CSV in UTF-8"):
        results(path)


def test_a_table_that_is_not_csv_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("a,b\n" + "x" * 200_000 + ",1\n")
    with pytest.raises(UserError, match="runs.csv cannot be read as CSV: field larger"):
        results(path)


def test_a_seed_written_as_a_float_is_the_same_seed(tmp_path: Path) -> None:
    table = [{**r, "seed": f"{r['seed']}.0" if r["backbone"] == "A" else r["seed"]} for r in rows()]
    found = results(save(tmp_path / "floats.csv", table))
    assert found["budgets"]["tokens"]["seeds"] == [1, 2, 3, 4, 5]
    assert found["budgets"] == results(save(tmp_path / "whole.csv", rows()))["budgets"]


COLUMN_OPTIONS = (
    "loss",
    "seed",
    "axes",
    "tokens",
    "flops",
    "seconds",
    "parameters",
    "budget",
    "status",
)


@pytest.mark.parametrize("option", COLUMN_OPTIONS)
def test_an_absent_column_names_the_commands_own_option(tmp_path: Path, option: str) -> None:
    path = save(tmp_path / "runs.csv", rows())
    assert option in inspect.signature(commands.report).parameters
    with pytest.raises(UserError) as error:
        commands.report(str(path), str(tmp_path / "out"), **{option: "absent"})
    assert f"has no column 'absent' (--{option}); its columns are: " in str(error.value)


def test_published_arms_through_the_whole_report(real_results: Path, tmp_path: Path) -> None:
    """The table of a public residual change: means, deviations, times, gain and step multiplier."""
    table = []
    with (real_results / "modded_nanogpt_mudd_trajectories.csv").open() as file:
        for row in csv.DictReader(file):
            if row["step"] == row["schedule_steps"]:
                kept = {
                    "arm": row["arm"],
                    "run": row["run_id"],
                    "loss": row["val_loss"],
                    "steps": row["step"],
                }
                table.append({**kept, "seconds": float(row["train_time_ms"]) / 1e3})
    columns = Columns(
        axes=("arm",),
        seed="run",
        paired=False,
        baseline=("baseline-s1430",),
        ladder=("baseline-s1480",),
        costs={"tokens": "steps", "train_seconds": "seconds"},
        straight="linear",
    )
    found = results(save(tmp_path / "arms.csv", table), columns)
    gain = next(row for row in found["family"] if row["name"] == "this_pr_v1")["absolute"]
    assert (gain["point"], gain["low"], gain["high"]) == pytest.approx(
        (0.00841, 0.00700, 0.00982), abs=5e-6
    )
    assert found["multipliers"]["tokens"]["this_pr_v1"]["point"] == pytest.approx(1.0368, abs=5e-5)
    text = render(found)
    assert "| this_pr_v1 | 3.2783 (0.0016) | 10 | 1,430 | 83.2 |" in text
    assert "| baseline-s1430 | 3.2867 (0.0014) | 10 | 1,430 | 81.7 |" in text
