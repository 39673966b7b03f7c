"""The verdict in sentences. Every word is chosen by the numbers in `results`, none typed for a
particular run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lrt_lab.analysis.verdict import FEWEST_SEEDS
from lrt_lab.report import arm_words
from lrt_lab.report.accuracy import verdict as accuracy
from lrt_lab.report.layout import declared_square, hypothesis
from lrt_lab.report.numbers import count, interval, listing, percent, signed
from lrt_lab.report.scaling import suite as scaling

Results = Mapping[str, Any]
Budget = Mapping[str, Any]
FLOPS = "At matched training FLOPs"
#: Scales whose models are too small to speak for others.
SMALL = ("smoke", "quick", "cpu")


def verdict(results: Results) -> list[str]:
    """The report's opening, one paragraph each; the first sentence carries what limits all
    others.
    """
    if results.get("scaling"):
        return scaling.verdict(results)
    return _scoped(results, _verdict(results))


def opening(results: Results) -> list[str]:
    """The verdict up to its reading at the budgets as run: what a terminal shows."""
    if results.get("scaling"):
        return [line.replace("**", "") for line in scaling.verdict(results)]
    said = _verdict(results)
    if results.get("arms"):
        said = said[:2]
    elif results["square"]:
        said = said[: 1 + said.index(headline(results, results["budgets"]["tokens"]))]
    return _scoped(results, said)


def _scoped(results: Results, said: list[str]) -> list[str]:
    """What was run on a small scale says at what size, first, and how far it reaches, last."""
    square, gains = declared_square(results), (results["accuracy"] or {}).get("gains")
    arms = results.get("arms")
    # Without a square or a primary arm, a task's verdict is about every cell.
    names = (
        square["cells"]
        if square
        else arm_words.cells(results)
        if arms
        else [cell["cell"] for cell in results["cells"]]
    )
    own = [
        cell
        for cell in results["cells"]
        if cell["cell"] in names and cell["parameters"] and cell["tokens"]
    ]
    if results["suite"]["scale"] not in SMALL or not (square or gains or arms) or not own:
        return said
    parameters, tokens = (max(cell[key] for cell in own) for key in ("parameters", "tokens"))
    bytewise = any(part["bytes"] for part in results["evaluation"])
    unit = "bytes" if bytewise else "positions"
    first = f"At {count(parameters)} parameters and {count(tokens)} {unit}: {_lower(said[0])}"
    last = "This says nothing about larger models."
    return [first, *said[1:-1], f"{said[-1]} {last}"] if said[1:] else [f"{first} {last}"]


def _verdict(results: Results) -> list[str]:
    if results["accuracy"] and results["accuracy"]["metric"]:
        return accuracy(results)
    if results.get("arms"):
        return arm_words.verdict(results)
    if not results["square"]:
        return [
            "No 2x2 is declared: this report compares cells and gives no verdict on an interaction."
        ]
    main, flops = results["budgets"]["tokens"], results["budgets"]["train_flops"]
    known = "unavailable" not in flops and flops["reading"] != "withheld"
    first = _flops_first(results, flops) if known else None
    parts = [first] if first else []
    parts += [headline(results, main), gate(results, main)]
    if "unavailable" in flops:
        parts.append(
            f"Nothing here is a statement at equal training FLOPs: {flops['unavailable']}."
        )
        return parts
    parts.append(f"{FLOPS}: {_lower(headline(results, flops))}")
    if known and not first:
        parts.append(f"{FLOPS}: {_lower(gate(results, flops))}")
    return parts


def _flops_first(results: Results, flops: Budget) -> str | None:
    weak = {name: gain["log"] for name, gain in flops["gains"].items() if not gain["shown"]}
    if not weak:
        return None
    parts = [f"{_state(log)} on {name} ({interval(log)} in ln loss)" for name, log in weak.items()]
    return f"{FLOPS} the gain of {results['square']['route']} is {listing(parts)}."


def _state(log: Mapping[str, Any]) -> str:
    if log["high"] is not None and log["high"] < 0:
        return "negative"
    return "not positive" if log["point"] <= 0 else "not shown to be positive"


def headline(results: Results, budget: Budget) -> str:
    """One sentence, or two: the reading of one budget's square."""
    if budget["reading"] == "withheld":
        return _withheld(results, budget)
    text = _reading(results, budget)
    if budget["pilot"]:
        few = f"{budget['n']} {_blocks(results)}, fewer than {FEWEST_SEEDS}"
        return f"Pilot, no verdict: {few}. The intervals so far would read: {text}"
    return text[0].upper() + text[1:]


