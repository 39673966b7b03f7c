"""A scaling law from the records of a suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lrt_lab.analysis.scaling import law
from lrt_lab.cli import main
from lrt_lab.errors import UserError
from lrt_lab.report.scaling import figures
from lrt_lab.report.scaling.records import read_folder
from lrt_lab.store import read_json, write_json, write_text
from tests.analysis.scaling.grids import grid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Finished runs of a plain model and of a latent one with two and three passes."""
    found = grid(law("iso-recurrence"), {"phi": 0.4}, passes=(1, 2, 3), sd=0.0005)
    items = []
    for i, (n, d, k, loss) in enumerate(
        zip(found.size, found.tokens, found.passes, found.loss, strict=True)
    ):
        name = f"cell-{i}"
        item = {
            "cell": name,
            "axes": {"model": "plain" if k == 1 else "latent"},
            "twin": None,
            "seed": 1,
            "folder": f"{name}/seed-1",
            "parameters": {"total": n + 100, "matmul": n},
        }
        cost = {
            "passes": k,
            "train_flops_per_token": 6 * n * k,
            "train_pointwise_per_token": n,
            "prefill_flops_per_token": 2 * n,
            "prefill_pointwise_per_token": n / 10,
            "decode_flops_per_token": 2 * n,
            "decode_pointwise_per_token": n / 5,
            "decode_bytes_per_token": 4 * n,
        }
        final = {
            "status": "finished",
            "tokens": d,
            "test": {"exact": {"loss": loss, "sha256": "same"}},
            "parameters": item["parameters"],
            "cost": cost,
            "throughput": {
                "tokens_per_second": 1e9 / n / k,
                "prefill_tokens_per_second": 4e9 / n,
                "decode_tokens_per_second": 1e8 / n,
            },
        }
        write_json(tmp_path / item["folder"] / "final.json", final)
        write_json(tmp_path / item["folder"] / "meta.json", {"data": {"training_tokens": 5e8}})
        write_text(tmp_path / item["folder"] / "DONE", "")
        items.append(item)
    plan = {
        "suite": "h3",
        "scale": "smoke",
        "suite_file": "experiments/h3.yaml",
        "statistics": {"outcome": "exact"},
        "scaling": {"axis": "model", "baseline": "plain", "sd": 0.001, "pilots": ["smoke"]},
        "cells": items,
    }
    write_json(tmp_path / "plan.json", plan)
    return tmp_path


def test_costs_are_matrix_and_pointwise_of_the_meter(folder: Path) -> None:
    found = read_folder(folder)
    given = found.table
    assert (given.models, found.preface, found.name) == (
        ("plain", "latent"),
        "pilot: machinery only.",
        "h3/smoke",
    )
    n, k = given.runs.size, given.runs.passes
    np.testing.assert_allclose(given.runs.compute, given.runs.tokens * n * (6 * k + 1))
    np.testing.assert_allclose(given.costs["prefill_flops"], 2.1 * n * k)
    np.testing.assert_allclose(given.costs["decode_flops"], 2.2 * n)
    np.testing.assert_array_equal(given.runs.model, k > 1)
    np.testing.assert_allclose(given.costs["decode_bytes"], 4 * n)
    np.testing.assert_allclose(given.costs["train_seconds"], given.runs.tokens * n * k / 1e9)
    np.testing.assert_allclose(given.costs["prefill_seconds"], k * n / 4e9)
    np.testing.assert_allclose(given.costs["decode_seconds"], n / 1e8)
    np.testing.assert_allclose(given.runs.epochs, given.runs.tokens / 5e8)


def test_a_serial_prefill_is_one_pass(folder: Path) -> None:
    given = read_folder(folder, prefill_passes=1).table
    np.testing.assert_allclose(given.costs["prefill_flops"], 2.1 * given.runs.size)


def test_the_command_says_pilot_first(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "draw", lambda results, _: results.update(figures=[]))
    options = ["--resamples", "100", "--ratios", "0", "--law", "iso-recurrence"]
    assert main(["scaling", "fit", str(folder), *options]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("pilot: machinery only. crosses at ")
    assert said[-1] == "report: reports/h3/smoke/scaling/report.md"


def test_options_that_the_suite_declares_are_refused(folder: Path, capsys) -> None:
    assert main(["scaling", "fit", str(folder), "--baseline", "plain", "--loss", "x"]) == 2
    assert "--loss, --baseline cannot be given here" in capsys.readouterr().err


def test_unfinished_runs_are_left_out_and_none_is_an_error(folder: Path) -> None:
    items = read_json(folder / "plan.json")["cells"]
    (folder / items[0]["folder"] / "DONE").unlink()
    assert len(read_folder(folder).table.runs) == len(items) - 1
    for item in items[1:]:
        (folder / item["folder"] / "DONE").unlink()
    with pytest.raises(UserError, match="no run is finished yet"):
        read_folder(folder)
