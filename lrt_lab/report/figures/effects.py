"""Gain bars, the interaction plot, and the per-seed strip of the interaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrt_lab.report.curves import Curve
from lrt_lab.report.figures.style import Drawing, Look, panels
from lrt_lab.report.numbers import interval
from lrt_lab.report.records import BUDGETS


def _budgets(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {match: b for match, b in results["budgets"].items() if b.get("n")}


def gains(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Gain of the route per backbone, one panel per budget."""
    budgets = _budgets(results)
    if not budgets:
        return None
    route, margin = results["square"]["route"], results["suite"]["margin"]
    figure, axes = panels(len(budgets), width=min(6.4, 3.4 * len(budgets)))
    said = []
    for ax, (match, budget) in zip(axes, budgets.items(), strict=True):
        ax.axhline(0, color="black", linewidth=0.8)
        for place, (name, gain) in enumerate(budget["gains"].items()):
            log = gain["log"]
            ax.bar(
                place,
                log["point"],
                width=0.55,
                color=look.colour(name),
                alpha=0.45,
                edgecolor=look.colour(name),
            )
            if log["low"] is not None:
                ax.errorbar(
                    place,
                    log["point"],
                    [[log["point"] - log["low"]], [log["high"] - log["point"]]],
                    color="black",
                    capsize=4,
                    linewidth=1.2,
                )
            points = log["per_seed"] or []
            spots = (
                place + np.linspace(-0.16, 0.16, len(points))
                if len(points) > 1
                else np.array([place] * len(points), float)
            )
            ax.plot(
                spots,
                points,
                linestyle="none",
                marker=look.marker(name),
                markersize=3.5,
                markerfacecolor="white",
                markeredgecolor="black",
                markeredgewidth=0.7,
            )
            said.append(f"{name} at {BUDGETS[match]} {interval(log)}")
        ax.set_xticks(range(len(budget["gains"])), list(budget["gains"]))
        ax.set_xlim(-0.6, len(budget["gains"]) - 0.4)
        ax.grid(axis="x", visible=False)
        ax.set_title(BUDGETS[match], loc="left")
    _share_y(axes)
    axes[0].set_ylabel(f"gain of {route} in ln loss")
    caption = (
        f"Gain of {route} in ln loss per backbone (about the relative improvement). Bars: "
        f"mean; whiskers: 95% t interval; points: seeds. Margin for the interaction: {margin:g}."
    )
    return Drawing(
        "gains", figure, f"Bars of the gain of {route} in ln loss: {'; '.join(said)}.", caption
    )


def lines(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """The interaction plot: loss without and with the route, one line per backbone, thin lines per
    seed.
    """
    budgets = _budgets(results)
    if not budgets:
        return None
    square = results["square"]
    figure, axes = panels(len(budgets), width=min(6.4, 3.4 * len(budgets)))
    said = []
    for ax, (match, budget) in zip(axes, budgets.items(), strict=True):
        for name, cells in (
            (square["base"], budget["cells"][:2]),
            (square["improved"], budget["cells"][2:]),
        ):
            values = np.array([_losses(look.cells[cell], budget["seeds"]) for cell in cells])
            for seed in values.T:
                ax.plot([0, 1], seed, color=look.colour(name), linewidth=0.5, alpha=0.5)
            mean = values.mean(axis=1)
            ax.plot(
                [0, 1],
                mean,
                color=look.colour(name),
                marker=look.marker(name),
                linewidth=2,
                label=name,
                markersize=6,
            )
            said.append(f"{name} at {BUDGETS[match]} from {mean[0]:.4f} to {mean[1]:.4f}")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:.3f}")
        ax.yaxis.set_minor_formatter("{x:.3f}")
        ax.set_xticks([0, 1], [square["none"], square["route"]])
        ax.set_xlim(-0.2, 1.2)
        ax.grid(axis="x", visible=False)
        ax.set_title(BUDGETS[match], loc="left")
    _share_y(axes)
    axes[0].set_ylabel("loss, nats per token (log scale)")
    axes[0].legend()
    caption = (
        "Interaction plot. On this logarithmic axis parallel lines are effects that "
        "multiply. Thick: mean over complete pair blocks; thin: seeds."
    )
    return Drawing(
        "interaction",
        figure,
        f"Loss without and with {square['route']}: {'; '.join(said)}.",
        caption,
    )


def strip(results: Mapping[str, Any], curves: Sequence[Curve], look: Look) -> Drawing | None:
    """Per-seed interactions with their mean and interval, zero and the margin band."""
    budgets = {match: b for match, b in _budgets(results).items() if b["interaction"]["per_seed"]}
    if not budgets:
        return None
    margin = results["suite"]["margin"]
    figure, (ax,) = panels(height=0.9 + 0.75 * len(budgets))
    ax.axvspan(-margin, margin, color="#DDDDDD", linewidth=0, label=f"margin, {margin:g}")
    ax.axvline(0, color="black", linewidth=0.8)
    said = []
    for row, (match, budget) in enumerate(budgets.items()):
        effect = budget["interaction"]
        points = np.array(effect["per_seed"])
        ax.plot(
            points,
            np.full(len(points), row + 0.16),
            linestyle="none",
            marker="o",
            markersize=4.5,
            markerfacecolor="white",
            markeredgecolor="black",
        )
        for seed, point in zip(budget["seeds"], points, strict=True):
            ax.annotate(
                str(seed),
                (point, row + 0.16),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=6,
            )
        if effect["low"] is not None:
            ax.plot([effect["low"], effect["high"]], [row - 0.14] * 2, color="black", linewidth=1.6)
        ax.plot([effect["point"]], [row - 0.14], marker="D", color="black", markersize=5)
        said.append(f"{BUDGETS[match]} {interval(effect)}")
    ax.set_yticks(range(len(budgets)), [BUDGETS[m] for m in budgets])
    ax.set_ylim(len(budgets) - 0.45, -0.55)
    ax.invert_yaxis()
    ax.set_ylim(-0.5, len(budgets) - 0.4)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("interaction I in ln loss (right of zero: more than multiply)")
    caption = (
        "Interaction by seed (circles, numbered), mean and 95% t interval (diamond and "
        "line); grey: the margin within which an interaction does not matter."
    )
    return Drawing("interaction-seeds", figure, f"Interaction by seed: {'; '.join(said)}.", caption)


def _losses(cell: Mapping[str, Any], seeds: Sequence[Any]) -> list[float]:
    by_seed = dict(zip(cell["seeds"], cell["loss"]["values"], strict=True))
    return [by_seed[seed] for seed in seeds]


def _share_y(axes: Sequence[Any]) -> None:
    low, high = min(ax.get_ylim()[0] for ax in axes), max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(low, high)
