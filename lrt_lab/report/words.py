"""The verdict in sentences. Every word is chosen by the numbers in `results`; none is typed for a
particular run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lrt_lab.analysis.verdict import FEWEST_SEEDS
from lrt_lab.report.numbers import interval, listing, percent, signed

Budget = Mapping[str, Any]


def hypothesis(results: Mapping[str, Any]) -> str:
    """`H1` for a suite called h1, else the words "the hypothesis"."""
    name = results["suite"]["name"]
    return name.upper() if re.fullmatch(r"[hH]\d+", name) else "the hypothesis"


def verdict(results: Mapping[str, Any]) -> list[str]:
    """The report's opening, one sentence or short paragraph each. The first one always carries what
    limits the rest.
    """
    budgets = results["budgets"]
    if "tokens" not in budgets:
        return ["No 2x2 is declared: this report compares cells and gives no verdict."]
    main, flops = budgets["tokens"], budgets.get("train_flops")
    sentences = []
    if flops is not None and flops["n"]:
        sentences += _flops_first(results, flops)
    sentences.append(headline(results, main))
    sentences.append(gate(results, main))
    if flops is not None:
        sentences.append(f"At matched training FLOPs: {_lower(headline(results, flops))}")
        if flops["n"] and not _flops_first(results, flops):
            sentences.append(gate(results, flops, "At matched training FLOPs the gate reads: "))
    else:
        sentences.append(
            "No cell was trained at matched training FLOPs, so none of this is a statement at "
            "equal compute."
        )
    return sentences


def _flops_first(results: Mapping[str, Any], flops: Budget) -> list[str]:
    weak = {name: gain for name, gain in flops["gains"].items() if not gain["shown"]}
    if not weak:
        return []
    parts = []
    for name, gain in weak.items():
        log = gain["log"]
        if log["high"] is not None and log["high"] < 0:
            state = "negative"
        elif log["point"] is not None and log["point"] <= 0:
            state = "not positive"
        else:
            state = "not shown to be positive"
        parts.append(f"{state} on {name} ({interval(log)} in ln loss)")
    route = results["square"]["route"]
    return [f"At matched training FLOPs the gain of {route} is {listing(parts)}."]


def headline(results: Mapping[str, Any], budget: Budget) -> str:
    """One sentence: the reading of one budget's square."""
    square, suite = results["square"], results["suite"]
    base, improved, route = square["base"], square["improved"], square["route"]
    h, level, margin = hypothesis(results), percent(1 - suite["alpha"]), suite["margin"]
    effect = budget["interaction"]
    number = f"I = {interval(effect)} in ln loss, {level} interval, n = {budget['n']}"
    if budget["reading"] == "withheld":
        reason = (
            "none is complete"
            if not budget["n"]
            else "one block has no interval"
            if budget["n"] == 1
            else "no interval can be computed"
        )
        point = (
            "" if effect["point"] is None else f" So far I = {signed(effect['point'])} in ln loss."
        )
        return (
            f"Verdict withheld: of {len(results['registration']['seeds'])} planned pair blocks "
            f"{budget['n']} complete; {reason}.{point}"
        )
    words = {
        "qualitative": f"qualitative interaction, {h} not shown: {_which(results, budget)}, and "
        f"the interaction is above 0 ({number}).",
        "substitution": "substitution or ceiling: cannot tell at this scale. "
        f"{_alone(results, budget)} ({number}).",
        "negligible": f"real but negligible: the relative gain of {route} is larger on {improved} "
        f"than on {base}, by less than the margin of {margin:g} ({number}).",
        "supported": f"{h} supported{_scales(effect)}: {route} gains on both backbones and the "
        f"two improvements more than multiply ({number}).",
        "reversed": f"{h} refuted (reversed): the relative gain of {route} is smaller on "
        f"{improved} than on {base}; together they give less than the product ({number}).",
        "equivalent": f"{h} refuted (equivalent): the two effects multiply, the interaction is 0 "
        f"within the margin of {margin:g} ({number}).",
        "inconclusive": "inconclusive: the data neither show an interaction nor exclude one of "
        f"the margin's size, {margin:g} ({number}).{_more(budget)}",
    }
    text = words[budget["reading"]]
    if budget["pilot"]:
        return (
            f"Pilot, no verdict: {budget['n']} pair blocks, fewer than {FEWEST_SEEDS}. The "
            f"intervals so far would read: {text}"
        )
    return text[0].upper() + text[1:]


def gate(results: Mapping[str, Any], budget: Budget, prefix: str = "") -> str:
    """Whether both gains are shown, each with its interval."""
    route, parts = results["square"]["route"], []
    for name, gain in budget["gains"].items():
        if gain["log"]["low"] is None:
            return f"{prefix}The gains of {route} have no interval yet."
        state = "shown" if gain["shown"] else "negative" if gain["log"]["high"] < 0 else "not shown"
        parts.append(f"on {name} {state} ({interval(gain['relative'], percent=True)})")
    return f"{prefix}Gain of {route}, relative: {listing(parts)}."


def _which(results: Mapping[str, Any], budget: Budget) -> str:
    route = results["square"]["route"]
    shown = [name for name, gain in budget["gains"].items() if gain["shown"]]
    harmful = [name for name, gain in budget["gains"].items() if gain["log"]["high"] < 0]
    if len(harmful) == 2:
        return f"{route} harms both backbones, {results['square']['improved']} less"
    if shown and harmful:
        return f"{route} gains on {shown[0]} and harms {harmful[0]}"
    if shown:
        return f"{route} gains on {shown[0]} only"
    if harmful:
        return f"{route} harms {harmful[0]} and gains on neither backbone"
    return f"no gain of {route} is shown on either backbone"


def _alone(results: Mapping[str, Any], budget: Budget) -> str:
    square = results["square"]
    reaches = budget["reaches_alone"]
    names = [
        name
        for name, alone in (
            (square["improved"], reaches["improvement"]),
            (square["route"], reaches["route"]),
        )
        if alone
    ]
    return (
        f"{listing(names)} alone {'reaches' if len(names) == 1 else 'each reach'} what both "
        f"together reach, within the margin of {results['suite']['margin']:g}"
    )


def _scales(effect: Mapping[str, Any]) -> str:
    if effect["scale_dependent"]:
        return " on the primary scale (scale-dependent)"
    return ", all scales" if effect["all_scales"] else " on the primary scale"


def _more(budget: Budget) -> str:
    more = budget["further_seeds"]
    if not more:
        return ""
    return f" About {more} further seeds would detect an interaction of that size with 80% chance."


def _lower(text: str) -> str:
    return text if re.match(r"H\d", text) else text[0].lower() + text[1:]
