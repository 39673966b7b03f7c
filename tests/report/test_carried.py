"""What is carried, from records of real models to the report's table and figures."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from lrt_lab.backbones import AttentionResiduals
from lrt_lab.data.slices import EvaluationSlice, document_ids
from lrt_lab.decoder import Decoder
from lrt_lab.report import carried
from lrt_lab.report.figures import arms, style
from lrt_lab.report.records import Design, Record
from lrt_lab.report.values import clean
from lrt_lab.routes import LRT, Householder, NoRoute
from lrt_lab.schedules import Jacobi
from lrt_lab.training.evaluate import evaluate

ROUTES = {"none": NoRoute, "LRT": LRT, "Householder": Householder}


def final(route: str, seed: int) -> dict[str, Any]:
    """What a run of an untrained model with random weights records."""
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(16, 2, 257, backbone=AttentionResiduals(), route=ROUTES[route]())
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    tokens = torch.randint(0, 256, (3, 9), generator=torch.Generator().manual_seed(1))
    rows = {"tokens": tokens, "document": document_ids(tokens, 256)}
    part = EvaluationSlice(rows, 24, "hash")
    # As it comes back from a file.
    return json.loads(json.dumps(evaluate(decoder, Jacobi(2), part, part, 16)))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [
        Record(route, seed, loss=1.0, final=(found := final(route, seed)), curve=found["curve"])
        for route in ROUTES
        for seed in (1, 2)
    ]


@pytest.fixture(scope="module")
def found(records: list[Record]) -> list[dict[str, Any]]:
    cells = {route: {"arm": route} for route in ROUTES}
    design = Design("toy", {"arm": list(cells)}, cells, None, (1, 2), 0.01)
    return clean(carried.measured(design, records))


def test_cells_that_carry_something_have_an_entry_with_the_mean_of_their_runs(
    records: list[Record], found: list[dict[str, Any]]
) -> None:
    assert [item["cell"] for item in found] == ["LRT", "Householder"]
    runs = [r.final["carried"] for r in records if r.cell == "Householder"]
    item = found[1]
    assert item["rank"] == [run["rank"] for run in runs]
    for key in ("weights", "size"):
        np.testing.assert_allclose(item[key], (np.array(runs[0][key]) + runs[1][key]) / 2)
    assert np.shape(item["weights"]) == (2, len(item["sources"])) == (2, 1 + 2 + 4)
    assert found[0]["weights"] is None


def test_the_table_names_the_largest_sources(found: list[dict[str, Any]]) -> None:
    lines = carried.section({"carried": found})[-1].splitlines()
    row = next(line for line in lines if line.startswith("| Householder |"))
    shares = found[1]["weights"][1]
    largest = found[1]["sources"][int(np.argmax(shares))]
    assert f"; {largest} {max(shares):.2f}".replace(" 0.", " .") in row
    assert row.count(" of 16 |") == 1
    assert carried.section({"carried": []}) == carried.section({}) == []


def test_the_heat_map_has_a_row_for_every_slot(found: list[dict[str, Any]]) -> None:
    with style.style():
        drawing = arms.sources({"carried": found}, [], None)
    assert drawing is not None
    ax = drawing.canvas.axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "Householder, slot 0",
        "Householder, slot 1",
    ]
    shares = ax.collections[0].get_array().reshape(2, -1)
    np.testing.assert_allclose(shares, found[1]["weights"])
    assert drawing.canvas.get_size_inches()[0] <= 6.5
    with style.style():
        assert arms.sources({"carried": found[:1]}, [], None) is None


def test_every_record_has_what_the_outcomes_are_read_from(records: list[Record]) -> None:
    from lrt_lab.report.arms import PASSES, of_curve

    for record in records:
        values = [of_curve(record, place) for place in PASSES.values()]
        curve = record.final["curve"]["bpb"]
        assert values == pytest.approx([curve[3], sum(curve[3:16]) / 13])
        if record.cell == "none":
            assert values == pytest.approx([record.final["test"]["exact"]["bpb"]] * 2)
