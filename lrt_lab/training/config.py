"""Stacking configuration: defaults < config files in order < overrides. Imports no torch.

A value that names a class replaces what stood there; every other mapping is merged key by key, and
lists are replaced whole. Options without a class are those of the class in force.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lrt_lab.errors import UserError


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A mapping from a YAML file, or one clear line about what is wrong with it."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"config {path} is a folder: give a YAML file in it")
    if not path.is_file():
        raise UserError(f"config {path} does not exist (looked from {Path.cwd()})")
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UserError(
            f"config {path} is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(
            f"config {path} holds a {type(content).__name__}; it must be a mapping of options"
        )
    return content


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` on top; neither is changed."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        named = isinstance(value, Mapping) and "class_path" in value
        if isinstance(value, Mapping) and isinstance(old, str) and not named:
            # The class was named by its short name; options that follow are its own.
            old = {"class_path": old}
        if isinstance(old, Mapping) and "class_path" in old and isinstance(value, Mapping):
            value = value if named or "init_args" in value else {"init_args": value}
        if isinstance(value, Mapping) and isinstance(old, Mapping) and not named:
            result[key] = merge(old, value)
        else:
            result[key] = value
    return result


def merge_configs(
    paths: Sequence[str | Path], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Stack YAML fragments left to right, then overrides with dotted keys (``model.route.

    LRT``).
    """
    config: dict[str, Any] = {}
    for path in paths:
        config = merge(config, read_yaml(path))
    for dotted, value in (overrides or {}).items():
        for part in reversed(dotted.split(".")):
            value = {part: value}
        config = merge(config, value)
    return config
