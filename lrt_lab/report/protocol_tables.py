"""The report's sections on tuning, further squares, budgets, exposure and ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrt_lab.report import arm_words
from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import NONE, interval, listing, percent, plain, signed

Results = Mapping[str, Any]
BUDGET = {"tokens": "tokens", "train_flops": "training FLOPs"}


def rates(results: Results) -> list[str]:
    """What tuning tried and chose."""
    found = results["rates"]
    if not found:
        return []
    factors = sorted({item["factor"] for row in found["rows"] for item in row["losses"]})
    rows = []
    for row in found["rows"]:
        losses = {item["factor"]: item["loss"] for item in row["losses"]}
        cells = [
            NONE
            if f not in losses
            else "diverged"
            if losses[f] is None
            else f"**{plain(losses[f])}**"
            if f == row["factor"]
            else plain(losses[f])
            for f in factors
        ]
        chosen = f"{row['factor']:g} x" + ("" if row["inside"] else " (at the edge)")
        rows.append([row["cell"], *cells, chosen])
    scored = "mean loss" if found["metric"] == "loss" else "mean share of wrong answers"
    said = (
        f"Every cell was tried at multiples of the default of `{found['key']}` on seeds "
        f"{listing([str(s) for s in found['seeds']])}, which nothing else here uses, and scored by "
        f"the {found['outcome']} evaluation on validation rows: {scored}, the best in bold. A "
        "best value at the edge of a grid extended it. Cells at other budgets took that of the "
        "tuned schedule nearest in steps. All results of this report are at the chosen rates, "
        "except where the default is named."
    )
    parts = [
        "## Learning rates",
        said,
        grid(["cell", *(f"{f:g} x" for f in factors), "chosen"], rows),
    ]
    if found.get("unchanged"):
        same = listing([f"`{cell}`" for cell in found["unchanged"]])
        parts.append(
            f"Tuning chose the default for {same}: they are not run again at it, and stand "
            "themselves in what is compared at the default."
        )
    if found.get("gain"):
        best, default = (signed(found["gain"][which]) for which in ("best", "default"))
        parts.append(
            "On those seeds and rows, without an interval, the gain of "
            f"{arm_words.name(results)} is {best} at the best rates and {default} with the default "
            "everywhere."
        )
    if found["square"]:
        best, default = (_points(found["square"][which]) for which in ("best", "default"))
        parts.append(
            "On those seeds and rows, without intervals, the interaction is "
            f"{best} at the best rates and {default} with the default everywhere."
        )
    return parts


def _points(found: Mapping[str, Any]) -> str:
    gains = listing([signed(found[name]) for name in ("gain_base", "gain_improved")])
    return f"{signed(found['interaction'])} (gains {gains})"


def squares(results: Results) -> list[str]:
    """The 2x2 with other cells in the place of some."""
    if not results["squares"]:
        return []
    first = head(results, results["square"], "square")
    primary = results["budgets"]["tokens"]
    rows = []
    if "unavailable" not in primary:
        gains = [interval(gain["log"]) for gain in primary["gains"].values()]
        rows.append(["**primary**", *gains, interval(primary["interaction"]), str(primary["n"])])
    rows += [[row["name"], *effects(row), str(row["n"])] for row in results["squares"]]
    changed = [
        f"- {row['name']}: "
        + ", ".join(f"`{cell}`" for cell in row["cells"] if cell not in _own(results))
        for row in results["squares"]
    ]
    return [
        "## The square with other cells",
        "The primary 2x2 at equal tokens with other cells in the place of some, in ln loss.",
        grid([*first, "n"], rows),
        "\n".join(changed),
    ]


def ladder(results: Results) -> list[str]:
    """The interaction against budget."""
    found = results["ladder"]
    if not found:
        return []
    parts = [
        "## Against budget",
        "The 2x2 at every budget, each cell a completed schedule of its own. The slope is that of "
        "the line over ln budget, seed by seed: what an effect gains or loses per e-fold.",
    ]
    rows = budgeted(found)
    return [*parts, grid(head(results, results["square"], "budget"), rows)]


def budgeted(found: Mapping[str, Any]) -> list[list[str]]:
    """A row for every budget, and its slope, at equal tokens and at equal FLOPs."""
    rows = []
    for kind, by in found.items():
        for one in by["budgets"]:
            rows.append([f"equal {BUDGET[kind]}, {one['times']:g} x", *effects(one)])
        rows.append([f"**slope**, equal {BUDGET[kind]}", *effects(by["slope"])])
    return rows


def exposure(results: Results) -> list[str]:
    """What decoding loses to what training saw."""
    if not results["exposure"]:
        return []
    rows = exposed(results["exposure"])
    return [
        "## Last training pass and exact recurrence",
        "gain(exact) = gain(last training pass) - exposure gap, the gap being ln loss of the exact "
        "recurrence minus that of the last training pass of the routed cell. Per backbone, and for "
        "the interaction.",
        grid(head(results, results["square"], "evaluation"), rows),
    ]


def exposed(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Three rows for every square: last training pass, gap, exact recurrence."""
    rows = []
    for one in found:
        rows.append([f"{one['name']}: last training pass", *effects(one["last_pass"])])
        rows.append([f"{one['name']}: exposure gap", *effects(one["gap"])])
        rows.append([f"**{one['name']}: exact**", *effects(one["exact"])])
    return rows


def ports(results: Results) -> list[str]:
    """How strongly memory enters."""
    found = results["ports"]
    if not found:
        return []
    blocks = max(len(row["log_ratio"]) for row in found)
    rows = [
        [row["cell"], *(signed(value, 2) for value in row["log_ratio"])]
        + [NONE] * (blocks - len(row["log_ratio"]))
        for row in found
    ]
    vectors = dict.fromkeys((row["backbone"], row["vector"]) for row in found)
    said = "; ".join(f"{backbone} emits {vector}" for backbone, vector in vectors)
    return [
        "## Ports",
        "Injection adds gamma m to a block's input x. Mean over positions and seeds of "
        "ln(|gamma m| / |x|), by block, where they meet. What m is differs too: "
        f"{said}; a control puts another vector in its place.",
        grid(["cell", *(f"block {block}" for block in range(blocks))], rows),
    ]


def head(results: Results, square: Mapping[str, Any], first: str) -> list[str]:
    """Columns of a table with both gains and the interaction of a square."""
    level = percent(1 - results["suite"]["alpha"])
    gain = f"{square['route']} on"
    return [first, f"{gain} {square['base']} [{level}]", f"{gain} {square['improved']}", "I"]


def effects(row: Mapping[str, Any]) -> list[str]:
    """Both gains and the interaction."""
    return [interval(row[name]) for name in ("gain_base", "gain_improved", "interaction")]


def _own(results: Results) -> list[str]:
    return results["square"]["cells"]
