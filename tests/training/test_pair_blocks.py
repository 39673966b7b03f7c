"""A pair block: in one seed all cells see the same batches and share their initial values."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from lrt_lab.suite import expansion
from lrt_lab.suite.declaration import load
from lrt_lab.suite.plan import config_of
from lrt_lab.training.run import Run

CELLS = ("PreNorm+none", "PreNorm+LRT", "AttentionResiduals+none", "AttentionResiduals+LRT")


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, int], Run]:
    """The four cells of H1 at two seeds, as the suite file declares them."""
    suite = load(Path("experiments/h1.yaml"))
    scale = suite.scales["smoke"]
    return {
        (run.cell.name, run.seed): Run(config_of(suite, scale, run))
        for run in expansion.runs(suite, scale)
        if run.cell.name in CELLS
    }


def batches(run: Run, count: int = 6) -> list[torch.Tensor]:
    _, data = run.cli.build()
    data.prepare_data()
    return [batch["tokens"] for batch in itertools.islice(data.train_dataloader(), count)]


def parameters(run: Run) -> dict[str, torch.Tensor]:
    module, _ = run.cli.build()
    return dict(module.decoder.named_parameters())


@pytest.mark.parametrize("cell", CELLS[1:])
def test_cells_of_a_seed_see_the_same_batches_in_the_same_order(cells: dict, cell: str) -> None:
    for mine, theirs in zip(batches(cells[cell, 1]), batches(cells[CELLS[0], 1]), strict=True):
        assert torch.equal(mine, theirs)


def test_another_seed_sees_other_batches(cells: dict) -> None:
    assert not torch.equal(batches(cells[CELLS[0], 1])[0], batches(cells[CELLS[0], 2])[0])


@pytest.mark.parametrize("pair", list(itertools.combinations(CELLS, 2)), ids=" and ".join)
def test_cells_of_a_seed_start_from_the_same_shared_values(
    cells: dict, pair: tuple[str, str]
) -> None:
    mine, theirs = (parameters(cells[cell, 1]) for cell in pair)
    shared = mine.keys() & theirs.keys()
    assert {"embedding", "head", "units.0.body.query", "units.3.body.up"} <= shared
    for name in shared:
        assert torch.equal(mine[name], theirs[name]), name


def test_another_seed_starts_elsewhere(cells: dict) -> None:
    one, two = parameters(cells[CELLS[3], 1]), parameters(cells[CELLS[3], 2])
    assert not torch.equal(one["embedding"], two["embedding"])
    assert not torch.equal(one["units.0.body.query"], two["units.0.body.query"])
