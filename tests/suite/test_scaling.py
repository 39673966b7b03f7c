"""`suite plan`: what a scaling suite costs and could tell, and what it refuses."""

from __future__ import annotations

import pytest

from lrt_lab.cli import main
from lrt_lab.errors import UserError
from lrt_lab.store import read_json
from lrt_lab.suite.commands import execute_plan
from lrt_lab.suite.declaration import load
from lrt_lab.suite.scaling import Scaling, promise, squares

from .conftest import BACKEND, Lab

SECTION = {"axis": "route", "baseline": "none", "pilots": ["quick"]}


def entries(ratios=(10, 20, 40), passes=(1, 2, 3)) -> list[dict]:
    """Priced cells of a plain model and of one with several passes."""
    return [
        {
            "axes": {"route": route},
            "parameters": {"matmul": size},
            "tokens": ratio * size,
            "cost": {"passes": k},
        }
        for size in (1e6, 2e6, 4e6, 8e6)
        for ratio in ratios
        for route, ks in {"LRT": passes, "none": (1,)}.items()
        for k in ks
    ]


def test_the_section_is_read(lab: Lab) -> None:
    suite = load(lab.save(scaling=SECTION))
    assert suite.scaling == Scaling("route", "none", 0.001, ("quick",))
    assert load(lab.save(scaling=None)).scaling is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"axis": "rout"}, "unknown axis 'rout'"),
        ({"baseline": "plain"}, "unknown value 'plain'"),
        ({"sd": -1}, "scaling.sd is -1.0; it is a positive deviation"),
        ({"sdd": 1}, "sdd"),
        ({"passes": "route"}, "unknown axis 'route'"),
        ({"compare": [{"model": "LTR", "baseline": "none"}]}, "unknown value 'LTR'"),
        ({"window": [5, 2]}, "give two rising numbers"),
        ({"interaction": {"base": {"none": "none", "routed": "x"}, "improved": {}}}, "value 'x'"),
    ],
    ids=["axis", "baseline", "deviation", "key", "passes", "compare", "window", "interaction"],
)
def test_what_is_wrong_with_it_is_one_line(lab: Lab, change, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(lab.save(scaling={**SECTION, **change}))


def test_expected_errors_and_condition() -> None:
    said = promise(entries(), Scaling("route", "none", 0.001), 1)
    assert said.startswith("scaling law iso-recurrence + m_N and m_D on 48 runs")
    assert "condition number " in said
    assert all(f"{name} 0." in said for name in ("alpha", "beta", "phi", "m_N", "m_D"))
    twice = promise(entries(), Scaling("route", "none", 0.001), 2)
    assert "on 96 runs" in twice and twice != said


def test_one_ratio_cannot_be_fitted() -> None:
    with pytest.raises(UserError, match="this design cannot be fitted: condition number"):
        promise(entries(ratios=(20,)), Scaling("route", "none", 0.001), 3)


FOUR = {
    "base": {"none": "P", "routed": "P-LRT"},
    "improved": {"none": "A", "routed": "A-LRT"},
}


def square_entries(times=(1, 2, 4), seeds=(1,)) -> list[dict]:
    """Priced cells of four models, three sizes; routed ones with two and three passes."""
    return [
        {
            "axes": {"model": model, "size": str(size), "passes": str(k)},
            "parameters": {"matmul": size},
            "tokens": 10 * time * size,
            "times": time,
            "seed": seed,
            "cost": {"passes": k},
        }
        for seed in seeds
        for size in (1e6, 2e6, 4e6)
        for time in times
        for model, ks in {"A": (1,), "A-LRT": (2, 3, 4), "P": (1,), "P-LRT": (3,)}.items()
        for k in ks
    ]


def test_squares_share_everything_but_the_model() -> None:
    declared = Scaling("model", "A", 0.004, interaction=FOUR, passes="passes")
    found = square_entries(seeds=(1, 2))
    groups = squares(found, declared)
    assert len(groups) == 3 * 3 * 2
    for group in groups:
        picked = {(end, side): found[at] for end in group for side, at in group[end].items()}
        for (end, side), entry in picked.items():
            assert entry["axes"]["model"] == FOUR[end][side]
            assert entry["axes"]["passes"] == ("3" if side == "routed" else "1")
        assert len({(e["tokens"], e["seed"], e["axes"]["size"]) for e in picked.values()}) == 1


def test_a_square_that_lacks_a_cell_is_none() -> None:
    declared = Scaling("model", "A", 0.004, interaction=FOUR, passes="passes")
    found = [e for e in square_entries() if e["axes"] != square_entries()[0]["axes"]]
    assert len(squares(found, declared)) == 6
    assert squares(found, Scaling("model", "A", 0.004)) == []


def test_the_interaction_has_expected_errors_too() -> None:
    declared = Scaling("model", "A", 0.004, interaction=FOUR, passes="passes")
    law, interaction = promise(square_entries(), declared, 1).splitlines()
    assert law.startswith("scaling law iso-recurrence + m_N and m_D on 54 runs")
    # Four runs' deviation over the root of nine values.
    assert interaction.startswith("law of the interaction on 9 values of I, deviation 0.008")
    assert "middle 0.0027" in interaction and "by_size" in interaction and "by_data" in interaction


def test_an_interaction_at_one_amount_per_size_cannot_be_fitted() -> None:
    from lrt_lab.analysis.scaling import expected_interaction

    with pytest.raises(UserError, match="size and data grow together"):
        expected_interaction([1e6, 2e6, 4e6, 8e6], [1e7, 2e7, 4e7, 8e7], 0.01)


def test_a_suite_without_the_section_plans_no_law(lab: Lab) -> None:
    with pytest.raises(UserError, match="declares no 'scaling', so no law is planned"):
        execute_plan(str(lab.suite), "quick", 1, "runs", BACKEND)


def test_the_command_prices_and_then_refuses_or_promises(lab: Lab, monkeypatch, capsys) -> None:
    from lrt_lab.suite import commands

    monkeypatch.setattr(commands, "promise", lambda found, _, seeds: f"{len(found)} x {seeds}")
    lab.save(scaling=SECTION)
    assert execute_plan(str(lab.suite), "quick", 1, "runs", BACKEND) == 0
    said = capsys.readouterr().out
    assert "toy at scale quick" in said and said.rstrip().endswith("6 x 2")
    assert not lab.runs.exists()


def test_the_plan_keeps_the_section(lab: Lab, written_reports) -> None:
    lab.save(scaling=SECTION)
    assert lab.run() == 0
    kept = read_json(lab.runs / "plan.json")["scaling"]
    given = {"axis": "route", "baseline": "none", "sd": 0.001, "pilots": ["quick"]}
    rest = {"compare": [], "interaction": None, "passes": None, "window": None}
    assert kept == {**given, **rest}


def test_a_run_folder_without_the_section_has_no_law(lab: Lab, written_reports, capsys) -> None:
    assert lab.run() == 0
    capsys.readouterr()
    assert main(["scaling", "fit", str(lab.runs)]) == 2
    assert "declares no 'scaling', so there is no law" in capsys.readouterr().err
