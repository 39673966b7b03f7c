"""Matched budgets: what a twin of one cell has to change so that it costs what another cell costs.

`match` is one word. Three of them are met by the number of steps:

    tokens        as many training tokens
    train_flops   as many training FLOPs
    wall_clock    as many seconds of training, by a short calibration of both cells on this machine

and two by the width of the model, tokens and steps staying as they are:

    parameters    as many parameters
    decode_flops  as many matrix FLOPs per decoded token

The width is a knob, a dotted config key that holds a whole number. It is the feed-forward hidden
width unless the match names another: `match: {parameters: model.width}`. A feed-forward width is
solved to one column of one block, by giving the blocks' widths one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.suite.checks import require_known, section

STEPS = ("tokens", "train_flops", "wall_clock")
KNOBS = ("parameters", "decode_flops")
MATCHES = (*STEPS, *KNOBS)
HIDDEN = "model.ffn.init_args.hidden"
#: Where a knob that is not a feed-forward width is tried first.
PROBE = 64

# Takes a value of the knob and returns what `resolve` says of the config with it.
Try = Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Match:
    """What is matched, and by what knob (None: by steps)."""

    word: str
    knob: str | None = None


def parse(tree: object, where: str) -> Match:
    """A match as a suite file writes it: a word, or a word with its knob."""
    word, knob = tree, None
    if isinstance(tree, dict):
        if len(section(tree, where)) != 1:
            raise UserError(
                f"{where}: give one word with its knob, such as {{parameters: {HIDDEN}}}."
            )
        word, knob = next(iter(tree.items()))
    require_known("match", [str(word)], MATCHES, where)
    if word in STEPS:
        if knob is not None:
            raise UserError(f"{where}: {word} is met by the number of steps and takes no knob.")
        return Match(str(word))
    knob = HIDDEN if knob is None else knob
    if not isinstance(knob, str) or knob.partition(".")[0] != "model":
        raise UserError(f"{where}: {knob!r} is no knob; give a key of the model, such as {HIDDEN}.")
    return Match(str(word), knob)


def steps_for(match: Match, of: Mapping[str, Any], target: Mapping[str, Any], where: str) -> int:
    """Steps of a twin of `of` that cost what all steps of `target` cost.

    Args:
        match: tokens, train_flops or wall_clock.
        of: what one step costs: `tokens_per_step`, `train_flops_per_step`, `seconds_per_step`.
        target: the same, and its `steps`.
        where: for messages.
    """
    unit = {
        "tokens": "tokens_per_step",
        "train_flops": "train_flops_per_step",
        "wall_clock": "seconds_per_step",
    }[match.word]
    if of[unit] <= 0:
        raise UserError(f"{where}: its training step counts no {unit}, so nothing can be matched.")
    if target["steps"] < 1:
        raise UserError(
            f"{where}: the cell that it is matched to trains for {target['steps']} steps."
        )
    # A target whose total was rounded once is matched to that total.
    total = target["train_flops"] if match.word == "train_flops" else target["steps"] * target[unit]
    return max(1, round(total / of[unit]))


def amount(match: Match, answer: Mapping[str, Any]) -> float:
    """What a priced cell has of the thing that a knob matches."""
    if match.word == "parameters":
        return float(answer["parameters"]["total"])
    return float(answer["decode_flops_per_token"])


def knob_for(match: Match, blocks: int, goal: float, attempt: Try, where: str) -> Any:
    """The knob's value with which a twin has `goal` of what is matched.

    Raises:
        UserError: there is no such knob, it changes nothing, or no value of it comes close.
    """
    columns = match.knob == HIDDEN
    unit = blocks if columns else 1
    what = match.word.replace("_", " ")

    def value(total: int) -> Any:
        return spread(total, blocks) if columns else total

    def at(total: int) -> float:
        try:
            return amount(match, attempt(value(total)))
        except UserError as error:
            raise UserError(f"{where}: match {match.word} by {match.knob}: {error}") from None

    low, high = PROBE * unit, 2 * PROBE * unit
    below, above = at(low), at(high)
    slope = (above - below) / (high - low)
    if slope <= 0:
        raise UserError(f"{where}: {match.knob} does not change its {what}; name another knob.")
    total = round(low + (goal - below) / slope)
    if total < unit:
        raise UserError(
            f"{where}: {match.knob} cannot be made small enough for {goal:,.0f} {what}: "
            f"the rest of the model has {below - slope * low:,.0f}."
        )
    found = at(total)
    if abs(found - goal) > slope * (1 + 1e-9):
        raise UserError(
            f"{where}: no value of {match.knob} comes within one of {goal:,.0f} {what} "
            f"({value(total)} has {found:,.0f}); name another knob."
        )
    return value(total)


def spread(total: int, blocks: int) -> list[int]:
    """So many columns over the blocks, as evenly as can be, the deeper ones taking the rest."""
    each, rest = divmod(total, blocks)
    return [each + (block >= blocks - rest) for block in range(blocks)]
