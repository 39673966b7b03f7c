"""Arms of one axis: ablations by what they change, loss by pass, and what each arm carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lrt_lab.report.arm_words import shown
from lrt_lab.report.carried import gathers, largest
from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import COLOURS, DASHES, WIDTH, Drawing, Look, panels
from lrt_lab.report.numbers import interval

Results = Mapping[str, Any]
MAIN = "arms of the verdict, and others"


def ordered(results: Results) -> list[Mapping[str, Any]]:
    """Ablations by what they change, in the order of the choices."""
    groups, rows = results["groups"], results["arms"]["ablations"]
    names = [*(groups["choices"] if groups else ()), *(row["group"] for row in rows)]
    return sorted(rows, key=lambda row: names.index(row["group"]))


def grouped(results: Results) -> dict[str, list[str]]:
    """Cells by panel: the main ones, then ablations by what they change, behind their reference."""
    found = {MAIN: shown(results) or []}
    for row in ordered(results):
        change = row["group"] or "ablations"
        panel = f"{change}, from {row['reference']}" if row["reference"] else change
        cells = found.setdefault(panel, [])
        cells += [c for c in (row["reference"], row["arm"]) if c and c not in cells]
    return found


def ablations(results: Results, curves: Sequence[Curve], look: Look) -> Drawing | None:
    """The primary contrast, then every ablation's difference, group by group."""
    found = results.get("arms")
    if not found or not found["ablations"]:
        return None
    alpha, margin = results["suite"]["alpha"], results["suite"]["margin"]
    primary = {**found["primary"], "label": f"{found['primary']['name']} (primary)"}
    primary["p_holm"] = primary["p"]
    rows = [primary]
    for row in ordered(results):
        named = f"{row['arm'] or row['name']} over {row['reference'] or 'its reference'}"
        rows.append({**row, "label": f"{row['group'] or 'ablation'}: {named}"})
    rows = [row for row in rows if row["point"] is not None]
    if not rows:
        return None
    figure, (ax,) = panels(height=0.8 + 0.24 * len(rows))
    ax.axvspan(-margin, margin, color="#DDDDDD", linewidth=0, zorder=0)
    ax.axvline(0, color="black", linewidth=0.8)
    for place, row in enumerate(rows):
        if row["low"] is not None:
            ax.plot([row["low"], row["high"]], [place] * 2, color="black", linewidth=1.4)
        claimed = row["p_holm"] is not None and row["p_holm"] <= alpha
        face = "black" if claimed else "white"
        looks: dict[str, Any] = {"markeredgecolor": "black", "markerfacecolor": face}
        ax.plot([row["point"]], [place], "s" if place == 0 else "o", markersize=5, **looks)
    ax.set_yticks(range(len(rows)), [row["label"] for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.6)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("difference in ln loss (right of 0: better)")
    caption = (
        "The primary contrast (square), alone in its family, and the ablations, with "
        f"{100 * (1 - alpha):g}% t intervals; filled: significant, the ablations after Holm's "
        f"correction over all of them; grey: the margin of {margin:g}."
    )
    said = "; ".join(f"{row['label']} {interval(row)}" for row in rows)
    return Drawing("ablations", figure, f"Differences by ablation: {said}.", caption)


def by_pass(results: Results, curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Bits per byte against the evaluation pass, a panel for every group."""
    known = {item["cell"]: item for item in results["passes"]}
    groups = _those(results, known)
    # Without ablations there is a figure of all cells.
    if len(groups) < 2:
        return None
    figure, axes = _grid(len(groups))
    for ax, (group, cells) in zip(axes, groups.items(), strict=True):
        for place, cell in enumerate(cells):
            item = known[cell]
            ax.plot(item["passes"], item["bpb"], label=cell, **_line(place))
        _dress(ax, group, "evaluation pass", "bits per byte")
    # Pass 1 has no memory and may lie far above the rest.
    later = [known[c]["bpb"][1:] or known[c]["bpb"] for cells in groups.values() for c in cells]
    low, high = min(map(min, later)), max(map(max, later))
    for ax in axes:
        ax.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low) or None)
    said = [
        f"{cell} {known[cell]['bpb'][0]:.4f} at pass {known[cell]['passes'][0]}, "
        f"{known[cell]['bpb'][-1]:.4f} at pass {known[cell]['passes'][-1]}, exact "
        f"{known[cell]['exact_bpb']:.4f}"
        for cell in dict.fromkeys(cell for cells in groups.values() for cell in cells)
    ]
    caption = (
        "Bits per byte on the curve's slice against the evaluation pass, mean over seeds, by what "
        "an ablation changes; one scale for all panels, on which pass 1 may be out of sight."
    )
    return Drawing("by-pass", figure, f"Bits per byte by pass: {'; '.join(said)}.", caption)


def slots(results: Results, curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Size of what each slot brings, by position, a panel for every group."""
    known = {item["cell"]: item for item in results.get("carried") or []}
    groups = _those(results, known)
    if not groups:
        return None
    figure, axes = _grid(len(groups))
    for ax, (group, cells) in zip(axes, groups.items(), strict=True):
        for place, cell in enumerate(cells):
            for slot, size in enumerate(known[cell]["size"]):
                looks = {**_line(place), "linestyle": DASHES[1 - slot if slot < 2 else slot % 6]}
                label = cell if slot == 0 else None
                ax.plot(known[cell]["position"], size, label=label, **looks)
        _dress(ax, group, "position", "root mean square entry")
    said = [
        f"{cell} {', '.join(f'{size[-1]:.2f}' for size in known[cell]['size'])}"
        for cell in dict.fromkeys(cell for cells in groups.values() for cell in cells)
    ]
    caption = (
        "Root mean square entry of the memory that enters, by position, mean over rows and seeds; "
        "a line for each slot, the first one solid. Nothing enters the first position of a "
        "document, which lowers the first bin."
    )
    alt = f"Size of slots in the last bin of positions: {'; '.join(said)}."
    return Drawing("slots", figure, alt, caption)


def sources(results: Results, curves: Sequence[Curve], look: Look) -> Drawing | None:
    """What each slot gathers: a heat map of slots by sources."""
    items = [item for item in results.get("carried") or [] if gathers(item)]
    if not items:
        return None
    names = list(dict.fromkeys(name for item in items for name in item["sources"]))
    kinds = ("embedding", "slot", "unit")
    names.sort(key=lambda name: (kinds.index(name.split()[0]), int((name.split() + ["0"])[1])))
    rows = [(item, slot) for item in items for slot in range(len(item["weights"]))]
    shares = np.full((len(rows), len(names)), np.nan)
    for place, (item, slot) in enumerate(rows):
        for name, share in zip(item["sources"], item["weights"][slot], strict=True):
            shares[place, names.index(name)] = share
    figure, (ax,) = panels(height=1.3 + 0.17 * len(rows))
    mesh = ax.pcolormesh(np.ma.masked_invalid(shares), cmap="Greys", vmin=0)
    ax.set_facecolor("#F4E3D0")
    ax.set_xticks(np.arange(len(names)) + 0.5, names, rotation=90, fontsize=7)
    labels = [f"{item['cell']}, slot {slot}" for item, slot in rows]
    ax.set_yticks(np.arange(len(rows)) + 0.5, labels, fontsize=7)
    ax.set_ylim(len(rows), 0)
    ax.grid(visible=False)
    figure.colorbar(mesh, ax=ax, label="share", fraction=0.05)
    said = [f"{item['cell']}, slot {slot}: {largest(gathers(item)[slot])}" for item, slot in rows]
    caption = (
        "Softmax weights of every slot over its sources, mean over positions and seeds. Units are "
        "sublayers in order; slots among the sources are those that had arrived. Tinted: no such "
        "source."
    )
    alt = f"Largest sources of each slot: {'; '.join(said)}."
    return Drawing("sources", figure, alt, caption)


def ranks(results: Results, curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Effective rank of what is carried, by arm."""
    items = results.get("carried") if results.get("arms") else None
    if not items:
        return None
    figure, (ax,) = panels(height=0.8 + 0.2 * len(items))
    for place, item in enumerate(items):
        ax.plot(item["rank"], [place] * len(item["rank"]), "o", color=COLOURS[4], markersize=3)
        ax.plot([np.mean(item["rank"])], [place], "D", color="black", markersize=5)
    ax.set_yticks(range(len(items)), [item["cell"] for item in items])
    ax.set_ylim(len(items) - 0.5, -0.6)
    ax.set_xlabel(f"effective rank, of {max(item['width'] for item in items)}")
    said = "; ".join(f"{item['cell']} {np.mean(item['rank']):.1f}" for item in items)
    caption = (
        "Effective rank of the vectors that enter positions: mean (diamond) and seeds. It counts "
        "directions and not lengths."
    )
    return Drawing("rank", figure, f"Effective rank of the carried state: {said}.", caption)


def _those(results: Results, known: Mapping[str, Any]) -> dict[str, list[str]]:
    """The groups with the cells that something is known of; empty in designs without arms."""
    if not results.get("arms"):
        return {}
    found = {
        group: [cell for cell in cells if cell in known]
        for group, cells in grouped(results).items()
    }
    return {group: cells for group, cells in found.items() if cells}


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """Panels in two columns, the last one of an odd number alone in its row."""
    rows = (count + 1) // 2
    figure, axes = plt.subplots(
        rows, min(count, 2), figsize=(WIDTH, 2.5 * rows), layout="constrained", squeeze=False
    )
    flat = list(axes.flat)
    for spare in flat[count:]:
        spare.set_axis_off()
    return figure, flat[:count]


def _line(place: int) -> dict[str, Any]:
    """The look of the so-manieth line of a panel."""
    again = {"marker": "o", "markersize": 2.5} if place >= len(COLOURS) else {}
    return {"color": COLOURS[place % len(COLOURS)], "linewidth": 1.1, **again}


def _dress(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.legend(fontsize=6, frameon=True, edgecolor="none", framealpha=0.7)
