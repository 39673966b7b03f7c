"""One look for all figures: a backbone is a colour and a marker, a route is a line and a fill.
Readable in greyscale.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

# Ordered so that neighbours differ in lightness as well as in hue
COLOURS = ("#D98200", "#0B3D73", "#5FB3A1", "#8B1E3F", "#7C7C7C", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ((0, (4, 2)), "-", (0, (1, 1.2)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))
WIDTH = 6.4

SETTINGS: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "legend.frameon": False,
    # ids in the SVG come from this salt and not from chance
    "svg.hashsalt": "lrt-lab",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure with its file name, its alt text and its caption."""

    name: str
    canvas: Figure
    alt: str
    caption: str


class Look:
    """Colour, marker, dash and fill of every cell of a report."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        axes = list(results["suite"]["axes"].items())
        self.first, self.firsts = axes[0] if axes else ("cell", [])
        self.second, self.seconds = axes[1] if len(axes) > 1 else ("", [])
        self.cells = {cell["cell"]: cell for cell in results["cells"]}

    def line(self, cell: str) -> dict[str, Any]:
        """Keyword arguments of a line for this cell."""
        axes = self.cells[cell]["axes"]
        i = self.place(self.firsts, axes.get(self.first))
        j = self.place(self.seconds, axes.get(self.second))
        looks = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[j % len(DASHES)] if self.seconds else "-",
            "marker": MARKERS[i % len(MARKERS)],
            "markerfacecolor": "white" if j == 0 and self.seconds else COLOURS[i % len(COLOURS)],
            "label": cell,
        }
        # a twin is its cell again with another budget: thinner, and marked all along
        twin = {"linewidth": 0.9, "markersize": 3.6} if self.cells[cell]["twin"] else {}
        return {**looks, **twin}

    def colour(self, first: str) -> str:
        """The colour of a value of the first axis."""
        return COLOURS[self.place(self.firsts, first) % len(COLOURS)]

    def tint(self, first: str) -> tuple[float, float, float]:
        """The colour, lightened for areas that something is drawn upon."""
        red, green, blue = (0.55 + 0.45 * c for c in to_rgb(self.colour(first)))
        return red, green, blue

    def solid(self, first: str) -> dict[str, Any]:
        """A filled marker for a value of the first axis."""
        marker = MARKERS[self.place(self.firsts, first) % len(MARKERS)]
        return {
            "marker": marker,
            "markersize": 6.5,
            "markeredgecolor": "black",
            "markeredgewidth": 0.6,
        }

    def points(self, first: str | None) -> dict[str, Any]:
        """Small open points for seeds, without a line."""
        marker = MARKERS[self.place(self.firsts, first) % len(MARKERS)]
        face = {"markerfacecolor": "white", "markeredgecolor": "black", "markeredgewidth": 0.7}
        return {"linestyle": "none", "marker": marker, "markersize": 3.6, **face}

    @staticmethod
    def place(values: Any, value: Any) -> int:
        """Position of a value on its axis; 0 when it is not there."""
        return list(values).index(value) if value in values else 0


@contextmanager
def style() -> Iterator[None]:
    """The settings of this module, for the length of a block."""
    with plt.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def panels(count: int = 1, height: float = 2.9, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels side by side."""
    figure, axes = plt.subplots(
        1, count, figsize=(width, height), layout="constrained", squeeze=False
    )
    return figure, list(axes[0])


def round_ticks(low: float, high: float) -> list[float]:
    """About five round values."""
    raw = (high - low) / 5
    size = 10 ** np.floor(np.log10(raw))
    step = size * min((m for m in (1, 2, 2.5, 5, 10) if m * size >= raw), default=10)
    first = np.ceil(low / step)
    return [float(round(k * step, 10)) for k in np.arange(first, np.floor(high / step) + 1)]


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `name.svg` and `name.png`; equal figures give equal bytes (no dates, no versions)."""
    folder.mkdir(parents=True, exist_ok=True)
    # the layout is solved once and then kept: it is most of the time that saving takes
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        temporary = folder / f".{name}.{os.getpid()}.{suffix}"
        figure.savefig(temporary, format=suffix, metadata=metadata)
        os.replace(temporary, folder / f"{name}.{suffix}")
    plt.close(figure)
