"""The figures of a scaling report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lrt_lab.analysis.scaling.crossings import FURTHEST
from lrt_lab.report.figures.style import COLOURS, DASHES, MARKERS, Drawing, panels, save, style

Results = Mapping[str, Any]
# hatch where the law was carried further than so many times the largest run
HATCHES = {1.0: "//", FURTHEST: "xx"}


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw every figure that the results have data for; names and texts go to
    `results["figures"]`.
    """
    results["figures"] = []
    with style():
        for make in (isoflop, fitted, residuals, passes, flops, seconds, interaction, coefficients):
            drawing = make(results)
            if drawing is None:
                continue
            save(drawing.canvas, folder, drawing.name)
            said = {"name": drawing.name, "alt": drawing.alt, "caption": drawing.caption}
            results["figures"].append(said)


def _log(ax: Axes) -> None:
    """A logarithmic x axis; small ticks are named only where there is no large one to name."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if np.floor(np.log10(high)) - np.ceil(np.log10(low)) >= 0:
        ax.tick_params(axis="x", which="minor", labelbottom=False)


def isoflop(results: Results) -> Drawing | None:
    """Loss against size at fixed compute: the law's curves, and the runs near each."""
    figure, (ax,) = panels(height=3.2)
    points, curves = results["points"], results["isoflop"]
    computes = np.array([c["compute"] for c in curves])
    model, k = np.array(points["model"]), np.array(points["passes"])
    mine = (model == 0) & (k == k[model == 0].min())
    size, loss = np.array(points["size"])[mine], np.array(points["loss"])[mine]
    spent = np.array(points["compute"])[mine]
    near = np.abs(np.log(spent[:, None] / computes)).argmin(axis=1)
    for i, curve in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        ax.plot(curve["size"], curve["loss"], color=colour, label=f"{curve['compute']:.2g} FLOPs")
        here = near == i
        ax.plot(
            size[here],
            loss[here],
            linestyle="none",
            marker=MARKERS[i % len(MARKERS)],
            color=colour,
            markersize=3.6,
        )
        if curve["best_size"] is not None:
            ax.plot(
                curve["best_size"],
                curve["best_loss"],
                marker="*",
                color=colour,
                markersize=9,
                markeredgecolor="black",
                markeredgewidth=0.6,
            )
    room = 0.1 * np.ptp(loss)
    ax.set_ylim(loss.min() - room, loss.max() + room)
    _log(ax)
    ax.set_xlabel("parameters")
    ax.set_ylabel("nats per token")
    figure.legend(loc="outside right upper")
    best = ", ".join(
        f"{c['best_size']:.2g} at {c['compute']:.2g} FLOPs" for c in curves if c["best_size"]
    )
    return Drawing(
        "isoflop",
        figure,
        f"IsoFLOP curves of {results['models'][0]}; best sizes: {best or 'outside the sizes run'}.",
        "Loss against size at fixed training compute, by the law; stars are its minima, points the "
        f"runs of {results['models'][0]} with the nearest compute.",
    )


def fitted(results: Results) -> Drawing | None:
    """Fitted against observed loss."""
    figure, (ax,) = panels(height=3.2)
    points = results["points"]
    x, y = np.array(points["fitted"]), np.array(points["loss"])
    ends = [min(x.min(), y.min()), max(x.max(), y.max())]
    ax.plot(ends, ends, color="#555555", linewidth=0.9)
    held = np.array(points["held_out"])
    for i, name in enumerate(results["models"]):
        for out in (False, True):
            here = (np.array(points["model"]) == i) & (held == out)
            ax.plot(
                x[here],
                y[here],
                linestyle="none",
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[i % len(MARKERS)],
                markerfacecolor="white" if out else COLOURS[i % len(COLOURS)],
                markersize=4.5,
                label=name + (", largest" if out else ""),
            )
    ax.set_xlabel("fitted, nats per token")
    ax.set_ylabel("observed, nats per token")
    figure.legend(loc="outside right upper")
    rms = results["law"]["rms"]
    return Drawing(
        "fitted",
        figure,
        f"Observed against fitted loss; rms residual {rms:.2g} in ln loss.",
        "Observed against fitted loss; open points are the runs of largest compute, which choose "
        "the law.",
    )


