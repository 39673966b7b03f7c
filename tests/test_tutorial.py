"""The tutorial's code, as a reader would use it: short, right by the battery, and trainable."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lrt_lab.cli import COMMANDS, main
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import runs
from tests.properties import (
    test_causality,
    test_documents,
    test_gradients,
    test_identity,
    test_interleaved,
    test_jacobi,
    test_memory,
    test_streaming,
)
from tests.support.registry import BACKBONES, ROUTES, Case

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The page's code of one language; commands have none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [code for named, code in fenced if named == language]


ROUTE, BACKBONE = blocks("python")
NAMES = {"Trace": ROUTE, "LayerScale": BACKBONE}


@pytest.fixture(scope="module", autouse=True)
def tutorial() -> Iterator[ModuleType]:
    """The page's parts, importable as those of the package are."""
    module = ModuleType("tutorial_parts")
    sys.modules[module.__name__] = module
    module.__dict__["__name__"] = module.__name__
    for code in NAMES.values():
        exec(code, module.__dict__)
    yield module
    del sys.modules[module.__name__]


@pytest.fixture
def trace(tutorial: ModuleType) -> Case:
    return Case("Trace", tutorial.Trace)


@pytest.fixture
def layer_scale(tutorial: ModuleType) -> Case:
    return Case("LayerScale", tutorial.LayerScale)


def named(cases: list[Case], name: str) -> Case:
    return next(case for case in cases if case.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_at_most_forty_lines_of_code(name: str) -> None:
    assert len([line for line in NAMES[name].splitlines() if line.strip()]) <= 40


def battery(backbone: Case, route: Case) -> None:
    """Exact passes, decoding, causality and documents."""
    test_jacobi.test_enough_passes_reach_the_exact_recurrence(backbone, route, "full")
    test_streaming.test_chunks_equal_the_whole(backbone, route, 1, "in place")
    test_streaming.test_chunks_equal_the_whole(backbone, route, 3, "values")
    test_streaming.test_rows_can_be_reordered_and_repeated(backbone, route, "in place")
    test_streaming.test_an_earlier_cache_can_be_gone_back_to(backbone, route, 12, False)
    test_interleaved.test_as_many_subsets_as_positions_are_the_exact_recurrence(backbone, route)
    test_documents.test_packed_equals_separate_in_decoding(backbone, route, None, 5)
    test_gradients.test_exact_gradients_do_not_depend_on_the_schedule(backbone, route)


@pytest.mark.parametrize("backbone", ["PreNorm", "AttentionResiduals", "MHC"])
def test_the_route_passes_the_battery(trace: Case, backbone: str) -> None:
    case = named(BACKBONES, backbone)
    battery(case, trace)
    test_jacobi.test_each_pass_makes_one_more_position_exact(case, trace)
    test_memory.test_zero_memory_is_no_memory_where_the_traits_say_so(case, trace)
    test_memory.test_memory_matters_where_it_is_kept_and_only_there(case, trace)
    test_identity.test_every_pass_is_the_plain_model_with_the_identity_values(case, trace)
    test_gradients.test_every_parameter_learns_once_memory_enters(case, trace)


@pytest.mark.parametrize("route", ["NoRoute", "LRT", "GatherFFN"])
def test_the_backbone_passes_the_battery(layer_scale: Case, route: str) -> None:
    battery(layer_scale, named(ROUTES, route))
    test_causality.test_rows_do_not_hear_each_other(layer_scale, named(ROUTES, route))


@pytest.mark.parametrize("part", ["--model.route=Trace", "--model.backbone=LayerScale"])
def test_it_trains(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--model.width=8", "--model.blocks=1", "--data.length=16", "--data.batch_size=2"]
    tiny += ["--data.test_bytes=64", "--data.validation_bytes=32", "--evaluation.curve_bytes=32"]
    tiny += ["--trainer.max_steps=2", "--trainer.accelerator=cpu", "--recording.tensorboard=false"]
    assert main(["fit", *tiny, part, f"--folder={tmp_path / 'run'}"]) == 0
    assert "exact recurrence" in capsys.readouterr().out


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model.route=Trace", "--model.route.keep=1.5", "--trainer.max_steps=1"]
    assert main(["fit", *words]) == 2
    assert capsys.readouterr().err == (
        "lrt-lab: route.keep=1.5: give a share from 0 up to, not including, 1\n"
    )


def test_the_experiment_is_one(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "trace.yaml").write_text(text)
    suite = load(tmp_path / "trace.yaml")
    # Four cells and two twins, five seeds each.
    assert len(runs(suite, suite.scale("quick"))) == 30


def test_commands_and_links_lead_somewhere() -> None:
    words = [line.split() for code in blocks("") for line in code.splitlines()]
    assert all(word[1] in COMMANDS for word in words if word[0] == "lrt-lab")
    own = {"configs/route/trace.yaml", "experiments/trace.yaml"}
    files = {part for word in words for part in word if "/" in part} - own
    links = {link.removeprefix("../") for link in re.findall(r"\]\((.*?)\)", TEXT)}
    assert all((ROOT / path).exists() for path in files | links)
