"""The report of a scaling law as Markdown: a function of the results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrt_lab.analysis.scaling.crossings import (
    ALWAYS,
    BEYOND,
    CROSSES,
    FURTHEST,
    NEVER,
    NEVER_IN_WINDOW,
    SEVERAL,
    WORTH,
)
from lrt_lab.report.layout import grid
from lrt_lab.report.numbers import NONE, interval, listing, p, percent, plain

Results = Mapping[str, Any]


def render(results: Results) -> str:
    """The whole report."""
    parts = [
        f"# {results['title']}",
        "## Verdict",
        *verdict(results),
        *sections(results),
        "Every number of this report is in `results.json` beside it.",
    ]
    return "\n\n".join(parts) + "\n"


def sections(results: Results) -> list[str]:
    """Everything but the verdict."""
    return [
        *_crossings(results),
        *_equal_use(results),
        *_law(results),
        *_candidates(results),
        *_interaction(results),
        *_runs(results),
        *_figures(results),
    ]


def verdict(results: Results) -> list[str]:
    """The answer in words first: a sentence for every ratio of the primary comparison in FLOPs, one
    for each further comparison and unit. A fit that is not sound answers nothing.
    """
    flags = listing(list(results["law"]["flags"])) if results["law"]["flags"] else ""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for c in results["crossings"]:
        groups.setdefault((c["unit"], c["model"], c["baseline"]), []).append(c)
    first, *others = groups.values() if groups else [[]]
    said = [sentence(c, results) for c in first]
    if not said:
        said = ["One model with one number of passes: a law, and nothing that could cross."]
    if flags:
        said, others = [f"**undefined**: the fit is not sound, {flags}."], []
        if groups:
            said[0] += " What it would answer all the same is in the table."
    if phi := results["phi"]:
        said.append(
            f"phi = {plain(phi['point'], 3)} [{plain(phi['low'], 3)}, {plain(phi['high'], 3)}] "
            "(1: a pass is worth a layer of new parameters; 0: nothing), in the law "
            f"{phi['law']}."
            + (f" That fit is not sound: {listing(list(phi['flags']))}." if phi["flags"] else "")
        )
    said += [brief(group) for group in others]
    said += [interaction_sentence(results["interaction"])] if results.get("interaction") else []
    preface = results["preface"]
    return [f"{preface} {line}" if preface else line for line in said]


def brief(group: Sequence[Mapping[str, Any]]) -> str:
    """A further comparison by its words, or the same one in another unit; numbers are in the
    table.
    """
    first = group[0]
    by_word: dict[str, list[str]] = {}
    for c in group:
        by_word.setdefault(c["word"], []).append(f"{c['ratio']:g}")
    words = [f"**{word}** at {listing(ratios)}" for word, ratios in by_word.items()]
    return (
        f"{first['model']} against {first['baseline']} in {first['unit']}, by prompt tokens per "
        f"output token: {listing(words)}; where, in which window and how far extrapolated, is in "
        "the table."
    )


def interaction_sentence(found: Mapping[str, Any]) -> str:
    """The interaction in the middle of the design, and whether it moves."""
    if "refused" in found:
        return f"No law of the interaction: {found['refused']}."
    (base, _), (improved, routed) = found["base"], found["improved"]
    return (
        f"The interaction, {routed}'s gain over {improved} less the same route's over {base}, is "
        f"{interval(found['middle'])} in ln loss at {found['size']:.3g} parameters and "
        f"{found['tokens']:.3g} tokens, the middle of the design."
    )


def sentence(c: Mapping[str, Any], results: Results) -> str:
    """One comparison: its enumerated word, then what stands behind it."""
    where = f"in the window {tokens(c['window'][0])} to {tokens(c['window'][1])} output tokens"
    about = (
        f"{c['model']} against {c['baseline']} at a loss of {c['target']:.4g}, {c['ratio']:g} "
        f"prompt tokens per output token, in {c['unit']}"
    )
    span = f"[{tokens(c['low'])}, {tokens(c['high'])}]"
    far = _far(c)
    word = c["word"]
    if word in (CROSSES, BEYOND):
        side = "beyond" if c["better"] == "above" else "below"
        head = (
            f"crosses at {tokens(c['point'])} {span}"
            if word == CROSSES
            else f"beyond data: extrapolated {c['extrapolation']:.3g} times the largest run, "
            f"crosses at {tokens(c['point'])} {span}, which is no finding"
        )
        text = f"**{head}** ({about}; the model is the cheaper one {side} it, {where}; {far})"
    elif word == ALWAYS:
        text = f"**{word}** ({about}; crossing {span}, {where}; {far})"
    elif word == NEVER_IN_WINDOW:
        saving = _saving(c)
        text = (
            f"**always worse in window: {word}** ({about}; crossing {span}, {where}; {far}; "
            f"without limit of use it would save {saving})"
        )
    elif word == NEVER:
        text = (
            f"**{word}: always worse in window** ({about}; crossing {span}, {where}; {far}; a "
            f"saving above {percent(WORTH)} is not shown even without limit of use: {_saving(c)})"
        )
    elif word == SEVERAL:
        text = f"**{word}** ({about}, {where}; {far})"
    else:
        text = (
            f"**{word}: target loss below E of a model in {percent(round(c['undefined'], 3))} of "
            f"draws** ({about}, {where})"
        )
    if word == CROSSES and c["several"] > 0.05:
        text += (
            f"; {percent(round(c['several'], 2))} of the draws cross otherwise or more than once"
        )
    return f"{text}."


def tokens(value: float | str | None) -> str:
    """`2.1e+10`; `none` for no such number of tokens."""
    if isinstance(value, str) or value is None:
        return "none" if value else NONE
    return f"{value:.2e}" if value else "0"


def _far(c: Mapping[str, Any]) -> str:
    factor = c["extrapolation"]
    if factor is None:
        return "no size reaches the target"
    if c["word"] in (CROSSES, BEYOND):
        if factor <= 1:
            return "there inside the data"
        return f"there extrapolated {factor:.3g} times the largest run, in {c['beyond']}"
    if factor <= 1:
        return "all of it inside the data"
    found = zip(c["tokens"], c["reached"], strict=True)
    near = [u for u, f in found if f is not None and f <= FURTHEST]
    upto = f"up to {tokens(max(near))}" if near else "nowhere"
    return (
        f"within {FURTHEST:g} times the largest run {upto}, at the window's end extrapolated "
        f"{factor:.3g} times, in {c['beyond']}"
    )


def _saving(c: Mapping[str, Any]) -> str:
    point, low, high = (NONE if v is None else f"{100 * v:.1f}%" for v in c["saving"])
    return f"{point} [{low}, {high}]"


def _digits(value: float | None, digits: int = 5) -> str:
    return NONE if value is None else f"{value:.{digits}g}"


def _crossings(results: Results) -> list[str]:
    if not results["crossings"]:
        return []
    rows = [
        [
            c["model"],
            c["baseline"],
            c["unit"],
            f"{c['ratio']:g}",
            c["word"],
            f"{tokens(c['point'])} [{tokens(c['low'])}, {tokens(c['high'])}]",
            _digits(c["extrapolation"], 3),
            _saving(c),
            _digits(c["moved"], 3),
        ]
        for c in results["crossings"]
    ]
    first = results["crossings"][0]
    head = [
        "model",
        "against",
        "cost in",
        "prompt per output token",
        "answer",
        "crossing, output tokens",
        "extrapolated",
        "saving without limit",
        "bytes moved",
    ]
    if all(c["moved"] is None for c in results["crossings"]):
        head, rows = head[:-1], [row[:-1] for row in rows]
    notes = [
        f"Both models reach a loss of {results['target']:.4g} nats, each at the size and the "
        "amount of fresh data that make training and use together cheapest; of several numbers "
        "of passes the cheapest counts.",
        _prefill(first),
        f"Window: {tokens(first['window'][0])} to {tokens(first['window'][1])} output tokens. "
        "Extrapolated: the largest of compute, size and data of either model there, over the "
        "largest run's; above 10 a crossing is no finding. Intervals are "
        f"{percent(results['level'])}; an end of 0 or none means that in such draws one model is "
        "always ahead.",
    ]
    return ["## Where they cross", grid(head, rows), " ".join(notes)]


def _prefill(c: Mapping[str, Any]) -> str:
    over = listing([f"{k:g}" for k in c["prefill_passes"]])
    trained = listing([f"{k:g}" for k in c["passes"]])
    source = "as measured" if c["prefill_measured"] else "at 2 N a pass"
    decode = "as measured" if c["decode_measured"] else "at 2 N, whatever the passes"
    return (
        f"Trained with {trained} passes; a prompt is read with {over} passes, {source} (an exact "
        f"prefill of a recurrence is serial); an output token is priced {decode}."
    )


def _equal_use(results: Results) -> list[str]:
    if not results["equal_use"]:
        return []
    rows = [
        [
            found["model"],
            found["baseline"],
            f"{price:.3g}",
            f"{100 * point:+.3f}% [{100 * low:+.3f}%, {100 * high:+.3f}%]",
            f"{passes:g}",
            f"{size:.2f}",
            f"{data:.2f}",
        ]
        for found in results["equal_use"]
        for price, point, low, high, passes, size, data in zip(
            *(found[k] for k in ("price", "point", "low", "high", "passes", "size", "data")),
            strict=True,
        )
    ]
    head = [
        "model",
        "against",
        "FLOPs per output token",
        "ln loss less the baseline's",
        "passes",
        "size",
        "data",
    ]
    text = (
        f"Both models cost as much per output token and {results['equal_use'][0]['training']:.3g} "
        "FLOPs to train: the baseline answers with its size. Below 0 the model is better. Size and "
        "data: the larger of the two over the largest run's; above 1 the law is extrapolated."
    )
    return ["## At equal test-time compute", grid(head, rows), text]


def _law(results: Results) -> list[str]:
    found = results["law"]
    rows = [
        [
            item["name"],
            _digits(item["point"]),
            f"{_digits(item['low'])} to {_digits(item['high'])}",
            _digits(item["se"], 3),
        ]
        for item in found["parameters"]
    ]
    how = (
        f"Huber's loss (delta {found['delta']:g}) of ln L summed over runs: "
        f"{found['objective']:.6g}; rms residual {found['rms']:.2g}; {found['starts']} starts, "
        f"{percent(round(found['agreeing'], 3))} at this optimum; condition number "
        f"{found['condition']:.3g}; correlation of ln A and alpha "
        f"{found['correlations']['A alpha']:.3f}, of ln B and beta "
        f"{found['correlations']['B beta']:.3f}: compare exponents and predictions, never A or B "
        "alone."
    )
    draws = (
        f"Intervals: {results['settings']['resamples']} resamples of runs"
        f"{', size by size' if found['stratified'] else ''}, "
        f"{percent(round(found['failed'], 4))} not converged."
    )
    parts = [
        f"## The law: {found['name']}",
        grid(["parameter", "fitted", f"{percent(results['level'])} interval", "se"], rows),
        f"{how} {draws}",
    ]
    if found["flags"]:
        parts.append(f"**Not sound**: {listing(list(found['flags']))}.")
    if found["outliers"]:
        lines = [
            f"- N {o['size']:.3g}, D {o['tokens']:.3g}, loss {o['loss']:.4f}: residual "
            f"{o['residual']:+.4f}"
            for o in found["outliers"]
        ]
        parts += ["Runs far from it, which stay in the fit:", "\n".join(lines)]
    return parts


def _candidates(results: Results) -> list[str]:
    rows = [
        [
            f"**{c['name']}**" if c["chosen"] else c["name"],
            str(c["parameters"]),
            NONE if c["held_out"] is None else f"{c['held_out']:.5f}",
            NONE if c["bias"] is None else f"{c['bias']:+.5f}",
            NONE if c["delta_aicc"] is None else f"{c['delta_aicc']:.1f}",
            c["refused"] or "; ".join(c["flags"]) or "",
        ]
        for c in results["candidates"]
    ]
    head = ["law", "parameters", "held-out rms of ln L", "bias", "dAICc", "note"]
    text = (
        f"Chosen by the error on the {results['held_out_runs']} runs of largest compute when they "
        "are held out; a law whose fit is not sound is passed over."
    )
    if results["nested_p"] and results["nested_p"][0] is not None:
        text += f" That the models share E, alpha and beta: p = {p(results['nested_p'][0])} (F)."
    return ["## Choice of law", grid(head, rows), text]


def _interaction(results: Results) -> list[str]:
    found = results.get("interaction")
    if not found or "refused" in found:
        return []
    rows = [
        [f"{n:.3g}", f"{d:.3g}", f"{d / n:.3g}", f"{value:+.4f}"]
        for n, d, value in zip(
            *(found["entries"][k] for k in ("size", "tokens", "value")), strict=True
        )
    ]
    (base, base_routed), (improved, routed) = found["base"], found["improved"]
    lines = [f"- in the middle of the design: {interval(found['middle'])}"]
    for name, what in (("by_size", "parameters"), ("by_data", "tokens")):
        if found[name] is not None:
            lines.append(f"- per e-fold of {what}: {interval(found[name])}")
    if found["vanishes"] is not None:
        lines.append(f"- with this slope it vanishes at {found['vanishes']:.3g} parameters")
    text = (
        f"I = ln loss gained by {routed} over {improved}, less that gained by {base_routed} over "
        f"{base}, at {listing([f'{k:g}' for k in found['passes']])} passes, equal size and equal "
        'tokens: 0 is "they multiply". I(N, D) = i + i_N ln(N / N0) + i_D ln(D / D0) by least '
        f"squares on {found['n']} values, Student t with {found['df']:g} degrees of freedom, N0 = "
        f"{found['size']:.3g}, D0 = {found['tokens']:.3g}."
    )
    head = ["parameters", "tokens", "tokens per parameter", "I"]
    return ["## The law of the interaction", text, "\n".join(lines), grid(head, rows)]


def _runs(results: Results) -> list[str]:
    found = results["runs"]
    low, high, sizes = found["sizes"]
    lines = [
        f"{found['fitted']} of {found['all'] + found['dropped']} runs fitted, {found['cells']} "
        f"cells; {sizes} sizes from {low:.3g} to {high:.3g} parameters, {found['tokens'][0]:.3g} "
        f"to {found['tokens'][1]:.3g} tokens, {found['ratios'][0]:.3g} to {found['ratios'][1]:.3g} "
        f"tokens per parameter, {found['compute'][0]:.3g} to {found['compute'][1]:.3g} training "
        f"FLOPs, passes {listing([f'{k:g}' for k in found['passes']])}.",
        f"Repeated data: {found['epochs']}.",
    ]
    if found["dropped"]:
        lines.append(f"The {found['dropped']} highest losses were left out, as asked.")
    return ["## Runs", "\n".join(f"- {line}" for line in lines)]


def _figures(results: Results) -> list[str]:
    return [
        "## Figures",
        *(
            f"![{f['alt']}](figures/{f['name']}.svg)\n\n*{f['caption']}*"
            for f in results["figures"]
        ),
    ]
