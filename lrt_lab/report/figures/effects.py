"""Gain bars, the interaction plot, and the per-seed strip of the interaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels, round_ticks
from lrt_lab.report.layout import all_budgets
from lrt_lab.report.numbers import interval


def _budgets(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {match: b for match, b in all_budgets(results).items() if b.get("n")}


def gains(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Gain of the route per backbone at every budget."""
    budgets = _budgets(results)
    if not budgets:
        return None
    route = results["square"]["route"]
    count = sum(1 + len(b["gains"]) for b in budgets.values())
    figure, (ax,) = panels(height=0.6 + 0.34 * count)
    ax.axvline(0, color="black", linewidth=0.8)
    said, ticks, place = [], [], 0
    for budget in budgets.values():
        ticks.append((place, budget["label"]))
        place += 1
        for name, gain in budget["gains"].items():
            _bar(ax, place, name, gain["log"], look)
            ticks.append((place, name))
            said.append(f"{name} at {budget['label']} {interval(gain['log'])}")
            place += 1
    ax.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    headers = {budget["label"] for budget in budgets.values()}
    for label in ax.get_yticklabels():
        if label.get_text() in headers:
            label.set_fontweight("bold")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(place - 0.4, -0.5)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(f"gain of {route} in ln loss (about the relative improvement)")
    caption = (
        f"Gain of {route} in ln loss per backbone and budget. Bars: mean; black lines: "
        f"{_level(results)} t interval; points above them: seeds."
    )
    alt = f"Bars of the gain of {route} in ln loss: {'; '.join(said)}."
    return Drawing("gains", figure, alt, caption)


def _bar(ax: Axes, place: int, name: str, log: Mapping[str, Any], look: Look) -> None:
    """One bar, seeds in its upper half, the interval's line in its lower one."""
    colour = look.colour(name)
    ax.barh(place, log["point"], 0.66, color=look.tint(name), edgecolor=colour, linewidth=1)
    points = np.array(log["per_seed"] or [])
    ax.plot(points, np.full(len(points), place - 0.15), **look.points(name))
    if log["low"] is not None:
        ends = [log["low"], log["high"]]
        ax.plot(ends, [place + 0.15] * 2, color="black", linewidth=1.6)
        ax.plot(ends, [place + 0.15] * 2, "|", color="black", markersize=6)


def lines(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """The interaction plot: loss without and with the route, one line per backbone, thin per
    seed.
    """
    # losses read off between budgets belong to no run, so they have no place here
    budgets = {m: b for m, b in _budgets(results).items() if not b["interpolated"]}
    if not budgets:
        return None
    square = results["square"]
    figure, axes = panels(len(budgets), width=min(6.4, 3.4 * len(budgets)), height=3.1)
    said = []
    for ax, (match, budget) in zip(axes, budgets.items(), strict=True):
        for name, cells in (
            (square["base"], budget["cells"][:2]),
            (square["improved"], budget["cells"][2:]),
        ):
            values = [_losses(look.cells[cell], budget["seeds"]) for cell in cells]
            if budget["seeds"]:
                ax.plot([0, 1], values, color=look.colour(name), linewidth=0.5, alpha=0.55)
            else:
                for place, found in enumerate(values):
                    ax.plot([place] * len(found), found, **look.points(name))
            mean = [float(np.mean(found)) for found in values]
            ax.plot(
                [0, 1], mean, color=look.colour(name), label=name, linewidth=2.2, **look.solid(name)
            )
            said.append(f"{name} at {budgets[match]['label']} from {mean[0]:.4f} to {mean[1]:.4f}")
        ax.set_yscale("log")
        ax.set_xticks([0, 1], [square["none"], square["route"]])
        ax.set_xlim(-0.2, 1.2)
        ax.grid(axis="x", visible=False)
        ax.set_title(budgets[match]["label"], loc="left")
    low, high = min(ax.get_ylim()[0] for ax in axes), max(ax.get_ylim()[1] for ax in axes)
    ticks = round_ticks(low, high)
    for ax in axes:
        ax.set_ylim(low, high)
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.set_yticks([], minor=True)
    axes[0].set_ylabel("loss, nats per token (log scale)")
    axes[0].legend()
    caption = (
        "Interaction plot. On this logarithmic axis parallel lines are effects that multiply. "
        "Thick: mean; thin or small: seeds."
    )
    alt = f"Loss without and with {square['route']}: {'; '.join(said)}."
    return Drawing("interaction", figure, alt, caption)


def strip(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Per-seed interactions with their mean and interval, zero and the margin band."""
    budgets = {m: b for m, b in _budgets(results).items() if b["interaction"]["per_seed"]}
    if not budgets or not results["suite"]["seeded"]:
        return None
    margin = results["suite"]["margin"]
    figure, (ax,) = panels(height=0.8 + 0.62 * len(budgets))
    ax.axvspan(-margin, margin, color="#DDDDDD", linewidth=0, zorder=0)
    ax.axvline(0, color="black", linewidth=0.8)
    said = []
    for row, (match, budget) in enumerate(budgets.items()):
        effect = budget["interaction"]
        points = np.array(effect["per_seed"])
        ax.plot(points, np.full(len(points), row - 0.14), **{**look.points(None), "markersize": 5})
        for seed, point in zip(budget["seeds"], points, strict=True):
            place: dict[str, Any] = {
                "xytext": (0, 4.5),
                "textcoords": "offset points",
                "ha": "center",
            }
            ax.annotate(str(seed), (point, row - 0.14), fontsize=6.5, **place)
        if effect["low"] is not None:
            ax.plot([effect["low"], effect["high"]], [row + 0.2] * 2, color="black", linewidth=1.8)
        ax.plot([effect["point"]], [row + 0.2], marker="D", color="black", markersize=5.5)
        said.append(f"{budgets[match]['label']} {interval(effect)}")
    ax.set_yticks(range(len(budgets)), [b["label"] for b in budgets.values()])
    ax.set_ylim(len(budgets) - 0.5, -0.6)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("interaction I in ln loss (right of 0: more than multiply)")
    caption = (
        f"Interaction by seed (circles, numbered), mean and {_level(results)} t interval (diamond, "
        f"line); grey: the margin of {margin:g} within which an interaction does not matter."
    )
    return Drawing("interaction-seeds", figure, f"Interaction by seed: {'; '.join(said)}.", caption)


def _level(results: Mapping[str, Any]) -> str:
    return f"{100 * (1 - results['suite']['alpha']):g}%"


def _losses(cell: Mapping[str, Any], seeds: Sequence[Any]) -> list[float]:
    if not seeds:
        return cell["loss"]["values"]
    by_seed = dict(zip(cell["seeds"], cell["loss"]["values"], strict=True))
    return [by_seed[seed] for seed in seeds]
