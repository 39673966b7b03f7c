"""The report's sections on arms: the primary contrast, ablations, outcomes and costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrt_lab.report.arm_words import name
from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import NONE, count, interval, p, percent, plain

Results = Mapping[str, Any]
Row = Mapping[str, Any]


def sections(results: Results) -> list[str]:
    """All of them; nothing in a design without arms."""
    if not results.get("arms"):
        return []
    return [*primary(results), *ablations(results), *outcomes(results), *costs(results)]


def primary(results: Results) -> list[str]:
    """The primary contrast, alone in its family, and what it rests on."""
    found, suite = results["arms"], results["suite"]
    level, row = percent(1 - suite["alpha"]), found["primary"]
    rows = [
        [f"**{name(results)}**", interval(row), p(row["p"]), p(row["p_sign_flip"]), str(row["n"])]
    ]
    if found["solid"]:
        solid = found["solid"]
        label = f"{found['baseline']} over {solid['over']} (is the baseline solid?)"
        rows.append([label, interval(solid), p(solid["p"]), NONE, str(solid["n"])])
    default = found["at_default"]
    if default:
        label = f"{name(results)}, at the default learning rate"
        rows.append([label, interval(default), p(default["p"]), NONE, str(default["n"])])
    notes = []
    if row["inner"]["low"] is not None:
        notes.append(
            f"- {percent(row['inner_level'])} interval, for equivalence: {interval(row['inner'])}; "
            f"the margin is {suite['margin']:g}."
        )
    if row["sd"]:
        text = (
            f"- sd over seeds: {row['sd']:.2g} [{row['sd_low']:.2g}, {row['sd_high']:.2g}]; with n "
            f"= {row['n']} a difference of {row['detectable']:.2g} would be seen with 80% chance."
        )
        if row["detectable"] > suite["margin"]:
            text += f" **The margin of {suite['margin']:g} is smaller than that.**"
        notes.append(text)
    if found["sensitivity"]:
        other = found["sensitivity"]
        notes.append(
            f"- With diverged runs scored at their last finite loss: {interval(other)} (n = "
            f"{other['n']}), reading {other['reading']}."
        )
    return [
        "## Primary contrast",
        "Gains in ln loss, paired by seed, Student t; above 0 the first named is better. "
        + (
            "The primary contrast is alone in its family, so its p needs no correction."
            if found["alone"]
            else "The primary contrast is one of the declared family, where its p is corrected."
        ),
        grid(["contrast", f"ln loss [{level}]", "p (t)", "p (sign-flip)", "n"], rows),
        "\n".join(notes),
    ]


def ablations(results: Results) -> list[str]:
    """Paired differences of every ablation, by what it changes; other arms beside them."""
    found = results["arms"]
    if not found["ablations"]:
        return []
    level, groups = percent(1 - results["suite"]["alpha"]), results["groups"]
    order = [*(groups["choices"] if groups else []), *(r["group"] for r in found["ablations"])]
    rows = []
    for group in dict.fromkeys(order):
        members = [row for row in found["ablations"] if row["group"] == group]
        rows += [[f"**{group or 'ablations'}**", *[""] * 7]] if members else []
        rows += [_ablation(row) for row in members]
    if found["beside"]:
        rows.append(["**beside them**, uncorrected", *[""] * 7])
    for row in found["beside"]:
        cells = [found["baseline"], "", "", interval(row), NONE, p(row["p"]), NONE]
        rows.append([row["arm"], *cells])
    gain = f"ln loss [{level}]"
    head = ["arm", "against", "from", "to", gain, "nats/token", "p (t)", "p (Holm)"]
    return [
        "## Ablations",
        "Differences in ln loss, paired by seed, above 0 where the arm is better than what it is "
        f"compared with. Holm's p is over these {len(found['ablations'])}, and is for claims; the "
        "primary contrast is not among them.",
        grid(head, rows),
    ]


def _ablation(row: Row) -> list[str]:
    several = len(row["changes"]) > 1
    told = [
        [f"{choice}: {words}" if several else words for words in apart(*both)]
        for choice, both in row["changes"].items()
    ]
    before, after = ("; ".join(side) for side in zip(*told, strict=True)) if told else ("", "")
    return [
        row["arm"] or row["label"],
        row["reference"] or NONE,
        before,
        after,
        interval(row),
        interval(row["absolute"]),
        p(row["p"]),
        p(row["p_holm"]),
    ]


def apart(one: str, other: str) -> tuple[str, str]:
    """Two descriptions without the parts between commas that they share, if both say more."""
    parts = [text.split(", ") for text in (one, other)]
    own = [[part for part in parts[i] if part not in parts[1 - i]] for i in (0, 1)]
    return (", ".join(own[0]), ", ".join(own[1])) if all(own) else (one, other)


def outcomes(results: Results) -> list[str]:
    """Every arm on every outcome, with its gain over the baseline."""
    found, level = results["arms"], percent(1 - results["suite"]["alpha"])
    ways = found["outcomes"]
    head = ["arm"]
    for one in ways:
        head += [f"{one['name']}, bits/byte", f"gain [{level}]"]
    rows = []
    for place, first in enumerate(ways[0]["rows"]):
        cells = [first["cell"]]
        for one in ways:
            row = one["rows"][place]
            gain = row["gain"]
            cells += [plain(row["bpb"]["mean"]), interval(gain) if gain else NONE]
        rows.append(cells)
    sizes = sorted({item["bytes"] for item in results["passes"] if item["bytes"]})
    slices = f" of {count(sizes[0])} bytes" if len(sizes) == 1 else ""
    about = (
        f"Gains over {found['baseline']} in ln loss, paired by seed, without correction. Single "
        f"passes are scored on the curve's slice{slices}, the {ways[-1]['name']} on the whole test "
        "slice. Where nothing travels between positions all passes are alike."
        if len(ways) > 1
        else f"Gains over {found['baseline']} in ln loss, paired by seed, without correction."
    )
    return ["## Outcomes", about, grid(head, rows)]


def costs(results: Results) -> list[str]:
    """Dense parameters and FLOPs of every arm beside the baseline's."""
    found = results["arms"]
    name = found["baseline"]
    base = next(row for row in found["costs"] if row["cell"] == name)
    rows = []
    for row in found["costs"]:
        both = None not in (row["dense"], base["dense"])
        rows.append(
            [
                row["cell"],
                f"{row['dense'] - base['dense']:+,.0f}" if both else NONE,
                _ratio(row["train_flops"], base["train_flops"]),
                count(row["decode_flops_per_token"]),
                _ratio(row["decode_flops_per_token"], base["decode_flops_per_token"]),
            ]
        )
    head = ["arm", f"dense, less {name}'s", f"train FLOPs, x {name}"]
    return [
        "## Costs",
        f"Beside {name}'s; the table of cells has the numbers themselves. Dense are the weights of "
        "maps from features to features, the head's among them: what is matched where parameters "
        "are.",
        grid([*head, "decode FLOPs/token", f"x {name}"], rows),
    ]


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f}" if value and base else NONE
