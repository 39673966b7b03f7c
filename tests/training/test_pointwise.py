"""`docs/pointwise.md`: its closed forms are what is executed, to the last operation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import lrt_lab.backbones
import lrt_lab.routes
from lrt_lab.backbones import Backbone
from lrt_lab.decoder import Decoder
from lrt_lab.layers import RMSNorm, SquaredReLU, rms_norm
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT, T2MLR, FullBandwidth, NoRoute, Route
from lrt_lab.training.meter import prefilled
from lrt_lab.training.tally import PER_INPUT, PER_OUTPUT, Counter, Tally, Work
from tests.support.registry import exported

PAGE = (Path(__file__).parents[2] / "docs/pointwise.md").read_text()
CELLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]
PER = {"result": PER_OUTPUT, "input": PER_INPUT}
OPERATIONS = [(name.strip("`"), int(count), of) for name, count, of in CELLS if of in PER]
#: Per position, and per pass beside that.
FORMS = {
    name: (position.strip("`"), whole.strip("`"))
    for name, position, whole in CELLS
    if whole.startswith("`")
}
BACKBONES = {part.__name__: part for part in exported(lrt_lab.backbones, Backbone)}
NORMS = {"RMSNorm": lambda x: RMSNorm(x.shape[-1])(x), "RMSNorm without gain": rms_norm}

#: Width, blocks, positions, heads of keys.
SIZES = [pytest.param(16, 3, 8, 2, id="16x3"), pytest.param(24, 5, 6, 1, id="24x5")]


def closed(name: str, width: int, blocks: int, positions: int, heads: int) -> float:
    sizes = {"d": width, "L": blocks, "U": 2 * blocks, "n": 4, "f": math.factorial(4), "k": 20}
    sizes |= {"h": heads, "w": width * heads // 2}
    position, whole = (eval(form, {}, sizes) for form in FORMS[name])
    return positions * position + whole


def executed(name: str, width: int, blocks: int, positions: int, heads: int) -> float:
    with torch.device("meta"):
        if name in NORMS:
            with Counter(Tally()) as counter:
                NORMS[name](torch.empty(positions, width))
            return counter.tally.pointwise
        backbone = BACKBONES[name]() if name in BACKBONES else None
        route = None if backbone else getattr(lrt_lab.routes, name)()
        mixer = Attention(heads=2, kv_heads=heads)
        model = Decoder(width, blocks, 23, backbone, route, mixer, SquaredReLU(24))
    part = f"backbone {name}" if backbone else f"route {name}"
    return prefilled(model, positions).work[part].pointwise


def test_every_backbone_has_a_row() -> None:
    assert not BACKBONES.keys() - FORMS.keys()


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("sizes", [p.values for p in SIZES], ids=[p.id for p in SIZES])
def test_closed_forms_are_what_is_executed(name: str, sizes: tuple[int, ...]) -> None:
    assert executed(name, *sizes) == closed(name, *sizes)


@pytest.mark.parametrize("route", [LRT, T2MLR, FullBandwidth])
def test_norm_and_rotation_of_keys_count_under_their_mixer(route: type[Route]) -> None:
    def mixing(route: Route, **options) -> Work:
        with torch.device("meta"):
            mixer = Attention(heads=2, kv_heads=1, **options)
            model = Decoder(16, 3, 23, None, route, mixer, SquaredReLU(24))
        return prefilled(model, 8).work["mixer Attention"]

    assert mixing(route()) == mixing(NoRoute())
    # Three blocks, 8 positions, one head of keys and two of queries, 8 features each.
    normed = mixing(route()).pointwise - mixing(route(), qk_norm=False).pointwise
    assert normed == 3 * 8 * 3 * (3 * 8 + 2)


@pytest.mark.parametrize(("name", "count", "of"), OPERATIONS, ids=lambda value: str(value))
def test_operations_count_as_the_page_says(name: str, count: int, of: str) -> None:
    assert PER[of][getattr(torch.ops.aten, name)] == count


def test_no_operation_is_left_out() -> None:
    counted = {op.__name__.removeprefix("aten.") for op in (*PER_OUTPUT, *PER_INPUT)}
    # In place is the same operation; backward passes are not on the page.
    forward = {name for name in counted if "backward" not in name and not name.endswith("_")}
    assert forward == {name for name, _, _ in OPERATIONS}