def residuals(results: Results) -> Drawing | None:
    """Residuals against size, data and passes."""
    points = results["points"]
    axes = {"parameters": "size", "tokens": "tokens", "passes": "passes"}
    if len(set(points["passes"])) == 1:
        del axes["passes"]
    figure, found = panels(len(axes), height=2.6)
    values = np.array(points["residual"])
    for ax, (label, key) in zip(found, axes.items(), strict=True):
        for i, _ in enumerate(results["models"]):
            here = np.array(points["model"]) == i
            ax.plot(
                np.array(points[key])[here],
                values[here],
                linestyle="none",
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[i % len(MARKERS)],
                markersize=3.2,
            )
        ax.axhline(0, color="#555555", linewidth=0.9)
        if key != "passes":
            _log(ax)
        ax.set_xlabel(label)
    found[0].set_ylabel("residual of ln loss")
    for ax in found[1:]:
        ax.tick_params(labelleft=False)
        ax.set_ylim(found[0].get_ylim())
    return Drawing(
        "residuals",
        figure,
        f"Residuals of ln loss against {', '.join(axes)}; largest {np.abs(values).max():.2g}.",
        "Residuals of ln loss, observed less fitted; a trend is what the law misses.",
    )


def passes(results: Results) -> Drawing | None:
    """Loss against passes: runs and law."""
    lines = results["passes"]
    if not lines:
        return None
    figure, (ax,) = panels(height=3.2)
    shown = (
        lines
        if len(lines) <= 6
        else [lines[i] for i in np.linspace(0, len(lines) - 1, 6, dtype=int)]
    )
    for i, line in enumerate(shown):
        colour = COLOURS[i % len(COLOURS)]
        ax.plot(line["fine"], line["fitted"], color=colour)
        ax.plot(
            line["passes"],
            line["loss"],
            linestyle="none",
            color=colour,
            marker=MARKERS[i % len(MARKERS)],
            label=f"N {line['size']:.2g}, D {line['tokens']:.2g}",
        )
    ax.set_xlabel("passes")
    ax.set_ylabel("nats per token")
    ax.set_xticks(sorted({k for line in shown for k in line["passes"]}))
    figure.legend(loc="outside right upper")
    ends = "; ".join(
        f"N {s['size']:.2g}, D {s['tokens']:.2g} from {s['loss'][0]:.4f} at {s['passes'][0]:g} to "
        f"{s['loss'][-1]:.4f} at {s['passes'][-1]:g}"
        for s in shown
    )
    return Drawing(
        "passes",
        figure,
        f"Loss against passes: {ends}.",
        "Loss against the passes of training and use: points are runs, lines the law.",
    )


def flops(results: Results) -> Drawing | None:
    """Cost ratio in FLOPs."""
    return ratios(results, "FLOPs", "cost-ratio")


def seconds(results: Results) -> Drawing | None:
    """Cost ratio in seconds."""
    return ratios(results, "seconds", "cost-ratio-seconds")


