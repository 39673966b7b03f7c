"""The report's sections on multipliers, families of contrasts, larger factorials, and
sensitivity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrt_lab.report.layout import all_budgets, cost_name, grid
from lrt_lab.report.numbers import NONE, interval, p, percent, plain

Results = Mapping[str, Any]
PLACES = {
    "inside": "",
    "extrapolated": " (just beyond the baseline's budgets)",
    "above": " or more (beyond the baseline's largest budget)",
    "below": " or less (below the baseline's smallest budget)",
}


def multipliers(results: Results) -> list[str]:
    """How much more the baseline would need for the variant's loss."""
    found = {**results["multipliers"], **results["wall_clock"]["multipliers"]}
    rows = []
    for cost, by_name in found.items():
        for name, value in by_name.items():
            if value is not None and value["budgets"] >= 2:
                rows.append(
                    [name, cost_name(results, cost), _multiplier(value), str(value["budgets"])]
                )
    if not rows:
        return []
    few = any(
        v and v["budgets"] >= 2 and not v["enough_budgets"]
        for by in found.values()
        for v in by.values()
    )
    parts = [
        "## Multipliers",
        "What the baseline would need for the same loss, over what the variant spent; from "
        "completed "
        "runs only, straight lines between budgets, Fieller's interval.",
        grid(["on", "cost", "multiplier", "budgets"], rows),
    ]
    if few:
        parts.append(
            "Two budgets give a straight line and no check of it: read those rows as exploration."
        )
    return parts


def _multiplier(value: Mapping[str, Any]) -> str:
    if value["point"] is None:
        return "undefined (the baseline's own slope is not distinguishable from 0)"
    point = f"{value['point']:.4f}"
    if value["low"] is not None:
        return f"{point} [{value['low']:.4f}, {value['high']:.4f}]{PLACES[value['place']]}"
    if value["place"] in PLACES:
        return f"{point}{PLACES[value['place']]}"
    return f"{point}, interval undefined (the baseline's slope is not distinguishable from 0)"


def families(results: Results) -> list[str]:
    """The declared family, the plan's other contrasts, and every pair of a larger factorial."""
    parts = []
    level = percent(1 - results["suite"]["alpha"])
    # Ablations have a section of their own.
    if results["family"] and not (results.get("arms") or {}).get("ablations"):
        rule = (
            "Holm's p over the declared family is for claims; q (Benjamini-Hochberg) is "
            "exploratory."
        )
        parts += ["## Declared family", rule, _contrasts(results["family"], level)]
    if results["contrasts"]:
        parts += ["## Further declared contrasts", _contrasts(results["contrasts"], level)]
    if results["pairs"]:
        said = (
            "Every residual improvement with every route, against the shared baseline; exp(I) "
            "above "
            "1: more than multiply. p is Holm's over these rows, q exploratory."
        )
        parts += ["## All pairs", said, _pairs(results["pairs"])]
    return parts


def _pairs(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = {
        "pair": lambda row: row["name"],
        "I, ln loss": interval,
        "exp(I)": lambda row: _factor(row["factor"]),
        "gain on baseline": lambda row: interval(row["gain_base"]),
        "gain on improved": lambda row: interval(row["gain_improved"]),
        "I at matched training FLOPs": lambda row: (
            interval(row["at_flops"]) if row["at_flops"] else NONE
        ),
        "p (t)": lambda row: p(row["p"]),
        "p (Holm)": lambda row: p(row["p_holm"]),
        "q (BH)": lambda row: p(row["q_bh"]),
    }
    if not any(row["at_flops"] for row in rows):
        del columns["I at matched training FLOPs"]
    return grid(list(columns), [[column(row) for column in columns.values()] for row in rows])


def _contrasts(rows: Sequence[Mapping[str, Any]], level: str) -> str:
    head = [
        "contrast",
        f"ln loss [{level}]",
        "nats/token",
        "blocked model",
        "p (t)",
        "p (Holm)",
        "q (BH)",
        "p (sign-flip)",
    ]
    return grid(
        head,
        [
            [
                row["label"],
                interval(row),
                interval(row["absolute"]),
                interval(row["blocked"]) if row["blocked"] else NONE,
                p(row["p"]),
                p(row["p_holm"]),
                p(row["q_bh"]),
                p(row["p_sign_flip"]),
            ]
            for row in rows
        ],
    )


def _factor(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return plain(found["point"])
    return f"{found['point']:.4f} [{found['low']:.4f}, {found['high']:.4f}]"


def sensitivity(results: Results) -> list[str]:
    """What changes when diverged runs are scored instead of dropped with their blocks."""
    lines = []
    for budget in all_budgets(results).values():
        found = budget.get("sensitivity")
        if found:
            lost = f"; {found['unscored']} have none" if found["unscored"] else ""
            lines.append(
                f"- {budget['label']}: I = {interval(found['interaction'])} (n = "
                f"{found['n']}{lost}), "
                f"reading {found['reading']}."
            )
    if not lines:
        return []
    rule = (
        "The primary analysis uses complete pair blocks. With diverged runs scored at their "
        "last finite loss:"
    )
    return ["## Sensitivity to diverged runs", rule, "\n".join(lines)]
