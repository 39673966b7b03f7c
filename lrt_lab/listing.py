"""`lrt-lab list`.

The parts that a config can name, one line each. Reads the sources, so it needs no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

#: Option, base class, and where its subclasses live.
FAMILIES = (
    ("backbone", "Backbone", "backbones"),
    ("route", "Route", "routes"),
    ("schedule", "Schedule", "schedules"),
    ("mixer", "Mixer", "mixers"),
    ("ffn", "FeedForward", "layers/ffn.py"),
    ("optimizer", "Optimization", "training/optimizer.py"),
)


def parts(base: str, where: str, package: Path = Path(__file__).parent) -> dict[str, str]:
    """Name -> first line of the docstring of every subclass of ``base`` defined there."""
    root = package / where
    files = sorted(root.glob("*.py")) if root.is_dir() else [root]
    classes = [node for file in files for node in _classes(file)]
    known, found = {base}, dict[str, str]()
    for _ in classes:
        for node in classes:
            if node.name not in known and any(
                isinstance(b, ast.Name) and b.id in known for b in node.bases
            ):
                known.add(node.name)
                found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return dict(sorted(found.items()))


def _classes(file: Path) -> Iterator[ast.ClassDef]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node


def list_parts() -> None:
    """Show the parts that a config can name.

    Backbones, routes, schedules, mixers, FFNs, optimizers.
    """
    from lrt_lab.console import console

    out = console()
    # One line each, never wrapped, so that the list can be searched.
    for option, base, where in FAMILIES:
        for name, line in parts(base, where).items():
            out.print(f"model.{option:11}{name:29}{line}", markup=False, soft_wrap=True)
    out.print("Options of a part: lrt-lab fit --model.route.help LRT", markup=False)
