"""`lrt-lab new`: what it writes works as it stands, and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lrt_lab import scaffold
from lrt_lab.cli import main
from lrt_lab.training.config import merge_configs

ROOT = Path(__file__).resolve().parent.parent
#: What every part is held to: exact passes, streaming, causality, documents.
BATTERY = ("jacobi", "streaming", "causality", "identity", "memory")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a new part is written into, and of the battery."""
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("lrt_lab", "kernels/lrt_kernels", "configs", "tests/support"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    for part in ("pyproject.toml", *(f"tests/properties/test_{name}.py" for name in BATTERY)):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    return tmp_path


def in_checkout(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (checkout, checkout / "kernels")))
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("kind", "battery"),
    [("route", "Fresh and PreNorm"), ("backbone", "Fresh-LRT or Fresh-NoRoute or Fresh-T2MLR")],
)
def test_a_skeleton_passes_the_battery(kind: str, battery: str, checkout: Path) -> None:
    assert main(["new", kind, "Fresh", "--folder", str(checkout)]) == 0
    done = in_checkout(
        checkout, "pytest", "-q", "-p", "no:cacheprovider", "tests/properties", "-k", battery
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 20, done.stdout
    for words in (("check", "."), ("format", "--check", ".")):
        done = in_checkout(checkout, "ruff", *words)
        assert done.returncode == 0, done.stdout
    config = checkout / "configs" / kind / "fresh.yaml"
    assert merge_configs([config])["model"][kind] == "Fresh"
    assert config.read_text().startswith("# Fresh")


def test_it_says_what_it_wrote(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "route", "GatherGRU", f"--folder={checkout}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == [
        "lrt_lab/routes/gather_gru.py",
        "configs/route/gather_gru.yaml",
        "lrt_lab/routes/__init__.py",
    ]
    assert "--config configs/route/gather_gru.yaml" in lines[3]


def test_exports_stay_in_order(checkout: Path) -> None:
    for name in ("ZLast", "AFirst", "XYZ"):
        assert main(["new", "backbone", name, "--folder", str(checkout)]) == 0
    assert list(scaffold.exported(checkout / "lrt_lab/backbones/__init__.py"))[:3] == [
        "MHC",
        "XYZ",
        "AFirst",
    ]
    assert in_checkout(checkout, "ruff", "check", ".").returncode == 0


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("GatherFFN", "gather_ffn"),
        ("T2MLR", "t2mlr"),
        ("MHCLite", "mhc_lite"),
        ("FullBandwidth", "full_bandwidth"),
        ("PairwiseAttentionResiduals", "pairwise_attention_residuals"),
    ],
)
def test_files_are_named_as_the_ones_that_are_there(name: str, file: str) -> None:
    assert scaffold.snake(name) == file


WRONG = {
    "small": ("lower", "start with a capital"),
    "dash": ("Two-Step", "start with a capital"),
    "path": ("../Evil", "start with a capital"),
    "long": ("A" * 41, "up to 40 letters"),
    "a part": ("MHC", "the name is taken"),
    "a part of another kind": ("Jacobi", "the name is taken"),
    "a base": ("Backbone", "the name is taken"),
    "an import": ("Tensor", "the name is taken"),
    "a word of the language": ("None", "the name is taken"),
    "a file": ("Lrt", "lrt_lab/routes/lrt.py exists"),
}


@pytest.mark.parametrize(("name", "says"), WRONG.values(), ids=WRONG.keys())
def test_refused_names(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written: the checkout is this one."""
    before = (ROOT / "lrt_lab/routes/__init__.py").read_text()
    assert main(["new", "route", name, "--folder", str(ROOT)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lrt-lab: new route ") and says in error
    assert error.count("\n") == 1
    assert (ROOT / "lrt_lab/routes/__init__.py").read_text() == before


def test_a_folder_that_is_no_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "route", "Fresh", "--folder", str(tmp_path)]) == 2
    assert "not a checkout of lrt-lab" in capsys.readouterr().err


def test_an_installed_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaffold, "__file__", str(tmp_path / "lrt_lab" / "scaffold.py"))
    assert main(["new", "route", "Fresh"]) == 2
    error = capsys.readouterr().err
    assert "is an installed copy" in error and "--folder" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
