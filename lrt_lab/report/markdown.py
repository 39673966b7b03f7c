"""The report as Markdown: a function of `results` alone, so that no number can come from anywhere
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lrt_lab.report.numbers import (
    NONE,
    count,
    interval,
    listing,
    p,
    percent,
    plain,
    scientific,
)
from lrt_lab.report.records import BUDGETS
from lrt_lab.report.words import headline, verdict

Results = Mapping[str, Any]


def render(results: Results) -> str:
    """The whole report."""
    suite = results["suite"]
    title = suite["title"] or suite["name"]
    parts = [f"# {title}", *_verdict(results), *_registration(results), *_cells(results)]
    if results["square"]:
        parts += _effects(results)
        parts += _matched(results)
        parts += _robustness(results)
    parts += _figures(results)
    parts += _provenance(results)
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(results: Results) -> list[str]:
    return ["## Verdict", *verdict(results)]


def _registration(results: Results) -> list[str]:
    suite, found = results["suite"], results["registration"]
    lines = []
    if suite["hypothesis"]:
        lines.append(f"- Hypothesis: {suite['hypothesis']}")
    if suite["prediction"]:
        lines.append(f"- Prediction, written before the runs: {suite['prediction']}")
    lines.append(
        f"- Primary contrast: {suite['primary']} on ln loss ({suite['outcome']} evaluation); "
        f"margin {suite['margin']:g}, level {suite['alpha']:g}."
    )
    lines.append(f"- {_seeds(found)}")
    runs = found["runs"]
    lines.append(
        f"- Runs: {runs['planned']} planned, {runs['finished']} finished, {runs['diverged']} "
        f"diverged, {runs['missing']} missing."
    )
    if found["suite_hash"]:
        lines.append(
            f"- Suite file `{found['suite_file']}`, sha256 `{found['suite_hash']}`; "
            f"{_frozen(found['frozen'])}."
        )
        changed = "**The suite file changed after runs existed**: runs also carry " + listing(
            [f"`{h}`" for h in found["other_suite_hashes"]]
        )
        lines.append(
            f"- {changed}."
            if found["changed_after_runs"]
            else "- The suite file did not change after runs existed: every run carries this hash."
        )
    return ["## What was planned", "\n".join(lines), *_missing(results)]


def _seeds(found: Mapping[str, Any]) -> str:
    planned, seeds, complete = found["planned_seeds"], found["seeds"], found["complete_seeds"]
    text = (
        f"Seeds: {planned if planned is not None else 'no number of them was'} planned, "
        f"{len(seeds)} in the plan ({', '.join(map(str, seeds))})"
    )
    return (
        f"{text}, {len(complete)} complete in all four cells."
        if complete or planned is not None
        else f"{text}."
    )


def _frozen(frozen: Mapping[str, Any] | None) -> str:
    return (
        f"frozen by commit `{frozen['commit']}` of {frozen['date']}"
        if frozen
        else "not frozen by a commit"
    )


def _missing(results: Results) -> list[str]:
    missing = results["missing"]
    if not missing:
        return []
    by_cell: dict[str, list[str]] = {}
    for item in missing:
        note = "" if item["status"] == "missing" else f" ({item['status']})"
        by_cell.setdefault(item["cell"], []).append(f"{item['seed']}{note}")
    lines = [f"- {cell}: seed {', '.join(seeds)}" for cell, seeds in by_cell.items()]
    return ["**This suite is not finished.** Missing:", "\n".join(lines)]


def _cells(results: Results) -> list[str]:
    clocks = {clock["cell"]: clock for clock in results["wall_clock"]["cells"]}
    rows = []
    for cell in results["cells"]:
        loss, bpb = cell["loss"], cell["bpb"]
        rows.append(
            [
                cell["cell"],
                _mean_sd(loss),
                _mean_sd(bpb),
                str(cell["n"]),
                count(cell["parameters"]),
                count(cell["tokens"]),
                scientific(cell["train_flops"]),
                count(clocks[cell["cell"]]["tokens_per_second"]),
            ]
        )
    head = [
        "cell",
        "loss, nats/token: mean (sd)",
        "bits/byte: mean (sd)",
        "n",
        "parameters",
        "tokens",
        "train FLOPs",
        "tokens/s",
    ]
    parts = ["## Cells", _table(head, rows)]
    if results["evaluation"]:
        said = [
            f"{count(e['bytes'])} bytes ({count(e['tokens'])} tokens, sha256 "
            f"`{str(e['sha256'])[:12]}`)"
            for e in results["evaluation"]
        ]
        parts.append(
            f"Evaluated on {listing(said)}. The sd is over seeds; tokens/s is measured by the "
            "clock and differs between executions."
        )
    diverged = [c for c in results["cells"] if c["divergence"]["runs"]]
    if diverged:
        lines = [
            f"- {c['cell']}: {c['divergence']['runs']} of {c['divergence']['of']} runs diverged, "
            f"rate {plain(c['divergence']['rate'], 2)} "
            f"[{plain(c['divergence']['low'], 2)}, {plain(c['divergence']['high'], 2)}] "
            "(Clopper-Pearson)"
            for c in diverged
        ]
        parts += ["Diverged runs are results:", "\n".join(lines)]
    return parts


def _mean_sd(found: Mapping[str, Any]) -> str:
    return NONE if found["mean"] is None else f"{plain(found['mean'])} ({plain(found['sd'])})"


def _effects(results: Results) -> list[str]:
    return ["## Effects at matched tokens", *_square_tables(results, results["budgets"]["tokens"])]


def _square_tables(results: Results, budget: Mapping[str, Any]) -> list[str]:
    if not budget["n"]:
        return ["No complete pair block."]
    level, route = percent(1 - results["suite"]["alpha"]), results["square"]["route"]
    rows = []
    for name, gain in budget["gains"].items():
        log = gain["log"]
        rows.append(
            [
                f"{route} on {name}",
                interval(log),
                interval(gain["relative"], True),
                interval(gain["absolute"]),
                p(log["p"]),
                p(gain["p_holm"]),
                p(log["p_sign_flip"]),
            ]
        )
    effect = budget["interaction"]
    scales = effect["scales"]
    rows.append(
        [
            "**interaction I**",
            interval(effect),
            NONE,
            interval(scales["absolute"]),
            p(effect["p"]),
            NONE,
            p(effect["p_sign_flip"]),
        ]
    )
    head = [
        "effect",
        f"ln loss [{level}]",
        "relative",
        "nats/token",
        "p (t)",
        "p (Holm)",
        "p (sign-flip)",
    ]
    return [_table(head, rows), *_notes(results, budget)]


def _notes(results: Results, budget: Mapping[str, Any]) -> list[str]:
    effect, square = budget["interaction"], results["square"]
    lines = [
        f"- I is the gain on {square['improved']} minus the gain on {square['base']}, in ln loss, "
        f"paired by seed (n = {budget['n']}). "
        "Improvements *multiply* when I = 0 and *more than multiply* when I > 0.",
    ]
    if effect["sign_flip_floor"] is not None:
        lines.append(
            f"- The sign-flip test cannot go below p = {effect['sign_flip_floor']:g} with "
            f"{budget['n']} seeds."
        )
    lines.append(f"- {_ratio(results, budget)}")
    return ["\n".join(lines)]


def _ratio(results: Results, budget: Mapping[str, Any]) -> str:
    ratio, square = budget["ratio"], results["square"]
    name = f"Ratio of the relative gains, {square['improved']} over {square['base']}"
    if ratio["kind"] == "bounded" and ratio["low"] is not None:
        return f"{name}: {interval(ratio)} (Fieller, bounded)."
    gain = budget["gains"][square["base"]]["relative"]
    return (
        f"{name}: undefined, because the gain on {square['base']} is not distinguishable from "
        f"0 ({interval(gain, True)}; Fieller's set is {ratio['kind']}). Read I instead."
    )


def _matched(results: Results) -> list[str]:
    parts = []
    for match, budget in results["budgets"].items():
        if match != "tokens":
            cells = ", ".join(f"`{cell}`" for cell in budget["cells"])
            parts += [
                f"## Effects at {BUDGETS[match]}",
                headline(results, budget),
                f"Cells: {cells}.",
                *_square_tables(results, budget),
            ]
    return parts


def _robustness(results: Results) -> list[str]:
    lines = []
    for match, budget in results["budgets"].items():
        found = budget["sensitivity"]
        if found:
            lines.append(
                f"- {BUDGETS[match]}, diverged runs scored at their last finite loss (n = "
                f"{found['n']}): I = {interval(found['interaction'])}."
            )
    return ["## Sensitivity", "\n".join(lines)] if lines else []


def _figures(results: Results) -> list[str]:
    figures = results.get("figures", [])
    return (
        [
            "## Figures",
            *(
                f"![{figure['alt']}](figures/{figure['name']}.svg)\n\n*{figure['caption']}*"
                for figure in figures
            ),
        ]
        if figures
        else []
    )


def _provenance(results: Results) -> list[str]:
    found = results["registration"]
    if not found["commits"]:
        return []
    lines = [
        f"- commit `{c['commit']}`{' with uncommitted changes' if c['dirty'] else ''}: "
        f"{c['runs']} runs"
        for c in found["commits"]
    ]
    parts = ["## Provenance"]
    if len(found["commits"]) > 1:
        parts.append("**Mixed code versions**: the runs come from more than one state of the code.")
    parts.append("\n".join(lines))
    parts.append(
        "\n".join(
            f"- {', '.join(f'{k} {x}' for k, x in v['versions'].items())}: {v['runs']} runs"
            for v in found["versions"]
        )
    )
    parts.append("Every number of this report is in `results.json`.")
    return parts


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] + ['---:'] * (len(head) - 1))}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
