"""`lrt-lab new`: the one file, the import line and the config that a new part consists of.

Reads and writes sources, so it needs no torch. What it writes passes the property battery as it
stands: a skeleton is a working part, and every edit starts from one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lrt_lab.errors import UserError
from lrt_lab.listing import FAMILIES, parts
from lrt_lab.store import write_text

ROUTE = '''"""NAME: one line that says where it comes from.

One vector z_t leaves each position and enters the next one below its first unit:

    z_t = N(h_t^L),    x_t' = x_t + W z_{t-1}
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, constant, parameter
from lrt_lab.routes.base import Route, Traits


class NAME(Route):
    """NAME: the top state is added to the next position's stream.

    At step 0 W is zero: every pass is the model without a route.
    """

    # Which values of which parameters switch the route off: the battery tries them.
    traits = Traits(identity=(("weight", 0.0),))
    # What a sweep keeps for `emit`: the top state, hidden states before units, or the bank.
    needs = Taps(top=True)

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        self.weight = parameter(shape.width, shape.width, init=constant(0.0), role="matrix")

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        return taps["top"]

    def enter(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        if memory is None or unit != 0:
            return x
        return x + F.linear(memory.value, self.weight)
'''

BACKBONE = '''"""NAME: one line that says where it comes from.

    x_{u+1} = x_u + a_u F_u(RMS(x_u))

with a learned scale a_u for every unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lrt_lab.backbones.base import Backbone, Source
from lrt_lab.layers import Shape, constant, parameter


class NAME(Backbone):
    """NAME: each unit's output is scaled before it joins the stream.

    The scales a_u start at 1. A route's residual injection changes the stream; its sources are
    added to the embedding where they are present.
    """

    def setup(self, shape: Shape, slots: int) -> None:
        self.scale = parameter(shape.units, init=constant(1.0), role="connection")

    # A state is a value and is never changed in place; here it is the stream itself.
    def start(self, x: Tensor, sources: Sequence[Source]) -> Tensor:
        for value, present in sources:
            x = x + value * present.unsqueeze(-1)
        return x

    def enter(self, state: Tensor, unit: int, inject: Callable[[Tensor], Tensor]) -> Tensor:
        return inject(state)

    def read(self, state: Tensor, unit: int) -> Tensor:
        return state

    def write(self, state: Tensor, unit: int, y: Tensor) -> Tensor:
        return state + self.scale[unit] * y

    def hidden(self, state: Tensor, unit: int) -> Tensor:
        return state

    def finish(self, state: Tensor) -> Tensor:
        return state
'''

ROUTE_CONFIG = """# NAME: one line that says what it does.
model:
  route: NAME
  # One pass over everything, then the two halves of the positions, one after the other.
  schedule:
    class_path: Interleaved
    init_args: {subsets: 2}
"""

BACKBONE_CONFIG = """# NAME: one line that says what it does.
model:
  backbone: NAME
"""


@dataclass(frozen=True)
class Kind:
    """What a kind of part is called, where it lives and what its skeletons say."""

    option: str
    package: str
    source: str
    config: str


KINDS = {
    "route": Kind("route", "routes", ROUTE, ROUTE_CONFIG),
    "backbone": Kind("backbone", "backbones", BACKBONE, BACKBONE_CONFIG),
}


def new_route(name: str, folder: str | None = None) -> None:
    """Write a route's skeleton, its import line and its config.

    Args:
        name: of the class, in CamelCase.
        folder: a checkout of the project; the installed one is taken by default.
    """
    show(new(KINDS["route"], name, checkout(folder)))


def new_backbone(name: str, folder: str | None = None) -> None:
    """Write a backbone's skeleton, its import line and its config.

    Args:
        name: of the class, in CamelCase.
        folder: a checkout of the project; the installed one is taken by default.
    """
    show(new(KINDS["backbone"], name, checkout(folder)))


def checkout(folder: str | None) -> Path:
    """The root of the checkout to write into.

    Raises:
        UserError: the package is installed as a copy, or the folder is no checkout.
    """
    root = Path(__file__).resolve().parent.parent if folder is None else Path(folder)
    if all((root / part).exists() for part in ("pyproject.toml", "configs/base.yaml", "lrt_lab")):
        return root
    if folder is not None:
        raise UserError(f"--folder={folder}: not a checkout of lrt-lab (no configs/base.yaml)")
    raise UserError(
        f"new: lrt_lab in {root} is an installed copy, where a new part would be lost; clone the"
        " repository and `pip install -e .` it, or give --folder CHECKOUT"
    )


def snake(name: str) -> str:
    """The file of a class: GatherFFN -> gather_ffn, T2MLR -> t2mlr."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", name).lower()


def new(kind: Kind, name: str, root: Path) -> list[Path]:
    """Write a part of this kind into a checkout: the files written, relative to its root.

    Raises:
        UserError: the name is no class name, or something has it already.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]{0,39}", name):
        raise UserError(
            f"new {kind.option} {name}: give a class name, up to 40 letters and digits that start"
            " with a capital, like GatherFFN"
        )
    package = root / "lrt_lab" / kind.package
    init = package / "__init__.py"
    module = snake(name)
    source, config = package / f"{module}.py", root / "configs" / kind.option / f"{module}.yaml"
    taken = {"None", "True", "False", *imported(kind.source), *exported(init)}
    for _, base, where in FAMILIES:
        taken |= {base, *parts(base, where, root / "lrt_lab")}
    if name in taken:
        raise UserError(
            f"new {kind.option} {name}: the name is taken; `lrt-lab list` shows the parts"
        )
    for path in (source, config):
        if path.exists():
            raise UserError(
                f"new {kind.option} {name}: {path.relative_to(root)} exists; choose another name"
            )
    registered = register(init.read_text(encoding="utf-8"), f"lrt_lab.{kind.package}", module, name)
    # The import line comes last: what is cut short before it leaves the package as it was.
    write_text(source, kind.source.replace("NAME", name))
    write_text(config, kind.config.replace("NAME", name))
    write_text(init, registered)
    return [path.relative_to(root) for path in (source, config, init)]


def imported(source: str) -> Iterator[str]:
    """The names that a source imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def exported(init: Path) -> Iterator[str]:
    """The names in a package's ``__all__``."""
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ast.literal_eval(node.value)


def register(text: str, package: str, module: str, name: str) -> str:
    """A package's ``__init__`` with one more import and one more export, both in order."""
    lines = text.splitlines()
    imports = [i for i, line in enumerate(lines) if line.startswith(f"from {package}.")]
    new_line = f"from {package}.{module} import {name}"
    after = [i for i in imports if lines[i].split()[1] > new_line.split()[1]]
    lines.insert(after[0] if after else imports[-1] + 1, new_line)
    start = lines.index("__all__ = [") + 1
    stop = lines.index("]", start)
    # Names in capitals come first, as ruff sorts them.
    names = sorted([*lines[start:stop], f'    "{name}",'], key=lambda s: (not s.isupper(), s))
    return "\n".join([*lines[:start], *names, *lines[stop:]]) + "\n"


def show(written: list[Path]) -> None:
    """Say what was written and how to go on."""
    from lrt_lab.console import console

    source, config, init = written
    out = console()
    for path, does in ((source, "the part"), (config, "its config"), (init, "imports it")):
        out.print(f"{path!s:42}{does}", markup=False, soft_wrap=True)
    out.print(
        f"train it: lrt-lab fit --config configs/base.yaml --config configs/scale/smoke.yaml"
        f" --config {config}",
        markup=False,
        soft_wrap=True,
    )
