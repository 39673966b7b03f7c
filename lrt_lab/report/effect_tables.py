"""The report's sections on effects: squares at each budget, scales, multipliers, families,
checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lrt_lab.report.numbers import NONE, interval, p, percent, plain, signed
from lrt_lab.report.records import BUDGETS
from lrt_lab.report.words import headline

Results = Mapping[str, Any]
Budget = Mapping[str, Any]
PLACES = {
    "inside": "",
    "extrapolated": " (just beyond the baseline's budgets)",
    "above": " or more (beyond the baseline's largest budget)",
    "below": " or less (below the baseline's smallest budget)",
}
COSTS = {"tokens": "tokens", "train_flops": "training FLOPs", "train_seconds": "wall-clock"}


def cost_name(results: Results, cost: str) -> str:
    """What a cost is called: a table's own column name where it has one."""
    return results["suite"]["cost_names"].get(cost, COSTS[cost])


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, first column left, the others right."""
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] + ['---:'] * (len(head) - 1))}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def all_budgets(results: Results) -> dict[str, Budget]:
    """Budgets in the order of `BUDGETS`, the clock's among them."""
    found = {**results["budgets"], **results["wall_clock"]["budgets"]}
    return {match: found[match] for match in BUDGETS if match in found}


def squares(results: Results) -> list[str]:
    """One section per budget."""
    parts = []
    for match, budget in all_budgets(results).items():
        parts.append(f"## Effects at {budget.get('label', BUDGETS[match])}")
        if "unavailable" in budget:
            parts.append(f"Not available: {budget['unavailable']}.")
            continue
        if match != "tokens":
            parts += [headline(results, budget), _what_was_matched(budget)]
        elif (budget["mismatch"] or 0) > budget["tolerance"]:
            parts.append(
                f"**Tokens differ by up to {100 * budget['mismatch']:.2g}% within a backbone**: "
                "these are the cells as they were run."
            )
        parts += _square(results, budget)
        if match == "tokens":
            parts += scales(results, budget)
    return parts


def _what_was_matched(budget: Budget) -> str:
    cells = ", ".join(f"`{cell}`" for cell in budget["cells"])
    if budget["interpolated"]:
        return (
            f"Cells: {cells}. The baselines' losses at these costs are read off straight lines in "
            "ln loss against ln cost between their completed budgets, seed by seed."
        )
    if budget["mismatch"] is None:
        return f"Cells: {cells}."
    said = f"the matched costs agree within {100 * budget['mismatch']:.2g}%"
    return (
        f"Cells: {cells}; {said if budget['mismatch'] <= budget['tolerance'] else f'**{said}**'}."
    )


def _square(results: Results, budget: Budget) -> list[str]:
    if not budget["n"]:
        return ["No complete pair block yet."]
    square, level = results["square"], percent(1 - results["suite"]["alpha"])
    rows = []
    for name, gain in budget["gains"].items():
        log = gain["log"]
        label = f"{square['route']} on {name}"
        more = [interval(gain["relative"], True), interval(gain["absolute"])]
        rows.append([label, interval(log), *more, p(log["p"]), p(gain["p_holm"])])
        rows[-1].append(p(log["p_sign_flip"]))
    effect = budget["interaction"]
    nats = interval(effect["scales"]["absolute"])
    tests = [p(effect["p"]), NONE, p(effect["p_sign_flip"])]
    rows.append(["**interaction I**", interval(effect), NONE, nats, *tests])
    labels = {
        "without": f"{square['improved']} over {square['base']}, without {square['route']}",
        "with": f"{square['improved']} over {square['base']}, with {square['route']}",
    }
    extra = [(labels[key], budget["improvement"][key]) for key in labels]
    for label, found in [*extra, ("both together", budget["together"])]:
        rows.append(
            [label, interval(found), NONE, NONE, p(found["p"]), NONE, p(found["p_sign_flip"])]
        )
    head = [
        "effect",
        f"log gain, ln loss [{level}]",
        "relative gain",
        "absolute gain, nats/token",
        "p (t)",
        "p (Holm, both gains)",
        "p (sign-flip)",
    ]
    return [grid(head, rows), "\n".join(f"- {line}" for line in _notes(results, budget))]


