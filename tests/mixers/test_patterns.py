"""Mixers and patterns of them from the command line: what is built, priced and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lrt_lab.errors import UserError
from lrt_lab.training.config import merge_configs
from lrt_lab.training.run import Run

ROOT = Path(__file__).resolve().parent.parent.parent
BASE = ["--config", str(ROOT / "configs/base.yaml")]


def test_a_pattern_is_written_as_a_list() -> None:
    run = Run([*BASE, "--model.mixer", "[GatedDeltaNet, Attention]"])
    module, _ = run.cli.build()
    names = [type(mixer).__name__ for mixer in module.decoder.mixers().values()]
    assert names == ["GatedDeltaNet", "Attention"] * 2
    paths = [mixer["class_path"] for mixer in run.config["model"]["mixer"]]
    assert paths == ["lrt_lab.mixers.GatedDeltaNet", "lrt_lab.mixers.Attention"]


def test_one_mixer_is_written_as_before() -> None:
    run = Run([*BASE, "--model.mixer.heads", "8"])
    assert run.config["model"]["mixer"]["init_args"]["heads"] == 8
    run = Run([*BASE, "--model.mixer", "DeltaNet", "--model.mixer.heads", "2"])
    assert run.config["model"]["mixer"]["class_path"] == "lrt_lab.mixers.DeltaNet"


@pytest.mark.parametrize("name", ["deltanet", "gated-deltanet", "hybrid", "simplicial"])
def test_every_fragment_can_be_priced(name: str) -> None:
    files = [ROOT / "configs/base.yaml", ROOT / f"configs/mixer/{name}.yaml"]
    route = {"model.route": "LRT", "data.length": 32}
    cost = Run(merge_configs(files, route)).price()
    assert cost.passes == 2 and cost.train_flops_per_token > 6 * cost.matmul


WRONG = {
    "in a pattern": (
        ["--model.mixer", "[GatedDeltaNt, Attention]"],
        "unknown mixer 'GatedDeltaNt' (nearest: GatedDeltaNet); known: Attention, ",
    ),
    "alone": (
        ["--model.mixer", "Attn"],
        "unknown mixer 'Attn' (nearest: Attention); known: Attention, ",
    ),
    "empty": (["--model.mixer", "[]"], "model.mixer=[]: a pattern names at least one mixer"),
    "option": (
        ["--model.mixer", '[{"class_path": "DeltaNet", "init_args": {"hedas": 2}}]'],
        "DeltaNet has no option 'hedas' (nearest: heads); it takes: heads, head_dim, expand_v,"
        " conv, negative, output_norm, output_gate, chunk",
    ),
    "choice": (
        ["--model.mixer", "SimplicialAttention", "--model.mixer.position", "rope"],
        "SimplicialAttention option position: expected one of 'none', 'rotary', 'determinant',"
        " got rope",
    ),
    "triples": (
        ["--model.mixer", "SimplicialAttention", "--model.mixer.position", "determinant"],
        "mixer position=determinant with 16 features per head (width 64, 4 heads): they must be a"
        " multiple of 3",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_mixers_are_one_line(name: str) -> None:
    words, line = WRONG[name]
    with pytest.raises(UserError) as caught:
        Run([*BASE, *words]).cli.build()
    # Mixers that other tests define are known as well, so the list's end is left open.
    said = str(caught.value)
    assert said.startswith(line) if line.endswith(", ") else said == line
