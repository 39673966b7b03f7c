"""Cells with the dense parameters of one of them: the first FFN pays for what a cell adds.

`matched: {dense_parameters: {arm: none}}` gives every cell of the product as many dense parameters
as the one with that value has, to one column of the first block's FFN, which is narrowed (or
widened) for it. Dense are the weights of maps from features to features; queries, biases, gates,
gains and lookup tables are counted beside them. The width is solved before the runs, once for all
seeds, rates and budgets of a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lrt_lab.errors import UserError
from lrt_lab.suite.checks import require_known, section
from lrt_lab.suite.match import HIDDEN

DENSE = "dense_parameters"

# Takes merged configs and returns what `resolve` says of each, in order.
Price = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Widths:
    """What a cell changes so that it is matched.

    Attributes:
        set: the knob and its value; empty where nothing has to change.
        goal: the dense parameters that it is to have.
        column: those of one column of its first FFN.
    """

    set: dict[str, Any]
    goal: int
    column: int

    def record(self, name: str, parameters: Mapping[str, int]) -> dict[str, Any]:
        """As the plan, the run and the report know it; checks that it is met."""
        has = parameters["dense"]
        if abs(has - self.goal) >= self.column:
            raise UserError(
                f"{name}: it has {has:,} dense parameters and not {self.goal:,}, to one column of "
                f"{self.column:,}, with {HIDDEN}={self.set.get(HIDDEN)}; columns of its first FFN "
                "are no even number of parameters."
            )
        return {"match": DENSE, "goal": self.goal, "set": self.set, "ratio": has / self.goal}


def parse(tree: object, axes: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, str]:
    """The section `matched`: by axis the value that all others are matched to; empty if none is."""
    if tree is None:
        return {}
    to = section(section(tree, where, (DENSE,))[DENSE], f"{where}.{DENSE}")
    if not to:
        raise UserError(f"{where}.{DENSE}: name the cells to match, such as {{arm: none}}.")
    require_known("axis", to, axes, f"{where}.{DENSE}")
    for axis, value in to.items():
        require_known(f"value of axis {axis}", [value], axes[axis], f"{where}.{DENSE}")
    return to


def widths_of(config: Mapping[str, Any], blocks: int, where: str) -> list[int]:
    """The FFN's hidden features by block, which a config has to say."""
    ffn = config["model"].get("ffn")
    hidden = (ffn.get("init_args") or {}).get("hidden") if isinstance(ffn, Mapping) else None
    if type(hidden) is int:
        return [hidden] * blocks
    if isinstance(hidden, list):
        return hidden
    raise UserError(
        f"{where}: matched by the first FFN, so the config has to say how wide it is; give "
        f"{HIDDEN} in a fragment."
    )


def solve(
    configs: Mapping[str, dict[str, Any]], targets: Mapping[str, dict[str, Any]], ask: Price
) -> dict[str, Widths]:
    """The widths of cells.

    Args:
        configs: merged configs of the cells, by name.
        targets: those of the cells that they are matched to, likewise.
        ask: the price of configs.

    Raises:
        UserError: a cell that no width of its first FFN matches.
    """
    from lrt_lab.training.config import merge, merge_configs

    def at(config: dict[str, Any], widths: list[int]) -> dict[str, Any]:
        return merge(config, merge_configs([], {HIDDEN: widths}))

    names = list(configs)
    whole = ask([*configs.values(), *targets.values()])
    own, others = whole[: len(names)], whole[len(names) :]
    blocks = [answer["config"]["model"]["blocks"] for answer in own]
    widths = {
        name: widths_of(configs[name], count, name)
        for name, count in zip(names, blocks, strict=True)
    }
    # One column more, not less, so that a single hidden feature can be tried too.
    wider = ask([at(targets[name], [first + 1, *rest]) for name, (first, *rest) in widths.items()])
    found = {}
    for name, mine, goal, more in zip(
        names, map(dense, own), map(dense, others), map(dense, wider), strict=True
    ):
        column = more - goal
        if column <= 0:
            raise UserError(f"{name}: {HIDDEN} does not change its dense parameters.")
        first, *rest = widths[name]
        new = first - round((mine - goal) / column)
        if new < 1:
            raise UserError(
                f"{name}: it has {mine - goal:,} dense parameters more than the cell that it is "
                f"matched to, and the {first} columns of its first FFN have {first * column:,}; "
                "give it fewer, or the FFN more."
            )
        knob = {HIDDEN: [new, *rest]} if new != first else {}
        found[name] = Widths(knob, goal, column)
    return found


def dense(answer: Mapping[str, Any]) -> int:
    """The dense parameters of a priced cell."""
    return int(answer["parameters"]["dense"])
