"""A small suite in a temporary folder, run by a backend that needs no torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lrt_lab.suite.commands import execute

BACKEND = "tests.suite.fake_backend"


def tree() -> dict[str, Any]:
    """The small suite as YAML says it; tests change their own copy."""
    return {
        "suite": "toy",
        "title": "A toy",
        "hypothesis": "It runs.",
        "prediction": "It will.",
        "base": ["configs/base.yaml"],
        "axes": {
            "backbone": {
                "PreNorm": {"model.backbone": "PreNorm"},
                "AttentionResiduals": {"model.backbone": "AttentionResiduals"},
            },
            "route": {"none": {"model.route": "NoRoute"}, "LRT": {"model.route": "LRT"}},
        },
        "twins": {
            "flops": {"of": {"route": "none"}, "as": {"route": "LRT"}, "match": "train_flops"}
        },
        "statistics": {
            "primary": "interaction",
            "axes": {
                "backbone": {"baseline": "PreNorm", "improved": "AttentionResiduals"},
                "route": {"baseline": "none", "improved": "LRT"},
            },
        },
        "scales": {
            "quick": {"config": ["configs/quick.yaml"], "seeds": [1, 2], "margin": 0.01},
            "paper": {"config": ["configs/paper.yaml"], "seeds": [1], "margin": 0.001},
        },
    }


class Lab:
    """A folder with a suite file and its configs, and the commands on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.suite = home / "experiments" / "toy.yaml"
        self.runs = home / "runs" / "toy" / "quick"
        self.tree = tree()
        self.config("base", {"model": {"width": 8}})
        self.config("quick", {"trainer": {"max_steps": 5}})
        self.config("paper", {"trainer": {"max_steps": 10**9}})
        self.save()

    def config(self, name: str, content: dict[str, Any]) -> None:
        path = self.home / "configs" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content))

    def save(self, **changes: Any) -> Path:
        """Write the suite file, with top-level keys changed."""
        self.tree.update(changes)
        self.suite.parent.mkdir(exist_ok=True)
        self.suite.write_text(yaml.safe_dump(self.tree, sort_keys=False))
        return self.suite

    def mood(self, mood: str) -> None:
        """Make the PreNorm+LRT and AttentionResiduals+LRT cells misbehave."""
        self.tree["axes"]["route"]["LRT"]["model.mood"] = mood
        self.save()

    def run(self, scale: str = "quick", jobs: int = 2, **options: Any) -> int:
        return execute(
            str(self.suite),
            scale,
            jobs,
            runs=str(self.home / "runs"),
            reports=str(self.home / "reports"),
            backend=BACKEND,
            **options,
        )

    def start(self, jobs: int = 2, dry_run: bool = False) -> subprocess.Popen[str]:
        """The suite in a process of its own, which a test can kill."""
        code = (
            "import sys, types; "
            "sys.modules['lrt_lab.report.suite_report'] = "
            "types.SimpleNamespace(write=lambda plan, runs, out: out); "
            "from lrt_lab.suite.commands import execute; "
            f"sys.exit(execute({str(self.suite)!r}, 'quick', {jobs}, {dry_run}, runs='runs', "
            f"reports='reports', backend={BACKEND!r}))"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(tmp_path)
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'kernels'}")
    monkeypatch.setenv("FAKE_HEAL", str(tmp_path / "heal"))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Lab(tmp_path)


@pytest.fixture
def written_reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path]]:
    """Replaces the report by a note of what it was asked for: (run folder, report folder)."""
    asked: list[tuple[Path, Path]] = []

    def write(plan: dict[str, Any], runs_dir: Path, out_dir: Path) -> Path:
        asked.append((runs_dir, out_dir))
        return out_dir / "report.md"

    replace_report(monkeypatch, write)
    return asked


def replace_report(monkeypatch: pytest.MonkeyPatch, write: Callable[..., Path]) -> None:
    """Put `write` where the suite looks for the report."""
    import types

    stub = types.ModuleType("lrt_lab.report.suite_report")
    stub.write = write  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lrt_lab.report.suite_report", stub)
    import lrt_lab.report

    monkeypatch.setattr(lrt_lab.report, "suite_report", stub, raising=False)
