"""Plans: priced by a worker, twins solved, kept while they are true, never mixed with old runs."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from lrt_lab.errors import UserError
from lrt_lab.store import read_json
from lrt_lab.suite import plan as plans
from lrt_lab.suite.declaration import load
from lrt_lab.suite.expansion import runs

from .conftest import Lab
from .fake_backend import resolve

pytestmark = pytest.mark.usefixtures("written_reports")


def read_plan(lab: Lab) -> dict[str, Any]:
    return read_json(lab.runs / "plan.json")


def calls(lab: Lab) -> int:
    path = lab.home / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_plan_says_what_the_report_needs(lab: Lab) -> None:
    assert lab.run() == 0
    plan = read_plan(lab)
    assert (plan["suite"], plan["scale"], plan["frozen"]) == ("toy", "quick", None)
    assert plan["suite_hash"] == load(lab.suite).sha256
    assert plan["statistics"] == {
        "family": [],
        "primary": "interaction",
        "outcome": "exact",
        "metric": "loss",
        "margin": 0.01,
        "planned_seeds": 2,
        "alpha": 0.05,
        "contrasts": {},
        "floor": None,
        "axes": {
            "backbone": {"baseline": "PreNorm", "improved": "AttentionResiduals"},
            "route": {"baseline": "none", "improved": "LRT"},
        },
        "sweep": None,
        "groups": None,
        "solid": None,
        "positions": None,
        "squares": {},
    }
    entry = next(one for one in plan["cells"] if one["cell"] == "PreNorm+LRT" and one["seed"] == 2)
    assert entry["axes"] == {"backbone": "PreNorm", "route": "LRT"}
    assert entry["folder"] == f"PreNorm+LRT/seed-2-{entry['hash'][:10]}"
    assert (entry["steps"], entry["tokens"], entry["train_flops"]) == (5, 50, 1050)
    assert entry["seconds"] > 0
    assert entry["twin"] is None
    assert len({one["hash"] for one in plan["cells"]}) == 12


def test_a_scale_without_some_cells_has_no_family_of_them(lab: Lab) -> None:
    lab.tree["axes"]["route"]["T2MLR"] = {"model.route": "T2MLR"}
    lab.tree["statistics"] |= {
        "family": ["interaction", "T2MLR", "T2MLR over LRT", "LRT over none"],
        "contrasts": {
            "T2MLR over LRT": {"PreNorm+LRT": 1, "PreNorm+T2MLR": -1},
            "LRT over none": {"PreNorm+none": 1, "PreNorm+LRT": -1},
        },
    }
    lab.tree["scales"]["quick"]["only"] = {"route": ["none", "LRT"]}
    suite = load(lab.save())
    families = []
    for scale in map(suite.scale, ("quick", "paper")):
        entries = [{"cell": run.cell.name} for run in runs(suite, scale)]
        families.append(plans.build(suite, scale, entries)["statistics"]["family"])
    assert families == [["interaction", "LRT over none"], list(suite.statistics.family)]


def test_twins_get_the_training_flops_of_the_cell_they_match(lab: Lab) -> None:
    lab.config("quick", {"trainer": {"max_steps": 1000}})
    suite = load(lab.suite)
    wanted = [run for run in runs(suite, suite.scale("quick")) if run.seed == 1]

    def ask(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [resolve(config) for config in configs]

    entries = {
        entry["cell"]: entry for entry in plans.price(suite, suite.scale("quick"), wanted, ask)
    }
    twin = entries["AttentionResiduals+none@flops"]
    # 130 FLOPs a step against 273.
    assert twin["steps"] == 2100
    assert twin["twin"]["ratio"] == pytest.approx(1.0, abs=1e-12)
    assert twin["train_flops"] == entries["AttentionResiduals+LRT"]["train_flops"]
    assert entries["PreNorm+none@flops"]["steps"] == 2100


def test_the_configs_stack_base_scale_axes_twin_seed(lab: Lab) -> None:
    suite = load(lab.suite)
    run = next(
        run for run in runs(suite, suite.scale("quick")) if run.cell.name == "PreNorm+none@flops"
    )
    assert plans.config_of(suite, suite.scale("quick"), run, steps=10) == {
        "model": {"width": 8, "backbone": "PreNorm", "route": "NoRoute"},
        "trainer": {"max_steps": 10},
        "seed": 1,
    }


def test_an_unchanged_plan_is_kept(lab: Lab) -> None:
    assert lab.run() == 0
    before = calls(lab)
    assert lab.run() == 0
    assert calls(lab) == before


@pytest.mark.parametrize("what", ["suite", "fragment", "code"])
def test_a_plan_is_made_anew_when_its_inputs_change(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    assert lab.run() == 0
    before = calls(lab)
    if what == "suite":
        lab.save(title="Another title")
    elif what == "fragment":
        path = lab.home / "configs" / "base.yaml"
        path.write_text("# a remark\n" + path.read_text())
    else:
        monkeypatch.setattr(plans, "_code_hash", lambda: "other")
    assert lab.run() == 0
    assert calls(lab) == before + 12
    assert read_plan(lab)["suite_hash"] == load(lab.suite).sha256


def test_a_changed_config_is_not_mixed_into_old_runs(lab: Lab) -> None:
    assert lab.run() == 0
    plan = read_plan(lab)
    lab.config("base", {"model": {"width": 16}})
    with pytest.raises(UserError) as error:
        lab.run()
    assert "holds a run of another config" in str(error.value)
    assert "(and 11 more)" in str(error.value)
    assert f"Move '{lab.runs}' away, delete it, or give the scale another name" in str(error.value)
    # The plan of the old runs stands.
    assert read_plan(lab) == plan
    lab.config("base", {"model": {"width": 8}})
    assert lab.run() == 0


def test_what_never_began_does_not_block_a_mended_config(lab: Lab) -> None:
    assert lab.run(only=["PreNorm+none"]) == 0
    for folder in (lab.runs / "PreNorm+none").iterdir():
        for name in ("DONE", "final.json", "metrics.jsonl", "checkpoints/last.ckpt"):
            (folder / name).unlink()
    lab.config("base", {"model": {"width": 16}})
    assert lab.run() == 0


def test_only_the_changed_scale_is_refused(lab: Lab) -> None:
    assert lab.run() == 0
    lab.tree["scales"]["wide"] = {"config": ["configs/wide.yaml"], "seeds": [1], "margin": 0.01}
    lab.config("wide", {"trainer": {"max_steps": 4}, "model": {"width": 16}})
    lab.save()
    assert lab.run(scale="wide") == 0
    assert lab.run() == 0


def git(lab: Lab, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", *identity, *arguments], cwd=lab.home, check=True, capture_output=True)


def test_frozen_is_the_last_commit_of_an_unchanged_file(lab: Lab) -> None:
    assert plans.frozen(lab.suite) is None
    git(lab, "init", "-q")
    assert plans.frozen(lab.suite) is None
    git(lab, "add", "experiments")
    git(lab, "commit", "-qm", "freeze")
    frozen = plans.frozen(lab.suite)
    assert frozen is not None
    assert len(frozen["commit"]) == 40
    (lab.home / "other").touch()
    git(lab, "add", "other")
    git(lab, "commit", "-qm", "later, elsewhere")
    assert plans.frozen(lab.suite) == frozen
    lab.save(title="Changed")
    assert plans.frozen(lab.suite) is None


def test_a_commit_after_the_plan_is_noticed(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.run() == 0
    assert "note: no commit holds" in capsys.readouterr().out
    git(lab, "init", "-q")
    git(lab, "add", "experiments")
    git(lab, "commit", "-qm", "freeze")
    assert lab.run() == 0
    assert "note:" not in capsys.readouterr().out
    assert read_plan(lab)["frozen"] == plans.frozen(lab.suite)


def test_an_unknown_part_is_the_users_error(lab: Lab) -> None:
    lab.tree["axes"]["backbone"]["PreNorm"]["model.backbone"] = "PerNorm"
    lab.save()
    with pytest.raises(UserError, match="unknown backbone 'PerNorm'"):
        lab.run()
    assert not lab.runs.exists()
