"""`lrt-lab`: one command. Dispatches on its first word before anything heavy is imported."""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from lrt_lab import __version__
from lrt_lab.errors import UserError
from lrt_lab.wording import nearest, plain

# Name -> (module:function, or a table of subcommands; one line of help).
Entry = tuple[str | dict[str, str], str]
COMMANDS: dict[str, Entry] = {
    "fit": ("lrt_lab.training.fit:fit", "train one cell, evaluate it and record it"),
    "diagnose": (
        "lrt_lab.training.diagnose:command",
        "whether a trained model's recurrence contracts",
    ),
    "suite": (
        {
            "plan": "lrt_lab.suite.commands:plan",
            "run": "lrt_lab.suite.commands:run",
            "tune": "lrt_lab.suite.commands:tune",
            "status": "lrt_lab.suite.commands:status",
            "report": "lrt_lab.suite.commands:report",
        },
        "plan and run a matrix of cells over seeds; its tuning; its state; its report",
    ),
    "report": (
        "lrt_lab.report.commands:report",
        "a report from run records, or from anybody's CSV",
    ),
    "power": ("lrt_lab.report.commands:power", "seeds needed, and the chance of each verdict"),
    "scaling": (
        {"fit": "lrt_lab.report.scaling.commands:fit"},
        "scaling laws of any table of runs, and where two models cost the same",
    ),
    "selfcheck": ("lrt_lab.report.commands:selfcheck", "simulate the statistics' coverage"),
    "describe": (
        "lrt_lab.training.describe:describe",
        "what a config costs: parameters, FLOPs, memory, passes",
    ),
    "list": ("lrt_lab.listing:list_parts", "the parts that a config can name"),
    "new": (
        {
            "route": "lrt_lab.scaffold:new_route",
            "backbone": "lrt_lab.scaffold:new_backbone",
        },
        "the skeleton of a new part, with its import line and config",
    ),
    "prepare": ("lrt_lab.data.commands:prepare", "make token chunks of a corpus"),
}
#: Commands that parse their own arguments.
RAW = {"describe", "fit"}
#: Commands that are over before garbage matters; collecting it would be a fourth of their time.
BRIEF = {"describe"}


def process() -> int:
    """`main`, for a process that ends with it."""
    brief = len(sys.argv) > 1 and sys.argv[1] in BRIEF
    if brief:
        gc.disable()
    code = main()
    if brief:
        # The interpreter's last collection would walk all of torch.
        gc.freeze()
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what the user got wrong is one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        return dispatch(args)
    except UserError as error:
        print(f"lrt-lab: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        return 130


def dispatch(args: list[str]) -> int:
    """Find the command and call it."""
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] == "--version":
        print(f"lrt-lab {__version__}")
        return 0
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        raise UserError(
            f"unknown command {name!r}{nearest(name, COMMANDS)}; known: {', '.join(COMMANDS)}"
        )
    target, _ = COMMANDS[name]
    if isinstance(target, dict):
        if not rest or rest[0] not in target:
            if rest and rest[0] in ("-h", "--help"):
                print(f"usage: lrt-lab {name} {{{','.join(target)}}} ...")
                return 0
            given = (
                f"unknown command {name + ' ' + rest[0]!r}" if rest else f"{name} needs a command"
            )
            raise UserError(f"{given}; known: {', '.join(f'{name} {sub}' for sub in target)}")
        name, target, rest = f"{name} {rest[0]}", target[rest[0]], rest[1:]
    function = load(target)
    if name in RAW:
        return function(rest) or 0
    return parse_and_call(function, name, rest) or 0


def load(target: str) -> Callable[..., Any]:
    """The function behind ``module:function``."""
    module, function = target.split(":")
    return getattr(import_module(module), function)


def parse_and_call(function: Callable[..., Any], name: str, args: list[str]) -> int | None:
    """Call a typed function with command-line arguments; its docstring is the help."""
    import jsonargparse

    about, _, _ = (function.__doc__ or "").partition("Args:")
    parser = jsonargparse.ArgumentParser(
        prog=f"lrt-lab {name}",
        description=about.strip(),
        exit_on_error=False,
        # Half an option is a misspelt one.
        allow_abbrev=False,
    )
    parser.add_function_arguments(function, as_group=False, as_positional=True, fail_untyped=True)
    args = [respell(arg, function) for arg in args]
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if args and not args[0].startswith("-") and first and first.default is not first.empty:
        # What a command is about may stand alone, whether it must be given or not.
        args[0] = f"--{first.name}={args[0]}"
    try:
        parsed = parser.parse_args(args)
    except jsonargparse.ArgumentError as error:
        text = " ".join(str(error).split())
        if wrong := re.search(r"[Uu]nrecognized arguments?: (-*[\w-]+)", text):
            known = [f"--{action.dest}" for action in parser._actions if action.option_strings]
            raise UserError(
                f"{name}: unknown option {wrong[1]}{nearest(wrong[1], known)}"
            ) from None
        if wrong := re.search(r'Parser key "(\w+)": (.*)', text):
            raise UserError(f"{name}: option {wrong[1]}: {plain(wrong[2])}") from None
        raise UserError(f"{name}: {text}") from None
    return function(**parsed.as_dict())


def respell(arg: str, function: Callable[..., Any]) -> str:
    """An option with dashes between its words, or a bare switch, as the parser reads it."""
    name, equals, value = arg.partition("=")
    if not name.startswith("--"):
        return arg
    name = name[2:].replace("-", "_")
    parameter = inspect.signature(function).parameters.get(name)
    if parameter is not None and parameter.default is False and not equals:
        return f"--{name}=true"
    return f"--{name}{equals}{value}"


def usage() -> str:
    """The commands, one line each."""
    lines = [
        "usage: lrt-lab COMMAND ...",
        "",
        "How should hidden state travel in a language model?",
        "",
    ]
    for name, (target, help_line) in COMMANDS.items():
        shown = f"{name} {{{','.join(target)}}}" if isinstance(target, dict) else name
        lines.append(f"  {shown:28s}{help_line}")
    return "\n".join([*lines, "", "lrt-lab COMMAND --help says more."])


if __name__ == "__main__":
    sys.exit(process())