def _reading(results: Results, budget: Budget) -> str:
    square, suite, effect = results["square"], results["suite"], budget["interaction"]
    base, improved, route = square["base"], square["improved"], square["route"]
    h, margin, level = hypothesis(results), f"{suite['margin']:g}", percent(1 - suite["alpha"])
    number = f"I = {interval(effect)} in ln loss, {level} interval, n = {budget['n']}"
    gain = f"the relative gain of {route}"
    scale = "; the sign of I is scale-dependent" if effect["scale_dependent"] else ""
    match budget["reading"]:
        case "qualitative":
            which = _which(results, budget)
            text = f"qualitative interaction, {h} not shown: {which}, and I is above 0 ({number})."
        case "substitution":
            which = _alone(results, budget)
            text = f"substitution or ceiling: cannot tell at this scale. {which} ({number})."
        case "negligible":
            text = (
                f"real but negligible: {gain} is larger on {improved} than on {base}, but by less "
                f"than the margin of {margin} ({number})."
            )
        case "supported":
            text = (
                f"{h} supported{_scales(effect)}: {route} gains on both backbones, and the two "
                f"improvements more than multiply ({number})."
            )
        case "reversed":
            text = (
                f"{h} refuted (reversed): {gain} is smaller on {improved} than on {base}; the two "
                f"give less together than their product ({number}{scale})."
            )
        case "equivalent":
            what = (
                "improvements" if all(g["shown"] for g in budget["gains"].values()) else "effects"
            )
            text = (
                f"{h} refuted (equivalent): the two {what} multiply, I is 0 within the margin of "
                f"{margin} ({number}{scale})."
            )
        case _:
            text = (
                f"inconclusive: the runs neither show an interaction nor exclude one of the "
                f"margin's size, {margin} ({number}{scale}).{_more(budget)}"
            )
    return " ".join([text, *_costs(results, budget)])


def _withheld(results: Results, budget: Budget) -> str:
    effect, n = budget["interaction"], budget["n"]
    of = f"{n} of {len(results['registration']['seeds'])} planned pair blocks"
    if not results["suite"]["seeded"]:
        said = "Verdict withheld: without seeds there is no interval, only point estimates."
    elif not results["suite"]["paired"]:
        said = f"Verdict withheld: the smallest cell has {n} runs, which give no interval."
    elif n == 1:
        said = f"Verdict withheld: {of} is complete, and one gives no interval."
    else:
        said = f"Verdict withheld: {of} are complete."
    if effect["point"] is not None:
        said += f" So far I = {signed(effect['point'], 5)} in ln loss."
    if effect["scale_dependent"]:
        said += " Even its sign is scale-dependent."
    return said


def _blocks(results: Results) -> str:
    return "pair blocks" if results["suite"]["paired"] else "runs in the smallest cell"


def gate(results: Results, budget: Budget) -> str:
    """Whether both gains are shown, each with its interval."""
    route, parts = results["square"]["route"], []
    for name, gain in budget["gains"].items():
        if gain["log"]["low"] is None:
            return f"The gains of {route} have no interval."
        state = "shown" if gain["shown"] else "negative" if gain["log"]["high"] < 0 else "not shown"
        parts.append(f"{state} on {name} ({interval(gain['relative'], True)})")
    return f"The gain of {route}, relative, is {listing(parts)}."


def _which(results: Results, budget: Budget) -> str:
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


def _alone(results: Results, budget: Budget) -> str:
    square, reaches = results["square"], budget["reaches_alone"]
    named = {square["improved"]: reaches["improvement"], square["route"]: reaches["route"]}
    names = [name for name, alone in named.items() if alone]
    verb = "alone reaches" if len(names) == 1 else "each alone reach"
    margin = results["suite"]["margin"]
    added = {
        square["improved"]: budget["gains"][square["improved"]]["log"],
        square["route"]: budget["improvement"]["with"],
    }
    reach = f"{listing(names)} {verb} what both together reach"
    if all(added[name]["low"] > -margin for name in names):
        return f"{reach}, within the margin of {margin:g}"
    return f"{reach}; whether more, by above the margin of {margin:g}, cannot be told"


def _costs(results: Results, budget: Budget) -> list[str]:
    """A sentence for each improvement that does better alone."""
    square, better = results["square"], budget["better_alone"]
    said = []
    for key, one, other, added in (
        ("improvement", "improved", "route", budget["gains"][square["improved"]]["log"]),
        ("route", "route", "improved", budget["improvement"]["with"]),
    ):
        if better[key]:
            lost = {"point": -added["point"], "low": -added["high"], "high": -added["low"]}
            said.append(
                f"{square[one]} alone does better than both together by "
                f"{interval(lost).replace('+', '')} in ln loss: adding {square[other]} to it costs."
            )
    return said


def _scales(effect: Mapping[str, Any]) -> str:
    if effect["scale_dependent"]:
        return " on the primary scale only (scale-dependent)"
    return ", all scales" if effect["all_scales"] else " on the primary scale"


def _more(budget: Budget) -> str:
    more = budget["further_seeds"]
    if not more:
        return ""
    seeds = "seed" if more == 1 else "seeds"
    return f" About {more} further {seeds} would show an interaction of that size with 80% chance."


def _lower(text: str) -> str:
    return text if re.match(r"H\d", text) else text[0].lower() + text[1:]
