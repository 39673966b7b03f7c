"""`lrt-lab describe`: every config, quickly, without data and without Lightning."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lrt_lab.cli import main
from lrt_lab.training.config import merge_configs
from lrt_lab.training.describe import price
from lrt_lab.training.run import Run
from tests.support.operations import operations

ROOT = Path(__file__).parents[2]
BASE = str(ROOT / "configs/base.yaml")
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_config_is_priced_in_few_operations(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = merge_configs([BASE, ROOT / path])
    count = operations(monkeypatch)
    cost = price(config)
    # A second has some fifteen thousand, and four seconds are allowed, imports included.
    assert count() < 30_000
    assert cost.total == sum(part.total for part in cost.parts) > 0
    assert cost.train_flops_per_token == pytest.approx(sum(p.train.matrix for p in cost.parts))
    assert 0 < cost.decode_flops_per_token < cost.train_flops_per_token


@pytest.mark.parametrize("part", ["prenorm", "mhc-lite", "deltanet", "simplicial"])
def test_the_command_imports_neither_lightning_nor_compiler_nor_symbols(part: str) -> None:
    code = """
import sys
from lrt_lab.cli import process
code = process()
heavy = {"lightning", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy"}
sys.exit(code or " ".join(heavy & set(sys.modules)) or 0)
"""
    folder = "backbone" if (ROOT / f"configs/backbone/{part}.yaml").exists() else "mixer"
    configs = ["--config", BASE, "--config", str(ROOT / f"configs/{folder}/{part}.yaml")]
    # Rescans and second passes have operations of their own.
    configs += ["--config", str(ROOT / "configs/route/rounds.yaml")]
    command = [sys.executable, "-c", code, "describe", *configs]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "mixer " in done.stdout
    assert "kernels, reference: delta_rule" in done.stdout


def test_the_compiler_is_there_after_a_pricing() -> None:
    """Functions that were called without it are then left alone by it, as always."""
    code = """
import sys, torch
from lrt_lab.training.config import merge_configs
from lrt_lab.training.describe import price
from lrt_lab.training.uncompiled import NOTE, uncompiled

price(merge_configs([sys.argv[1]]))
assert "torch._dynamo" not in sys.modules
with uncompiled():
    from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_eq
    assert sym_eq((2, (3, 4)), [2, [3, 4]]) is True and sym_eq((2, 3), (2, 4)) is False
    sys.modules["torch._dynamo"].disable(price)
    setattr(price, NOTE, price)
    assert "torch._dynamo.eval_frame" not in sys.modules
    torch._dynamo.OptimizedModule
assert sys.modules["torch._dynamo"].__file__ and not hasattr(price, NOTE)
assert sys.modules["sympy"].__file__


def sized(x):
    # Symbols are known to those who have the answers from before.
    return x.sin() if guard_or_false(x.shape[0] > 2) and sym_eq(x.shape[0], 7) else x.cos()


compiled = torch.compile(sized, backend="eager", fullgraph=True, dynamic=True)
assert compiled(torch.zeros(7)).sum() == 0 and compiled(torch.zeros(3)).sum() == 3
"""
    done = subprocess.run([sys.executable, "-c", code, BASE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_says_what_a_run_records(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model.route", "LRT", "--model.route.gamma", "0.3", "--data.length=32"]
    assert main(["describe", "--config", BASE, *flags, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    recorded = Run(["--config", BASE, *flags]).price()
    assert shown == json.loads(json.dumps(recorded.as_dict()))


def test_two_configs_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    against = ROOT / "configs/route/lrt.yaml"
    assert main(["describe", "--config", BASE, "--against", str(against), "--json"]) == 0
    plain, routed = json.loads(capsys.readouterr().out)
    assert routed["passes"] == 2 * plain["passes"]
    assert main(["describe", "--config", BASE, "--against", str(against)]) == 0
    assert "against / first" in capsys.readouterr().out


def test_the_lattice_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "drawn.svg"
    route = str(ROOT / "configs/route/lrt.yaml")
    assert main(["describe", "--config", BASE, "--config", route, f"--lattice={path}"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "PreNorm, LRT, Interleaved: 2 passes"
    assert shown[3].split() == ["head", "○○○○○○○○●"]
    assert shown[6].split() == ["5", "SquaredReLU", "○○○○○●", "out:", "before", "unit", "6"]
    assert shown[9].split("  ")[-1] == "in: enter, keys_values"
    assert shown[-1] == f"wrote {path}"
    drawn = ElementTree.parse(path).getroot()
    paths = [node.get("marker-end") for node in drawn.iter() if node.get("marker-end")]
    # Three positions: nine reads each of the one stream; four mixers see two positions and one;
    # memory enters at four units of two positions.
    count = {"depth": 3 * 9, "tokens": 4 * 3, "time": 4 * 2}
    assert {name: paths.count(f"url(#{name})") for name in count} == count


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(["--config", BASE, "--model.route", "LTR"], "nearest: LRT", id="part"),
        pytest.param(["--config", BASE, "--modle.width", "8"], "nearest: model", id="section"),
        pytest.param(["--config", BASE, "--model.widht", "8"], "model.widht", id="option"),
        pytest.param(["--trainer.max_steps", "3"], "no config", id="no-config"),
        pytest.param(["--config", "no.yaml"], "does not exist", id="no-file"),
        pytest.param(["base.yaml"], "is no option", id="bare"),
        pytest.param(["--config", BASE, "--json", "--lattice"], "draws one config", id="lattice"),
        pytest.param(["--config", BASE, "--model.depth", "newest"], "leave depth at", id="depth"),
    ],
)
def test_what_is_wrong_is_one_line(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", *args]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_config_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("data: {length: 8}\n")
    assert main(["describe", "--config", str(tmp_path / "c.yaml")]) == 2
    assert "has no model section" in capsys.readouterr().err
