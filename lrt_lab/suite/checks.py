"""Checks of what a user wrote: each passes a value on, or says in one line what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import yaml

from lrt_lab.errors import UserError

# Names become folder names, and "+" and "@" join them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def require_known(what: str, given: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Raise for the first name that is not allowed, with the nearest one that is."""
    known = list(allowed)
    for name in given:
        if name in known:
            continue
        near = get_close_matches(str(name), known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        listed = ", ".join(known) or "none"
        raise UserError(f"{where}: unknown {what} '{name}'.{hint} Known: {listed}.")


def require_name(what: str, name: object, where: str) -> str:
    """A text that may stand in a folder's name."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    hint = " Quote it: YAML reads it as a value." if not isinstance(name, str) else ""
    raise UserError(
        f"{where}: {what} {name!r} must be a text of letters, digits, '_', '-' and '.'.{hint}"
    )


def section(
    tree: object, where: str, keys: tuple[str, ...] | None = None, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A mapping; with `keys`, one that has those and no others (`optional` ones may be absent)."""
    if not isinstance(tree, dict):
        raise UserError(f"{where} must be a table of names and values, not {tree!r}.")
    if keys is not None:
        require_known("key", tree, keys, where)
        for key in keys:
            if key not in tree and key not in optional:
                raise UserError(f"{where}: '{key}' is missing.")
    return tree


def items(value: object, where: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise UserError(f"{where} must be a list in [brackets], not {value!r}.")
    return value


def text(tree: Mapping[str, Any], key: str, where: str) -> str:
    """A text that says something, its white space made plain."""
    value = tree[key]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: '{key}' must be a text; write it before the runs.")
    return " ".join(value.split())


def number(value: object, where: str) -> float:
    """A number; YAML reads 1e-3 as a text, which is one mistake that this catches."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where} must be a number such as 0.01, not {value!r}.")
    return float(value)


class UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys without a word; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key}' is given more than once", node.start_mark
                )
        return super().construct_mapping(node, deep)
