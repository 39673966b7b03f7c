"""The command line: what it shows, and that what the user got wrong is one line and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Registers the data, which are parts too.
import lrt_lab.training.lab_cli  # noqa: F401
from lrt_lab import listing
from lrt_lab.cli import COMMANDS, main, respell
from lrt_lab.parts import PARTS, parts_of
from lrt_lab.store import RunFolder
from lrt_lab.suite.commands import run
from lrt_lab.training.config import merge_configs

ROOT = Path(__file__).parent.parent


def test_list_shows_every_registered_part_with_a_line() -> None:
    for option, base, where in listing.FAMILIES:
        shown = listing.parts(base, where)
        assert set(shown) == {
            name
            for name, part in parts_of(PARTS[option]).items()
            if part.__module__.startswith("lrt_lab")
        }
        assert all(len(line) > 10 and line.endswith((".", ")")) for line in shown.values()), shown


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--help"], id="help"),
        pytest.param(["list"], id="list"),
        pytest.param(["prepare", "--help"], id="prepare-help"),
        pytest.param(["new", "route", "--help"], id="new-route-help"),
        pytest.param(["suite", "run", "--help"], id="suite-run-help"),
        pytest.param(["scaling", "fit", "--help"], id="scaling-fit-help"),
    ],
)
def test_light_commands_import_no_torch(words: list[str]) -> None:
    code = (
        "import sys; from lrt_lab.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'lightning', 'litdata'} & set(sys.modules); "
        "sys.exit(f'{heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


WRONG = {
    "no-such-command": (["fti"], "(nearest: fit)"),
    "no-subcommand": (["suite"], "suite run, suite tune"),
    "no-such-subcommand": (["suite", "rnu"], "suite run, suite tune"),
    "unknown-part": (
        ["fit", "--model.route", "LTR"],
        "unknown route 'LTR' (nearest: LRT); known: ",
    ),
    "unknown-part-of-another-kind": (
        ["fit", "--model.route", "PreNorm"],
        "unknown route 'PreNorm'",
    ),
    "misspelt-part-option": (
        ["fit", "--model.route", "LRT", "--model.route.gama", "1"],
        "no option 'gama' (nearest: gamma); it takes: source, projections, gamma",
    ),
    "misspelt-option": (["fit", "--model.widht", "3"], "--model.widht (nearest: model.width)"),
    "half-an-option": (["fit", "--model.widt", "3"], "--model.widt (nearest: model.width)"),
    "half-a-command-option": (
        ["suite", "report", "experiments/h1.yaml", "--repor", "x"],
        "--repor (nearest: --reports)",
    ),
    "wrong-command-type": (["power", "--sd", "abc"], "option sd: expected float or null, got abc"),
    "wrong-type": (["fit", "--model.width", "x"], "option model.width: expected int, got x"),
    "wrong-choice": (
        ["fit", "--model.route", "LRT", "--model.route.projections", "none"],
        "LRT option projections: expected one of 'shared', 'layerwise', got none",
    ),
    "wrong-part-value": (
        ["fit", "--model.route=LRT", "--model.route.source=9", "--trainer.max_steps=1"],
        "route.source=9: give a number of blocks from 1 to 4, or top",
    ),
    "wrong-value-of-a-part-that-may-be-null": (
        ["fit", "--model.schedule=Jacobi", "--model.schedule.count=0", "--trainer.max_steps=1"],
        "lrt-lab: schedule.count=0: there must be at least one pass",
    ),
    "wrong-value-of-a-part-that-may-be-a-list": (
        ["fit", "--model.mixer=Attention", "--model.mixer.heads=0", "--trainer.max_steps=1"],
        "lrt-lab: mixer heads=0",
    ),
    "route-never-fed": (
        ["fit", "--model.route=LRT", "--model.schedule=SinglePass", "--trainer.max_steps=1"],
        "SinglePass never lets memory in",
    ),
    "several-devices": (
        ["fit", "--trainer.devices=2", "--trainer.accelerator=cpu", "--trainer.max_steps=1"],
        "trainer.devices=2, num_nodes=1, strategy=auto: a run trains on one device",
    ),
    "one-device-by-a-strategy-for-several": (
        ["fit", "--trainer.strategy=ddp", "--trainer.max_steps=1"],
        "trainer.devices=1, num_nodes=1, strategy=ddp: a run trains on one device",
    ),
    "no-steps": (["fit"], "trainer.max_steps=-1"),
    "missing-config": (["fit", "--config", "nope.yaml"], "nope.yaml does not exist"),
    "folder-as-config": (["fit", "--config", "configs"], "config configs is a folder"),
    "unknown-corpus": (["prepare", "--corpus", "shakspeare"], "shakespeare"),
    "misspelt-command-option": (["prepare", "--corpsu", "x"], "(nearest: --corpus)"),
    "missing-suite": (["suite", "run", "nope.yaml"], "nope.yaml"),
    "unknown-scale": (["suite", "run", "experiments/h1.yaml", "--scale", "quik"], "quick"),
}


@pytest.mark.parametrize(("words", "says"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_one_line_and_exit_code_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(words) == 2
    out, error = capsys.readouterr()
    assert says in error and error.startswith("lrt-lab: ")
    assert error.count("\n") == 1 and "Traceback" not in error
    assert not out


def test_a_config_file_that_is_no_mapping(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "bad.yaml").write_text("model: {width: [}\n")
    assert main(["fit", "--config", str(tmp_path / "bad.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_wrong_value_in_a_list_of_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attention = "{class_path: Attention, init_args: {heads: 2, kv_heads: %d}}"
    (tmp_path / "bad.yaml").write_text(f"model: {{mixer: [{attention % 1}, {attention % 5}]}}\n")
    assert main(["fit", "--config", str(tmp_path / "bad.yaml"), "--trainer.max_steps=1"]) == 2
    assert capsys.readouterr().err == (
        "lrt-lab: mixer heads=2, kv_heads=5: both positive, kv_heads dividing heads\n"
    )


def test_a_folder_that_belongs_to_another_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--model.width=8", "--model.blocks=1", "--data.length=16", "--data.batch_size=2"]
    tiny += ["--data.test_bytes=64", "--data.validation_bytes=32", "--recording.tensorboard=false"]
    tiny += [
        "--trainer.accelerator=cpu",
        "--evaluation.curve_bytes=32",
        f"--folder={tmp_path / 'run'}",
    ]
    assert main(["fit", *tiny, "--trainer.max_steps=2"]) == 0
    assert "exact recurrence" in capsys.readouterr().out
    assert main(["fit", *tiny, "--trainer.max_steps=3"]) == 2
    assert "belongs to another config" in capsys.readouterr().err


TINY = ["--model.width=8", "--model.blocks=1", "--data.length=16", "--trainer.max_steps=1"]


@pytest.mark.parametrize("below", [False, True], ids=["a-file", "below-a-file"])
def test_a_folder_that_cannot_be_made(
    below: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "taken"
    path.write_text("")
    path = path / "run" if below else path
    assert main(["fit", *TINY, f"--folder={path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lrt-lab: run folder {path} cannot be made or written to (")
    assert error.count("\n") == 1


def test_a_folder_that_another_process_works_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path).lock():
        assert main(["fit", *TINY, f"--folder={tmp_path}"]) == 2
    assert capsys.readouterr().err == (
        f"lrt-lab: {tmp_path} is locked by another process: wait for it, or choose another folder\n"
    )


def test_switches_and_dashes() -> None:
    assert respell("--dry-run", run) == "--dry_run=true"
    assert respell("--dry_run=false", run) == "--dry_run=false"
    assert respell("--jobs=2", run) == "--jobs=2"
    assert respell("experiments/h1.yaml", run) == "experiments/h1.yaml"


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, (target, _) in COMMANDS.items():
        words = [[name, sub] for sub in target] if isinstance(target, dict) else [[name]]
        for word in words:
            assert main([*word, "--help"]) == 0
            assert "usage" in capsys.readouterr().out


def test_later_files_win_and_a_class_replaces_a_class(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(
        "model: {width: 8, route: {class_path: LRT, init_args: {gamma: 0.3}}}\nseed: 1\n"
    )
    two.write_text("model: {route: NoRoute}\nseed: 2\n")
    assert merge_configs([one, two]) == {"model": {"width": 8, "route": "NoRoute"}, "seed": 2}
    assert merge_configs([two, one])["model"]["route"]["class_path"] == "LRT"
    dotted = merge_configs([one], {"model.route.init_args.gamma": 0.4, "model.blocks": 3})
    assert dotted["model"]["route"] == {"class_path": "LRT", "init_args": {"gamma": 0.4}}
    assert dotted["model"]["blocks"] == 3
