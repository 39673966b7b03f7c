"""The verdict of a design with arms, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrt_lab.analysis.verdict import FEWEST_SEEDS
from lrt_lab.report.layout import hypothesis
from lrt_lab.report.numbers import interval, listing, percent, signed

Results = Mapping[str, Any]


def verdict(results: Results) -> list[str]:
    """The reading, what the baseline is worth, the other outcomes, the ablations."""
    found = results["arms"]
    parts = [headline(results)]
    if found["solid"]:
        parts.append(worth(results))
    parts += outcomes(results)
    if found["ablations"]:
        parts.append(ablations(results))
    return [*parts, *costs(results)]


def cells(results: Results) -> list[str]:
    """The cells that the verdict is about."""
    found = results["arms"]
    solid = found["solid"]
    return [*found["primary"]["weights"], found["baseline"], *([solid["over"]] if solid else [])]


def shown(results: Results) -> list[str] | None:
    """The cells that a figure of all cells is about: no ablations; None in designs without arms."""
    found = results.get("arms")
    if not found:
        return None
    weights = found["primary"]["weights"]
    beside = [row["arm"] for row in found["beside"]]
    return list(dict.fromkeys([found["baseline"], *weights, *beside]))


def name(results: Results) -> str:
    """The primary contrast in words."""
    found = results["arms"]
    if found["arm"] is None:
        return found["primary"]["name"]
    return f"{found['arm']} over {found['reference']}"


def headline(results: Results) -> str:
    """One sentence, or two: the reading."""
    row = results["arms"]["primary"]
    if row["reading"] == "withheld":
        of = f"{row['n']} of {len(results['registration']['seeds'])} planned pair blocks"
        said = f"Verdict withheld: complete are {of}, and fewer than two give no interval."
        if row["point"] is not None:
            said += f" So far the gain of {name(results)} is {signed(row['point'], 5)} in ln loss."
        return said
    text = _reading(results)
    if row["pilot"]:
        few = f"{row['n']} pair blocks, fewer than {FEWEST_SEEDS}"
        return f"Pilot, no verdict: {few}. The intervals so far would read: {text}"
    return text[0].upper() + text[1:]


def _reading(results: Results) -> str:
    found, suite = results["arms"], results["suite"]
    row, h, margin = found["primary"], hypothesis(results), f"{suite['margin']:g}"
    level = percent(1 - suite["alpha"])
    number = f"gain {interval(row)} in ln loss, {level} interval, n = {row['n']}"
    arm, reference = found["arm"] or row["name"], found["reference"] or "its reference"
    match row["reading"]:
        case "not solid":
            solid = found["solid"]
            return (
                f"baseline not solid: the gain of {found['baseline']} over {solid['over']} is "
                f"{_state(solid)} ({interval(solid)} in ln loss), so a difference from it says "
                f"nothing about {h}. The difference itself: {arm} over {reference}, {number}."
            )
        case "supported":
            return f"{h} supported: {arm} is better than {reference} ({number})."
        case "negligible":
            return (
                f"real but negligible: {arm} is better than {reference}, but by less than the "
                f"margin of {margin} ({number})."
            )
        case "reversed":
            return f"{h} refuted (reversed): {arm} is worse than {reference} ({number})."
        case "equivalent":
            return (
                f"{h} refuted (equivalent): {arm} and {reference} differ by less than the margin "
                f"of {margin} ({number})."
            )
        case _:
            more = row["further_seeds"]
            seeds = "seed" if more == 1 else "seeds"
            asked = (
                f" About {more} further {seeds} would show a difference of that size with 80% "
                "chance."
                if more
                else ""
            )
            return (
                f"inconclusive: the runs neither show a difference between {arm} and {reference} "
                f"nor exclude one of the margin's size, {margin} ({number}).{asked}"
            )


def _state(row: Mapping[str, Any]) -> str:
    if row["shown"]:
        return "shown"
    return "negative" if row["high"] < 0 else "not shown"


def worth(results: Results) -> str:
    """Whether the baseline is solid, with its interval."""
    found = results["arms"]
    solid = found["solid"]
    gain = f"the gain of {found['baseline']} over {solid['over']}"
    if solid["low"] is None:
        return f"Whether the baseline is solid is open: {gain} has no interval."
    state = "solid" if solid["shown"] else "not solid"
    return f"The baseline is {state}: {gain} is {_state(solid)} ({interval(solid)} in ln loss)."


def outcomes(results: Results) -> list[str]:
    """What the primary contrast is on the other outcomes; nothing without them."""
    found = results["arms"]
    if found["arm"] is None:
        return []
    said = [
        f"{one['name']} {interval(row['gain'])}"
        for one in found["outcomes"][:-1]
        for row in one["rows"]
        if row["cell"] == found["arm"] and row["gain"] and row["gain"]["point"] is not None
    ]
    if not said or found["reference"] != found["baseline"]:
        return []
    return [
        f"By pass, on the curve's slice, in ln loss: {listing(said)}; the verdict is about the "
        f"{found['outcomes'][-1]['name']}."
    ]


def ablations(results: Results) -> str:
    """Which ablations are shown to differ, Holm's p over all of them."""
    rows, alpha = results["arms"]["ablations"], results["suite"]["alpha"]
    if any(row["low"] is None for row in rows):
        return "The ablations have no intervals yet: fewer than two complete pair blocks."
    claimed = [row for row in rows if row["p_holm"] is not None and row["p_holm"] <= alpha]
    parts = [
        f"{what}: {listing([_against(row) for row in claimed if (row['point'] > 0) == better])}"
        for what, better in (("shown to be better", True), ("shown to be worse", False))
        if any((row["point"] > 0) == better for row in claimed)
    ]
    rest = len(rows) - len(claimed)
    parts += [f"no difference is shown for {rest} of {len(rows)}"] if rest else []
    return f"Ablations, by Holm's p over all {len(rows)}: {'; '.join(parts)}."


def _against(row: Mapping[str, Any]) -> str:
    against = f" over {row['reference']}" if row["reference"] else ""
    return f"{row['arm'] or row['name']}{against} ({interval(row)})"


def costs(results: Results) -> list[str]:
    """What the arms of the verdict cost beside the baseline, since nothing matches their FLOPs."""
    found = results["arms"]
    known = {row["cell"]: row for row in found["costs"]}
    base = known[found["baseline"]]
    said = []
    for cell in dict.fromkeys(cells(results)):
        row = known.get(cell)
        if (
            cell == found["baseline"]
            or not row
            or not row["train_flops"]
            or not base["train_flops"]
        ):
            continue
        said.append(f"{cell} {row['train_flops'] / base['train_flops']:.2f}")
    if not said:
        return []
    return [
        f"Training FLOPs as a multiple of {found['baseline']}'s: {listing(said)}. Where that is "
        "not 1, nothing here is a statement at equal training FLOPs."
    ]
