"""Matches met by real models, to one feed-forward column, and a calibration that is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.suite.match import HIDDEN, Match, amount, knob_for
from lrt_lab.training.config import merge, merge_configs
from lrt_lab.training.run import resolve, seconds_per_step

ROOT = Path(__file__).parents[2]
BASE = [ROOT / "configs/base.yaml", ROOT / "configs/scale/smoke.yaml"]


def solve(match: Match, config: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    def attempt(value: Any) -> dict[str, Any]:
        return resolve(merge(config, merge_configs([], {match.knob: value})))

    blocks = config["model"]["blocks"]
    return attempt(knob_for(match, blocks, amount(match, resolve(target)), attempt, "twin"))


@pytest.mark.parametrize("ffn", ["SquaredReLU", "SwiGLU"])
@pytest.mark.parametrize("word", ["parameters", "decode_flops"])
def test_a_plain_twin_of_lrt(word: str, ffn: str) -> None:
    match = Match(word, HIDDEN)
    plain = merge_configs(BASE, {"model.ffn": ffn})
    routed = merge_configs(BASE, {"model.ffn": ffn, "model.route": "LRT"})
    twin, target = solve(match, plain, routed), resolve(routed)
    maps, width = {"SquaredReLU": 2, "SwiGLU": 3}[ffn], plain["model"]["width"]
    column = maps * width * (2 if word == "decode_flops" else 1)
    assert abs(amount(match, twin) - amount(match, target)) < column
    assert amount(match, resolve(plain)) < amount(match, target) - column


def test_a_misspelt_knob_is_one_line() -> None:
    with pytest.raises(UserError, match="SquaredReLU has no option 'hiden'") as error:
        config = merge_configs(BASE)
        solve(Match("parameters", "model.ffn.init_args.hiden"), config, config)
    assert "\n" not in str(error.value)


def test_a_step_is_timed() -> None:
    lrt = merge_configs(BASE, {"model.route": "LRT"})
    assert 0 < seconds_per_step(merge_configs(BASE)) < 10
    assert 0 < seconds_per_step(lrt) < 10
