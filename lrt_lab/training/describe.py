"""`lrt-lab describe`: what a config costs, by part, without data and without training.

It starts without Lightning, which takes longer to import than most models take to price.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jsonargparse
import torch
import yaml

from lrt_lab.assembly import DEFAULTS, TEXT, assemble
from lrt_lab.console import console
from lrt_lab.errors import UserError
from lrt_lab.store import write_text
from lrt_lab.training.config import merge, merge_configs
from lrt_lab.training.meter import Cost, measure
from lrt_lab.training.optimizer import Optimization
from lrt_lab.training.published import Published
from lrt_lab.training.uncompiled import uncompiled
from lrt_lab.wording import nearest

HELP = """usage: lrt-lab describe --config FILE [--config FILE ...] [--KEY VALUE ...]
                        [--against FILE] [--json] [--lattice[=FILE]]

What a config costs, by part: parameters, FLOPs per token (matrix + pointwise) of training, prefill
and decoding, activations that training keeps, passes, decoding state. Takes no data. All as without
model.recompute, which keeps fewer activations and executes every pass once more.

  --config FILE     fragments, stacked as `lrt-lab fit` stacks them; keys as flags come last
  --against FILE    a second config beside it: the same fragments, this one on top
  --json            all numbers as JSON
  --lattice[=FILE]  instead draw what each unit reads: by depth, from other positions, and as memory
                    that left the position before; here and as an SVG (default: lattice.svg)"""
#: Sections of a config that do not change what a token costs.
ASIDE = ("trainer", "evaluation", "recording", "seed", "threads", "folder", "published")


@dataclass
class Request:
    """What the command line asks for."""

    config: dict[str, Any]
    against: dict[str, Any] | None
    json: bool
    lattice: Path | None


def describe(args: list[str]) -> int:
    """Parse, price and show."""
    if not args or args[0] in ("-h", "--help"):
        print(HELP)
        return 0
    request = read(args)
    if request.lattice is not None:
        return draw(request.config, request.lattice)
    costs = [price(c) for c in (request.config, request.against) if c is not None]
    if request.json:
        records = [cost.as_dict() for cost in costs]
        print(json.dumps(records[0] if request.against is None else records, indent=2))
        return 0
    from lrt_lab.training.tables import show

    show(costs)
    if line := published(request.config).beside(costs[0].total):
        console().print(line, markup=False)
    return 0


def published(config: Mapping[str, Any]) -> Published:
    """What the config says of its source."""
    given = config.get("published") or {}
    known = [field.name for field in fields(Published)]
    for key in given:
        if key not in known:
            hint = nearest(key, known)
            raise UserError(f"published: unknown option {key!r}{hint}; it takes {', '.join(known)}")
    return Published(**given)


def read(args: list[str]) -> Request:
    """The command line as configs."""
    files: list[str] = []
    flags: dict[str, Any] = {}
    over: str | None = None
    as_json = False
    picture: Path | None = None
    rest = list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") and name != "-c":
            raise UserError(f"describe: {name!r} is no option; configs follow --config")
        if name == "--json":
            as_json = True
            continue
        if name == "--lattice":
            picture = Path(value or "lattice.svg")
            continue
        if not equals:
            if not rest:
                raise UserError(f"describe: {name} needs a value")
            value = rest.pop(0)
        if name in ("-c", "--config"):
            files.append(value)
        elif name == "--against":
            over = value
        else:
            flags[name[2:]] = yaml.safe_load(value)
    config = merge_configs(files)
    if not files and not any(flag.partition(".")[0] == "model" for flag in flags):
        raise UserError("describe: no config: give --config, such as --config configs/base.yaml")
    if picture is not None and (over is not None or as_json):
        raise UserError("describe: --lattice draws one config; leave out --against and --json")
    against = None if over is None else merge(config, merge_configs([over]))
    return Request(flagged(config, flags), against and flagged(against, flags), as_json, picture)


def flagged(config: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The config with flags on top; a part's options may be given without ``init_args``."""
    for key, value in flags.items():
        config = merge(config, merge_configs([], {key: value}))
    return config


def build(config: Mapping[str, Any]) -> tuple[Any, Any, int]:
    """Decoder and schedule on the current device, and the length of a row."""
    if not isinstance(config.get("model"), Mapping):
        raise UserError("describe: the config has no model section; stack one on configs/base.yaml")
    unknown = [key for key in config if key not in ("model", "data", *ASIDE)]
    if unknown:
        raise UserError(
            f"unknown option {unknown[0]}{nearest(unknown[0], ('model', 'data', *ASIDE))}"
        )
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(assemble, "model")
    parser.add_subclass_arguments(Optimization, "model.optimizer", required=False)
    parser.set_defaults(DEFAULTS)
    try:
        parsed = parser.parse_object({"model": dict(config["model"])})
        made = parser.instantiate(parsed)["model"]
    except jsonargparse.ArgumentError as error:
        from lrt_lab.training.explain import explain

        raise UserError(explain(str(error), [a.dest for a in parser._actions])) from None
    options = {key: made[key] for key in vars(made) if key != "optimizer"}
    length, vocabulary = rows(config.get("data") or {})
    if options["vocab"] is None:
        options["vocab"] = vocabulary
    with uncompiled():
        decoder, schedule = assemble(**options)
    return decoder, schedule, length


def draw(config: Mapping[str, Any], path: Path) -> int:
    """Show a config's lattice, and write it as an SVG."""
    from lrt_lab.training.lattice import lattice
    from lrt_lab.training.lattice_picture import lines, svg

    with torch.device("meta"):
        decoder, schedule, length = build(config)
    found = lattice(decoder)
    passes = schedule.cost(length, decoder) / length
    parts = (type(part).__name__ for part in (decoder.backbone, decoder.route, schedule))
    title = f"{', '.join(parts)}: {passes:.3g} passes"
    write_text(path, svg(found, title))
    for line in (title, "", *lines(found), "", f"wrote {path}"):
        console().print(line, markup=False)
    return 0


def rows(data: Mapping[str, Any]) -> tuple[int, int]:
    """Positions of a row of data, and its number of token ids."""
    chosen = data.get("class_path", "TextData").rpartition(".")[2]
    options = data.get("init_args") or {} if "class_path" in data else data
    if chosen == "TextData" and "length" in options:
        return options["length"], TEXT
    from lrt_lab.data.tasks import Task

    known: dict[str, type] = {task.__name__: task for task in Task.__subclasses__()}
    if chosen not in known:
        # Of text only if need be: its reader takes longer to import than most models to price.
        from lrt_lab.parts import PARTS, parts_of

        known = parts_of(PARTS["data"])
    if chosen not in known:
        raise UserError(
            f"unknown data {chosen!r}{nearest(chosen, known)}; known: {', '.join(known)}"
        )
    made = known[chosen](**options)
    return made.length, made.vocabulary


def price(config: Mapping[str, Any]) -> Cost:
    """What a config costs."""
    with torch.device("meta"):
        decoder, schedule, length = build(config)
    return measure(decoder, schedule, length)
