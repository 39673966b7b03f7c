"""The report's sections on effects: squares at each budget, scales, multipliers, families,
checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrt_lab.report.layout import all_budgets, grid
from lrt_lab.report.numbers import NONE, interval, p, percent, plain, signed
from lrt_lab.report.records import BUDGETS
from lrt_lab.report.words import headline

Results = Mapping[str, Any]
Budget = Mapping[str, Any]


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
    within, across = budget["mismatch"], budget["mismatch_across"]
    said = f"on each backbone the matched costs agree within {100 * within:.2g}%"
    text = f"Cells: {cells}; {said if within <= budget['tolerance'] else f'**{said}**'}."
    if across > within:
        text += (
            f" Between backbones they differ by up to {100 * across:.2g}%: the rows that compare "
            "backbones are matched no closer than that."
        )
    return text


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
        notes.append(_blocked(effect))
    if budget["correlation"] and budget["correlation"]["mean"] is not None:
        found = budget["correlation"]
        notes.append(
            f"Correlation of cells within a pair block: {plain(found['mean'], 2)} "
            f"[{plain(found['low'], 2)}, {plain(found['high'], 2)}]; this is what pairing buys."
        )
    if effect["sd"]:
        notes.append(_precision(results, budget))
    return notes


def _blocked(effect: Mapping[str, Any]) -> str:
    found, equal = effect["blocked"], effect["equal_variances_p"]
    text = (
        f"Blocked linear model (ln loss ~ cell + seed, {plain(found['df'], 0)} df, secondary): "
        f"I = {interval(found)}, p {_equals(found['p'])}. It needs one variance in all cells"
    )
    if equal is None:
        return f"{text}, which so few seeds cannot check."
    differ = " **The variances differ: rely on the paired t.**" if equal < 0.05 else ""
    return f"{text}: Brown-Forsythe p {_equals(equal)}.{differ}"


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
