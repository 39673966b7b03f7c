"""The report as Markdown: a function of `results` alone, so that no number can come from anywhere
else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrt_lab.report import accuracy, arm_tables, arm_words, carried, contraction
from lrt_lab.report import comparison_tables as comparisons
from lrt_lab.report import effect_tables as effects
from lrt_lab.report import protocol_tables as protocol
from lrt_lab.report.figures import drawn
from lrt_lab.report.groups import groups
from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import NONE, count, listing, plain, scientific
from lrt_lab.report.scaling import suite as scaling
from lrt_lab.report.sweep_table import sweep
from lrt_lab.report.words import verdict

Results = Mapping[str, Any]


def render(results: Results) -> str:
    """The whole report."""
    suite = results["suite"]
    parts = [f"# {suite['title'] or suite['name']}", "## Verdict", *verdict(results)]
    parts += [*_planned(results), *_cells(results)]
    if results["square"]:
        parts += effects.squares(results)
    parts += [*arm_tables.sections(results), *protocol.rates(results)]
    if results["square"]:
        parts += [
            *protocol.squares(results),
            *protocol.ladder(results),
            *protocol.exposure(results),
        ]
    parts += [
        *scaling.sections(results),
        *protocol.ports(results),
        *carried.section(results),
        *sweep(results),
        *groups(results),
        *accuracy.section(results),
        *comparisons.multipliers(results),
        *comparisons.families(results),
        *comparisons.sensitivity(results),
        *contraction.section(results),
        *_figures(results),
        *_provenance(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _planned(results: Results) -> list[str]:
    suite, found = results["suite"], results["registration"]
    lines = []
    if suite["hypothesis"]:
        lines.append(f"Hypothesis: {suite['hypothesis']}")
    if suite["prediction"]:
        lines.append(f"Prediction, written before the runs: {suite['prediction']}")
    if results["square"]:
        lines.append(
            f"Primary contrast: {suite['primary']} on ln loss ({suite['outcome']} evaluation); "
            "margin "
            f"{suite['margin']:g} in ln loss, level {suite['alpha']:g}."
        )
    elif results.get("arms"):
        alone = ", alone in its family" if results["arms"]["alone"] else ""
        lines.append(
            f"Primary contrast: {arm_words.name(results)} on ln loss ({suite['outcome']} "
            f"evaluation){alone}; margin {suite['margin']:g} in ln loss, level "
            f"{suite['alpha']:g}."
        )
    elif results["accuracy"] and results["accuracy"]["metric"]:
        what = accuracy.METRICS[results["accuracy"]["metric"]]
        lines.append(
            f"Primary contrast: {suite['primary']} on {what} ({suite['outcome']} evaluation), as "
            f"plain differences; level {suite['alpha']:g}."
        )
    lines.append(_seeds(results))
    runs = found["runs"]
    lines.append(
        f"Runs: {runs['planned']} planned, {runs['finished']} finished, {runs['diverged']} "
        "diverged, "
        f"{runs['missing']} missing."
    )
    if found["suite_hash"]:
        lines.append(
            f"Suite file `{found['suite_file']}`, sha256 `{found['suite_hash']}`; "
            f"{_frozen(found['frozen'])}."
        )
        lines.append(_changed(found))
    if found["strays"]:
        names = listing([f"`{name}`" for name in found["strays"]])
        lines.append(f"Finished runs of other configurations beside these, not used: {names}.")
    return ["## Planned and run", "\n".join(f"- {line}" for line in lines), *_missing(found)]


def _seeds(results: Results) -> str:
    found = results["registration"]
    if not results["suite"]["seeded"]:
        return "Seeds: none, one value a cell."
    planned = found["planned_seeds"]
    if not results["suite"]["paired"]:
        counts = sorted({cell["n"] for cell in results["cells"]})
        span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"Seeds: unpaired, {span} runs per cell; {planned or 'no number'} planned."
    parts = [f"{planned} planned" if planned is not None else "no number was planned"]
    parts.append(f"{len(found['seeds'])} here ({', '.join(map(str, found['seeds']))})")
    if results["suite"]["paired"]:
        where = "all four cells of the primary contrast" if results["square"] else "all cells"
        parts.append(f"{len(found['complete_seeds'])} complete in {where}")
    text = f"Seeds: {', '.join(parts)}."
    if planned is not None and len(found["seeds"]) != planned:
        text += " **Planned and run differ.**"
    return text


def _changed(found: Mapping[str, Any]) -> str:
    now = found.get("suite_hash_now")
    if now:
        return (
            f"**The suite file changed after these runs were planned**: its sha256 is now `{now}`; "
            "this report is of the plan that they were started from." + _carried(found)
        )
    if not found["changed_after_runs"]:
        return (
            "The suite file did not change after runs existed: every finished run carries "
            "this hash."
        )
    return f"**The suite file changed after runs existed**:{_carried(found)}"


def _carried(found: Mapping[str, Any]) -> str:
    others = listing([f"`{digest}`" for digest in found["other_suite_hashes"]])
    return f" runs also carry {others}." if others else ""


def _frozen(frozen: Mapping[str, Any] | None) -> str:
    return (
        f"frozen by commit `{frozen['commit']}` of {frozen['date']}"
        if frozen
        else "not frozen by a commit"
    )


def _missing(found: Mapping[str, Any]) -> list[str]:
    by_cell: dict[str, list[str]] = {}
    for item in found["missing"]:
        note = "" if item["status"] == "missing" else f" ({item['status']})"
        by_cell.setdefault(item["cell"], []).append(f"{item['seed']}{note}")
    if not by_cell:
        return []
    lines = [f"- {cell}: seed {', '.join(seeds)}" for cell, seeds in by_cell.items()]
    return [
        "**Not finished.** Missing runs, none of which enters any number below:",
        "\n".join(lines),
    ]


def _cells(results: Results) -> list[str]:
    clocks = {clock["cell"]: clock for clock in results["wall_clock"]["cells"]}
    columns = {
        "loss, nats/token: mean (sd)": lambda c: _mean_sd(c["loss"]),
        "bits/byte: mean (sd)": lambda c: _mean_sd(c["bpb"]),
        "n": lambda c: str(c["n"]),
        "parameters": lambda c: count(c["parameters"]),
        "dense": lambda c: count(c.get("kinds", {}).get("dense")),
        "queries, biases, gains": lambda c: count(c.get("kinds", {}).get("queries")),
        "lookup tables": lambda c: count(c.get("kinds", {}).get("tables")),
        "tokens": lambda c: count(c["tokens"]),
        "train FLOPs": lambda c: scientific(c["train_flops"]),
        "tokens/s": lambda c: count(clocks[c["cell"]]["tokens_per_second"]),
        "train seconds": lambda c: plain(clocks[c["cell"]]["train_seconds"], 1),
    }
    texts = {name: [column(cell) for cell in results["cells"]] for name, column in columns.items()}
    shown = {name: column for name, column in texts.items() if any(text != NONE for text in column)}
    rows = [
        [cell["cell"], *(column[i] for column in shown.values())]
        for i, cell in enumerate(results["cells"])
    ]
    parts = ["## Cells", grid(["cell", *shown], rows), _notes(results)]
    diverged = [c for c in results["cells"] if c["divergence"]["runs"]]
    if diverged:
        lines = [_divergence(cell) for cell in diverged]
        parts += ["Diverged runs are results, not failures:", "\n".join(lines)]
    return parts


def _notes(results: Results) -> str:
    said = []
    if results["evaluation"]:
        slices = [
            f"{_size(e)} ({count(e['tokens'])} tokens, sha256 `{str(e['sha256'])[:12]}`)"
            for e in results["evaluation"]
        ]
        whose = "every cell" if len(slices) == 1 else "every cell of a task"
        said.append(f"Evaluated on {listing(slices)}, the same for {whose}.")
    to = results["suite"].get("matched")
    if to:
        said.append(
            f"All cells have the dense parameters of {' + '.join(to.values())}, to one column of "
            "the first FFN, which pays for what they add."
        )
    said.append("The sd is over seeds.")
    noise = results["noise"]
    if noise["median"]:
        said.append(
            f"Over {noise['groups']} cells its median is {noise['median']:.2g} nats, "
            f"{100 * noise['cv']:.2g}% of the loss."
        )
    if any(clock["tokens_per_second"] for clock in results["wall_clock"]["cells"]):
        said.append("Tokens/s and seconds are a clock's and differ between executions.")
    return " ".join(said)


def _size(found: Mapping[str, Any]) -> str:
    return f"{count(found['rows'])} rows" if found["rows"] else f"{count(found['bytes'])} bytes"


def _divergence(cell: Mapping[str, Any]) -> str:
    found = cell["divergence"]
    return (
        f"- {cell['cell']}: {found['runs']} of {found['of']} runs diverged, rate "
        f"{plain(found['rate'], 2)} "
        f"[{plain(found['low'], 2)}, {plain(found['high'], 2)}] (Clopper-Pearson)"
    )


def _mean_sd(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return NONE
    return (
        f"{plain(found['mean'])} ({plain(found['sd'])})"
        if found["sd"] is not None
        else plain(found["mean"])
    )


def _figures(results: Results) -> list[str]:
    found = [f"![{f['alt']}](figures/{f['name']}.svg)\n\n*{f['caption']}*" for f in drawn(results)]
    return ["## Figures", *found] if found else []


def _provenance(results: Results) -> list[str]:
    found = results["registration"]
    parts = ["## Provenance"]
    if len(found["commits"]) > 1:
        parts.append(
            "**Mixed code versions**: these runs come from more than one state of the code."
        )
    # Which task is which is for the suite's axes to say.
    if sum("task" not in data for data in found["data"]) > 1:
        parts.append("**Mixed data**: these runs did not all see the same corpus.")
    lines = [
        f"- commit `{c['commit']}`{' with uncommitted changes' if c['dirty'] else ''}: "
        f"{c['runs']} runs"
        for c in found["commits"]
    ]
    for item in found["versions"]:
        names = ", ".join(f"{name} {version}" for name, version in item["versions"].items())
        lines.append(f"- {names}: {item['runs']} runs")
    for machine in found["machines"]:
        lines.append(f"- machine: {', '.join(f'{key} {value}' for key, value in machine.items())}")
    for data in found["data"]:
        lines.append(f"- data: {', '.join(f'{key} `{value}`' for key, value in data.items())}")
    lines += _overhead(results["wall_clock"].get("overhead"))
    if lines:
        parts.append("\n".join(lines))
    return [*parts, "Every number of this report is in `results.json` beside it."]


def _overhead(cost: Mapping[str, Any] | None) -> list[str]:
    if cost is None:
        return []
    return [
        f"- suite overhead: {cost['ratio']:.1%} of training = "
        f"({plain(cost['slot_seconds'], 0)} s of jobs x wall - "
        f"{plain(cost['training_seconds'], 0)} s training - "
        f"{plain(cost['evaluation_seconds'], 0)} s evaluation) / training; planning counts, "
        f"writing this report does not; sessions: {cost['sessions']}"
    ]
