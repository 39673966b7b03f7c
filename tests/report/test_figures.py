"""Figures: one look that survives greyscale, fixed sizes, deterministic bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lrt_lab.report.figures import effects, learning, style
from lrt_lab.report.figures.learning import thousands
from lrt_lab.report.figures.style import COLOURS, DASHES, MARKERS, Look
from lrt_lab.report.suite_report import gather
from tests.report import synthetic


def lightness(colour: str) -> float:
    """CIE L* of a colour: what is left of it in greyscale."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    y = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def test_neighbouring_colours_differ_in_lightness() -> None:
    levels = [lightness(colour) for colour in COLOURS]
    assert min(abs(a - b) for a, b in zip(levels, levels[1:], strict=False)) > 15


def test_colours_markers_and_dashes_are_all_different() -> None:
    for values in (COLOURS, MARKERS, DASHES):
        assert len(set(values)) == len(values) == 6


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("figures")
    plan = synthetic.plan()
    synthetic.write_runs(plan, folder)
    return gather(plan, folder)


@pytest.fixture(scope="module")
def results(gathered):
    return gathered[0]


@pytest.mark.parametrize(
    "make", [learning.against_flops, learning.against_seconds], ids=lambda f: f.__name__
)
def test_a_twin_and_its_cell_differ_without_colour(gathered, make) -> None:
    results, curves = gathered
    with style.style():
        drawing = make(results, curves, Look(results))
    (ax,) = drawing.canvas.axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    for cell in ("PreNorm+none", "AttentionResiduals+none"):
        assert lines[cell].get_marker() in (None, "None")
        assert lines[f"{cell}@flops"].get_marker() in MARKERS
    # a twin starts as its cell does: bands would lie on each other
    assert len(ax.collections) == len(synthetic.CELLS)
    assert "markers all along: cells trained longer" in drawing.caption


def test_seeds_stand_beside_the_interval_and_not_on_it(results) -> None:
    with style.style():
        drawing = effects.gains(results, [], Look(results))
    assert drawing is not None
    (ax,) = drawing.canvas.axes
    drawn = [line for line in ax.get_lines() if len(line.get_ydata()) in (2, 5)][1:]
    seeds = {y for line in drawn if len(line.get_ydata()) == 5 for y in line.get_ydata()}
    intervals = {y for line in drawn if len(line.get_ydata()) == 2 for y in line.get_ydata()}
    assert len(seeds) == len(intervals) >= 4
    assert min(abs(a - b) for a in seeds for b in intervals) > 0.25


def test_a_backbone_keeps_its_colour_and_a_route_its_line(results) -> None:
    look = Look(results)
    lines = {cell: look.line(cell) for cell in synthetic.CELLS}
    assert lines["PreNorm+none"]["color"] == lines["PreNorm+LRT"]["color"]
    assert lines["PreNorm+LRT"]["linestyle"] == lines["AttentionResiduals+LRT"]["linestyle"]
    assert len({(line["color"], line["linestyle"]) for line in lines.values()}) == 4


@pytest.mark.parametrize(
    "make", [effects.gains, effects.lines, effects.strip], ids=lambda f: f.__name__
)
def test_a_figure_fits_a_page_and_says_its_numbers(results, make, tmp_path: Path) -> None:
    with style.style():
        drawing = make(results, [], Look(results))
        assert drawing.canvas.get_size_inches()[0] <= 6.5
        style.save(drawing.canvas, tmp_path, drawing.name)
    assert "matched training FLOPs" in drawing.alt
    assert "±" not in drawing.alt and "$" not in drawing.caption
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".png", ".svg"]


def test_drawing_leaves_the_callers_settings_alone() -> None:
    before = dict(matplotlib.rcParams)
    with style.style():
        assert matplotlib.rcParams["svg.hashsalt"] == "lrt-lab"
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("largest", "power"), [(0.5, 0), (250.0, 0), (512_000, 3), (2e12, 12), (9.9e14, 12)]
)
def test_axes_are_scaled_by_thousands(largest: float, power: int) -> None:
    assert thousands(largest) == power
