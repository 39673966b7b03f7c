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
    ("data", "Data", "data"),
)


def parts(base: str, where: str, package: Path = Path(__file__).parent) -> dict[str, str]:
    """Name -> first line of the docstring of every subclass of ``base`` that can be built."""
    root = package / where
    files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    classes = [node for file in files for node in _classes(file)]
    known, found = {base}, dict[str, str]()
    for _ in classes:
        for node in classes:
            if node.name not in known and any(
                isinstance(b, ast.Name) and b.id in known for b in node.bases
            ):
                known.add(node.name)
                if not _abstract(node):
                    found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return dict(sorted(found.items()))


def _classes(file: Path) -> Iterator[ast.ClassDef]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node


def _abstract(node: ast.ClassDef) -> bool:
    """Whether the class itself leaves something to those below it."""
    if any(isinstance(base, ast.Name) and base.id == "ABC" for base in node.bases):
        return True
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    return any(
        isinstance(d, ast.Name) and d.id == "abstractmethod"
        for method in methods
        for d in method.decorator_list
    )


def list_parts() -> None:
    """Show the parts that a config can name.

    Backbones, routes, schedules, mixers, FFNs, optimizers, data.
    """
    from lrt_lab.console import console

    out = console()
    # One line each, never wrapped, so that the list can be searched.
    for option, base, where in FAMILIES:
        for name, line in parts(base, where).items():
            place = option if option == "data" else f"model.{option}"
            out.print(f"{place:17}{name:29}{line}", markup=False, soft_wrap=True)
    out.print("Options of a part: lrt-lab fit --model.route.help LRT", markup=False)
