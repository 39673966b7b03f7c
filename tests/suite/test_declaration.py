"""Suite files: what is right is typed, what is wrong is one line that names the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lrt_lab.errors import UserError
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import cells

from .conftest import Lab

ROOT = Path(__file__).resolve().parents[2]


def change(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        tree = tree[key]
    tree[last] = value


def test_a_right_file_is_typed(lab: Lab) -> None:
    suite = load(lab.suite)
    scale = suite.scale("quick")
    assert suite.name == "toy"
    assert list(suite.axes) == ["backbone", "route"]
    assert scale.seeds == (1, 2)
    assert [file.name for file in (*suite.base, *scale.config)] == ["base.yaml", "quick.yaml"]
    assert suite.statistics.alpha == 0.05
    assert (suite.twins[0].of, suite.twins[0].as_) == ({"route": "none"}, {"route": "LRT"})


def test_fragments_are_found_from_anywhere(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert load(lab.suite).base[0] == lab.home / "configs" / "base.yaml"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        pytest.param("scales/quick/seeds", [], "seeds is empty", id="no-seeds"),
        pytest.param(
            "scales/quick/seeds", [1, 2, 1], "seeds has 1 more than once", id="seed-twice"
        ),
        pytest.param("scales/quick/seeds", [1, "2"], "whole numbers", id="seed-text"),
        pytest.param("scales/quick/seeds", 3, "must be a list", id="seeds-number"),
        pytest.param(
            "scales/quick/sedes", [1], "unknown key 'sedes'. Did you mean 'seeds'", id="key"
        ),
        pytest.param("scales/quick/margin", "1e-3", "must be a number", id="margin-text"),
        pytest.param("scales/quick/margin", 0, "positive", id="margin-zero"),
        pytest.param("axis", {}, "unknown key 'axis'. Did you mean 'axes'", id="top-key"),
        pytest.param("suite", "a/b", "must be a text of letters", id="name"),
        pytest.param("prediction", " ", "write it before the runs", id="no-prediction"),
        pytest.param("axes", {}, "at least one axis", id="no-axes"),
        pytest.param("axes/route", {}, "has no values", id="no-values"),
        pytest.param("axes/route/a+b", {}, "must be a text of letters", id="value-name"),
        pytest.param("axes/route/LRT", {"seed": 3}, "seeds belong to a scale", id="axis-seed"),
        pytest.param(
            "axes/route/LRT",
            {"model.backbone": "x"},
            "set by both backbone and route",
            id="overlap",
        ),
        pytest.param(
            "twins/flops/of",
            {"rout": "none"},
            "unknown axis 'rout'. Did you mean 'route'",
            id="twin-axis",
        ),
        pytest.param(
            "twins/flops/as", {"route": "LTR"}, "unknown value of axis route 'LTR'", id="twin-value"
        ),
        pytest.param("twins/flops/as", {"route": "none"}, "changes nothing", id="twin-itself"),
        pytest.param(
            "twins/flops/match",
            "flops",
            "Known: tokens, train_flops, wall_clock, parameters, decode_flops",
            id="match",
        ),
        pytest.param("statistics/outcome", "exakt", "Did you mean 'exact'", id="outcome"),
        pytest.param("statistics/alpha", 5, "between 0 and 1", id="alpha"),
        pytest.param(
            "statistics/axes/route", {"baseline": "none"}, "'improved' is missing", id="no-improved"
        ),
        pytest.param(
            "statistics/sweep", {"axis": "route"}, "'default' is missing", id="sweep-default"
        ),
        pytest.param(
            "statistics/sweep",
            {"axis": "route", "default": "LRT"},
            "unknown axis 'route'",
            id="sweep-of-a-contrasts-axis",
        ),
        pytest.param(
            "statistics/groups",
            {"axis": "route", "values": {"LTR": {"retain": "a", "read": "b"}}},
            "unknown key 'LTR'. Did you mean 'LRT'",
            id="groups-value",
        ),
        pytest.param(
            "statistics/groups",
            {"axis": "route", "values": {"LRT": {"retain": "a block"}}},
            "at least two choices",
            id="groups-one-choice",
        ),
        pytest.param(
            "statistics/groups",
            {"axis": "route", "values": {"LRT": {"retain": "a block", "read": 3}}},
            "'read' must be a text",
            id="groups-word",
        ),
        pytest.param(
            "statistics/solid", {"over": "none"}, "they are backbone, route and loss", id="solid"
        ),
        pytest.param(
            "statistics/positions", {"name": "pairs", "unit": 0}, "unit is 0", id="positions-unit"
        ),
        pytest.param("scales", None, "must be a table", id="scales-empty"),
    ],
)
def test_what_is_wrong_is_named(lab: Lab, path: str, value: Any, words: str) -> None:
    change(lab.tree, path, value)
    with pytest.raises(UserError) as error:
        load(lab.save())
    assert words in str(error.value)
    assert str(lab.suite) in str(error.value)
    assert "\n" not in str(error.value)


def one_axis(lab: Lab, **statistics: Any) -> None:
    """Leave the suite its routes alone, with a third one."""
    del lab.tree["axes"]["backbone"], lab.tree["twins"]
    lab.tree["axes"]["route"]["T2MLR"] = {"model.route": "T2MLR"}
    ends = {"route": {"baseline": "LRT", "improved": "T2MLR"}}
    lab.save(statistics={"primary": "T2MLR", "axes": ends, **statistics})


def test_a_baseline_is_solid_over_another_value(lab: Lab) -> None:
    one_axis(lab, solid={"over": "none"})
    assert load(lab.suite).statistics.solid == {"over": "none"}


@pytest.mark.parametrize(
    ("solid", "metric", "words"),
    [
        ({"over": "LRT"}, "loss", "unknown other value of axis route 'LRT'"),
        ({"above": "none"}, "loss", "unknown key 'above'. Did you mean 'over'"),
        ({"over": "none"}, "accuracy", "here they are route and accuracy"),
    ],
    ids=["the-baseline-itself", "key", "accuracy"],
)
def test_what_is_wrong_about_solid_is_named(
    lab: Lab, solid: dict[str, str], metric: str, words: str
) -> None:
    one_axis(lab, solid=solid, metric=metric)
    with pytest.raises(UserError, match="statistics.solid") as error:
        load(lab.suite)
    assert words in str(error.value)


def test_groups_may_describe_the_baseline_too(lab: Lab) -> None:
    words = {"retain": "a block", "read": "injection"}
    described = {"none": words, "LRT": words, "T2MLR": words}
    one_axis(lab, groups={"axis": "route", "values": described})
    assert list(load(lab.suite).statistics.groups["values"]) == list(described)


def test_a_missing_file(lab: Lab) -> None:
    with pytest.raises(UserError, match="Suite file 'no.yaml' does not exist"):
        load(Path("no.yaml"))


def test_a_missing_key(lab: Lab) -> None:
    del lab.tree["hypothesis"]
    with pytest.raises(UserError, match="'hypothesis' is missing"):
        load(lab.save())


def test_a_name_given_twice(lab: Lab) -> None:
    lab.suite.write_text(lab.suite.read_text() + "\nscales: {}\n")
    with pytest.raises(UserError, match="'scales' is given more than once"):
        load(lab.suite)


def test_broken_yaml_is_one_line(lab: Lab) -> None:
    lab.suite.write_text("suite: [")
    with pytest.raises(UserError, match="is not valid YAML") as error:
        load(lab.suite)
    assert "\n" not in str(error.value)


def test_an_unknown_scale(lab: Lab) -> None:
    with pytest.raises(UserError, match="unknown scale 'quik'. Did you mean 'quick'"):
        load(lab.suite).scale("quik")


def test_a_missing_fragment(lab: Lab) -> None:
    (lab.home / "configs" / "quick.yaml").unlink()
    with pytest.raises(UserError, match=r"fragment 'configs/quick.yaml' \(scale quick\) does not"):
        load(lab.suite).scale("quick")


def test_h1_quick_is_the_two_by_two_with_twins() -> None:
    suite = load(ROOT / "experiments" / "h1.yaml")
    for scale in ("smoke", "quick"):
        assert [cell.name for cell in cells(suite, suite.scale(scale))] == [
            "PreNorm+none",
            "PreNorm+LRT",
            "AttentionResiduals+none",
            "AttentionResiduals+LRT",
            "PreNorm+none@flops",
            "AttentionResiduals+none@flops",
        ]
    assert {name: scale.margin for name, scale in suite.scales.items()} == {
        "smoke": 0.01,
        "quick": 0.01,
        "cpu": 0.01,
        "gpu": 0.002,
        "paper": 0.001,
    }
    assert len(suite.scales["quick"].seeds) == 5


@pytest.mark.parametrize("scale", ["cpu", "gpu", "paper"])
def test_h1_is_the_full_protocol_from_cpu_on(scale: str) -> None:
    suite = load(ROOT / "experiments" / "h1.yaml")
    found = {cell.name: cell for cell in cells(suite, suite.scale(scale))}
    for backbone, port in (("PreNorm", "read"), ("AttentionResiduals", "source")):
        own = {name.removeprefix(f"{backbone}+") for name in found if name.startswith(backbone)}
        # Where time on the machine is what is paid for.
        assert ("none@time" in own) == (scale != "cpu")
        assert own - {"none@time"} == {
            *("none", "none@x2", "none@x4", "none@flops", "none@flops-x2", "none@default"),
            *("LRT", "LRT@x2", "LRT@default", "LRT-jacobi", f"LRT-{port}"),
            *("LRT-zero", "LRT-shift", "LRT-self"),
        }
    assert len(suite.scale(scale).seeds) == 5
    assert found["PreNorm+none@flops-x2"].twin.as_ == "PreNorm+LRT@x2"
    # All that is compared is run.
    named = [*suite.statistics.contrasts.values(), *suite.statistics.squares.values()]
    named += [dict.fromkeys(square.values()) for square in suite.statistics.squares.values()]
    assert {cell for cells in named for cell in cells} <= set(found)


def test_the_panel_has_what_it_compares() -> None:
    suite = load(ROOT / "experiments" / "h1-swaps.yaml")
    h1 = load(ROOT / "experiments" / "h1.yaml")
    found = {cell.name for cell in cells(suite, suite.scale("cpu"))}
    named = [*suite.statistics.contrasts.values(), *suite.statistics.squares.values()]
    named += [dict.fromkeys(square.values()) for square in suite.statistics.squares.values()]
    assert {cell for cells in named for cell in cells} <= found
    # The same parts as H1's.
    assert all(options == h1.axes["route"][name] for name, options in suite.axes["route"].items())
    assert suite.axes["backbone"] == h1.axes["backbone"] and suite.tuning == h1.tuning
    # In accuracy, of which a hundredth is little at every size.
    assert suite.statistics.metric == "last_accuracy"
    assert {scale.margin for scale in suite.scales.values()} == {0.01}


@pytest.mark.parametrize("scale", ["smoke", "quick", "cpu", "gpu", "paper"])
def test_h1_has_the_fragments_of_every_scale(scale: str) -> None:
    load(ROOT / "experiments" / "h1.yaml").scale(scale)


class TestBackbones:
    """The suite of all backbones."""

    def test_every_variant_has_the_same_rates(self) -> None:
        suite = load(ROOT / "experiments" / "backbones.yaml")
        assert list(suite.axes["rate"]) == ["x0.5", "x1", "x2"]
        assert len(cells(suite, suite.scale("cpu"))) == 3 * len(suite.axes["backbone"]) == 39
        assert suite.statistics.sweep == {"axis": "rate", "default": "x1"}
        assert [len(suite.scale(name).seeds) for name in ("smoke", "cpu")] == [2, 3]

    def test_variants_are_those_of_the_config_fragments(self) -> None:
        suite = load(ROOT / "experiments" / "backbones.yaml")
        fragments = [
            yaml.safe_load(path.read_text())["model"]
            for path in (ROOT / "configs" / "backbone").glob("*.yaml")
        ]
        declared = [options["model.backbone"] for options in suite.axes["backbone"].values()]
        # The one with reallocated FFN widths varies more than the backbone.
        offered = [model["backbone"] for model in fragments if "ffn" not in model]
        assert sorted(map(str, declared)) == sorted(map(str, offered))


def test_h1_extended_describes_every_route_on_four_backbones() -> None:
    from lrt_lab.suite.expansion import cells

    suite = load(ROOT / "experiments" / "h1-extended.yaml")
    assert len(cells(suite, suite.scale("cpu"))) == 4 * 7 == 28
    for words in suite.statistics.groups["values"].values():
        assert list(words) == ["retain", "read", "change", "train"]
    assert len(suite.scale("smoke").seeds) == 1


def test_contraction_is_the_two_pass_mixes_of_the_config_fragments() -> None:
    from lrt_lab.training.config import merge_configs

    suite = load(ROOT / "experiments" / "contraction.yaml")
    names = {"triples": "full_bandwidth", "pairs": "full_bandwidth_pairs"}
    for mix, name in names.items():
        fragment = yaml.safe_load((ROOT / "configs" / "route" / f"{name}.yaml").read_text())
        assert merge_configs([], suite.axes["mix"][mix]) == fragment
    for scale in ("smoke", "cpu"):
        files = [*suite.base, *suite.scale(scale).config]
        assert merge_configs(files)["recording"]["contraction_every"]