def ratios(results: Results, unit: str, name: str) -> Drawing | None:
    """Cost ratio against output tokens, with band, and hatched where extrapolated."""
    found = [c for c in results["crossings"] if c["log_ratio"][0][0] is not None]
    first = [c for c in found if c["unit"] == unit]
    if not first:
        return None
    shown = list(dict.fromkeys(c["ratio"] for c in first))[:4]
    figure, axes = panels(len(shown), height=2.9, width=max(6.4, 2.1 * len(shown)))
    said = []
    pairs = list(dict.fromkeys((c["model"], c["baseline"]) for c in first))
    for ax, ratio in zip(axes, shown, strict=True):
        for c in (c for c in first if c["ratio"] == ratio):
            i = pairs.index((c["model"], c["baseline"]))
            x = np.array(c["tokens"])
            point, low, high = (
                np.exp(np.array([np.nan if v is None else v for v in row]))
                for row in c["log_ratio"]
            )
            colour = COLOURS[(i + 1) % len(COLOURS)]
            ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
            label = f"{c['model']} over {c['baseline']}" if ratio == shown[0] else None
            ax.plot(x, point, color=colour, linestyle=DASHES[i % len(DASHES)], label=label)
            reached = np.array([np.nan if v is None else v for v in c["reached"]])
            for factor, hatch in HATCHES.items() if i == 0 else ():
                ax.fill_between(
                    x,
                    0,
                    1,
                    where=~(reached <= factor),
                    transform=ax.get_xaxis_transform(),
                    facecolor="none",
                    edgecolor="#CCCCCC",
                    hatch=hatch,
                    linewidth=0,
                )
            said.append(f"{c['model']} over {c['baseline']} at ratio {ratio:g}: {c['word']}")
        ax.axhline(1, color="#555555", linewidth=0.9)
        _log(ax)
        ax.set_title(f"{ratio:g} prompt per output", loc="left")
        ax.set_xlabel("output tokens")
    axes[0].set_ylabel(f"cost ratio, {unit}")
    figure.legend(loc="outside lower center", ncols=3)
    return Drawing(
        name,
        figure,
        f"Cost ratio in {unit} at one loss against output tokens: {'; '.join(said)}.",
        f"Total cost of training and use at one loss, in {unit}, over the baseline's; band: "
        f"{100 * results['level']:g}% interval; hatched: a model lies beyond the largest run, "
        f"crossed: more than {FURTHEST:g} times beyond.",
    )


def interaction(results: Results) -> Drawing | None:
    """The interaction against data, a line of the law for every size."""
    found = results.get("interaction")
    if not found or "refused" in found:
        return None
    figure, (ax,) = panels(height=2.9)
    size, tokens, value = (np.array(found["entries"][k]) for k in ("size", "tokens", "value"))
    slopes = [found[k]["point"] if found[k] else 0.0 for k in ("by_size", "by_data")]
    for i, n in enumerate(np.unique(size)):
        mine = size == n
        colour = COLOURS[i % len(COLOURS)]
        at = np.geomspace(tokens[mine].min(), tokens[mine].max(), 2)
        line = found["middle"]["point"] + slopes[0] * np.log(n / found["size"])
        ax.plot(at, line + slopes[1] * np.log(at / found["tokens"]), color=colour)
        ax.plot(
            tokens[mine],
            value[mine],
            linestyle="none",
            color=colour,
            marker=MARKERS[i % len(MARKERS)],
            label=f"N {n:.2g}",
        )
    ax.axhline(0, color="#555555", linewidth=0.9)
    _log(ax)
    ax.set_xlabel("tokens")
    ax.set_ylabel("interaction, ln loss")
    figure.legend(loc="outside right upper")
    middle = found["middle"]
    return Drawing(
        "interaction",
        figure,
        f"Interaction against tokens by size; {middle['point']:+.4f} in the middle of the design.",
        "The interaction of backbone and route in ln loss: points are 2x2s of runs, lines its law "
        "in size and data.",
    )


def coefficients(results: Results) -> Drawing | None:
    """Exponents and effects with intervals; A, B and E live on other scales."""
    items = [i for i in results["law"]["parameters"] if i["name"] not in ("A", "B", "E")]
    if any(item["low"] is None for item in items):
        return None
    figure, (ax,) = panels(height=0.9 + 0.32 * len(items))
    for row, item in enumerate(items):
        ax.plot([item["low"], item["high"]], [row, row], color=COLOURS[1], linewidth=2)
        ax.plot(item["point"], row, marker="o", color=COLOURS[1])
    ax.set_yticks(range(len(items)), [item["name"] for item in items])
    ax.set_ylim(len(items) - 0.5, -0.5)
    said = ", ".join(
        f"{i['name']} {i['point']:.3g} [{i['low']:.3g}, {i['high']:.3g}]" for i in items
    )
    return Drawing(
        "coefficients",
        figure,
        f"Coefficients of the law {results['law']['name']}: {said}.",
        f"Exponents and effects of the law {results['law']['name']}, with "
        f"{100 * results['level']:g}% intervals from resampled runs.",
    )