def _notes(results: Results, budget: Budget) -> list[str]:
    effect, square = budget["interaction"], results["square"]
    how = "paired by seed, Student t" if results["suite"]["paired"] else "unpaired, Welch"
    notes = [
        f"I is the log gain on {square['improved']} minus the log gain on {square['base']} ({how}, "
        f"n = {budget['n']}). Improvements *multiply* when I = 0 on ln loss and *more than "
        f"multiply* when I > 0. {percent(effect['inner_level'])} interval of I, for equivalence: "
        f"{interval(effect['inner'])}."
        if effect["low"] is not None
        else f"I is the log gain on {square['improved']} minus the log gain on {square['base']}.",
        _ratio(results, budget),
    ]
    if effect["sign_flip_floor"] is not None:
        floor = f"p = {effect['sign_flip_floor']:g}"
        notes.append(f"The exact sign-flip test cannot go below {floor} with {budget['n']} seeds.")
    if effect["blocked"]:
        equal = effect["equal_variances_p"]
        warn = (
            " **The cells' variances differ: rely on the paired t.**"
            if equal is not None and equal < 0.05
            else ""
        )
        notes.append(
            f"Blocked linear model (ln loss ~ cell + seed, {plain(effect['blocked']['df'], 0)} df, "
            f"secondary): I = {interval(effect['blocked'])}, p {_equals(effect['blocked']['p'])}. "
            f"It needs one variance in all cells: Brown-Forsythe p {_equals(equal)}.{warn}"
        )
    if budget["correlation"] and budget["correlation"]["mean"] is not None:
        found = budget["correlation"]
        notes.append(
            f"Correlation of cells within a pair block: {plain(found['mean'], 2)} "
            f"[{plain(found['low'], 2)}, {plain(found['high'], 2)}]; this is what pairing buys."
        )
    if effect["sd"]:
        notes.append(_precision(results, budget))
    return notes


def _equals(value: float | None) -> str:
    text = p(value)
    return text if text.startswith("<") else f"= {text}"


def _precision(results: Results, budget: Budget) -> str:
    effect, margin = budget["interaction"], results["suite"]["margin"]
    text = (
        f"sd of I over seeds: {effect['sd']:.2g} [{effect['sd_low']:.2g}, "
        f"{effect['sd_high']:.2g}]; "
        f"with n = {budget['n']} an interaction of {budget['detectable']:.2g} would be seen with "
        "80% chance."
    )
    if budget["detectable"] > margin:
        text += f" **The margin of {margin:g} is smaller than that.**"
    return text


def _ratio(results: Results, budget: Budget) -> str:
    ratio, square = budget["ratio"], results["square"]
    name = f"Ratio of the relative gains, {square['improved']} over {square['base']}"
    if ratio["kind"] == "bounded" and ratio["low"] is not None:
        return f"{name}: {interval(ratio)} (Fieller, bounded)."
    gain = budget["gains"][square["base"]]["relative"]
    if gain["low"] is None:
        return f"{name}: {signed(ratio['point'], 3)}, without an interval."
    return (
        f"{name}: undefined: the {square['base']} gain is not distinguishable from 0 "
        f"({interval(gain, True)}); Fieller's set is {_set(ratio)}. Read I instead."
    )


def _set(ratio: Mapping[str, Any]) -> str:
    if ratio["kind"] == "unbounded":
        return f"unbounded, all but ({signed(ratio['low'], 2)}, {signed(ratio['high'], 2)})"
    return f"the {ratio['kind']}"


def scales(results: Results, budget: Budget) -> list[str]:
    """The interaction on every scale; an interaction can be made or removed by the choice of
    one.
    """
    if not budget["n"]:
        return []
    effect = budget["interaction"]
    rows = [
        [f"{name}{' (primary)' if name == 'ln loss' else ''}", interval(found)]
        for name, found in effect["scales"].items()
    ]
    parts = ["### The interaction on other scales", grid(["scale", "interaction"], rows)]
    if effect["scale_dependent"]:
        parts.append(
            "**The interaction is scale-dependent**: its sign differs between these scales."
        )
    notes = []
    if not results["suite"]["floors"]:
        notes.append("No entropy floor was stated, so there is no log-excess scale.")
    for floor in budget["floors_refused"]:
        notes.append(
            f"The entropy floor E = {floor:g} is not below every loss; its scale is refused."
        )
    if not any(name == "ln compute multiplier" for name in effect["scales"]):
        notes.append(
            "A compute multiplier counts as a scale only with three or more completed budgets per "
            "baseline."
        )
    return [*parts, " ".join(notes)]


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
    if results["family"]:
        rule = (
            "Holm's p over the declared family is for claims; q (Benjamini-Hochberg) is "
            "exploratory."
        )
        parts += ["## Declared family", rule, _contrasts(results["family"], level)]
    if results["contrasts"]:
        parts += ["## Further declared contrasts", _contrasts(results["contrasts"], level)]
    if results["pairs"]:
        head = [
            "pair",
            "I, ln loss",
            "exp(I)",
            "gain on baseline",
            "gain on improved",
            "p",
            "p (Holm)",
            "q",
        ]
        rows = [
            [
                row["name"],
                interval(row),
                _factor(row["factor"]),
                interval(row["gain_base"]),
                interval(row["gain_improved"]),
                p(row["p"]),
                p(row["p_holm"]),
                p(row["q_bh"]),
            ]
            for row in results["pairs"]
        ]
        said = (
            "Every residual improvement with every route, against the shared baseline; exp(I) "
            "above 1: more than multiply."
        )
        parts += ["## All pairs", said, grid(head, rows)]
    return parts


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
