"""The registry of parts: what a config names by class. The typed base classes are the registry."""

from __future__ import annotations

import inspect

# Their classes join by being imported.
import lrt_lab.data.tasks
import lrt_lab.data.text  # noqa: F401
from lrt_lab.backbones import Backbone
from lrt_lab.data.base import Data
from lrt_lab.layers import FeedForward
from lrt_lab.mixers import Mixer
from lrt_lab.routes import Route
from lrt_lab.schedules import Schedule
from lrt_lab.training.optimizer import Optimization

PARTS: dict[str, type] = {
    "backbone": Backbone,
    "route": Route,
    "schedule": Schedule,
    "mixer": Mixer,
    "ffn": FeedForward,
    "optimizer": Optimization,
    "data": Data,
}


def parts_of(base: type) -> dict[str, type]:
    """Subclasses that can be built, by name, in the order of their import."""
    found: dict[str, type] = {}
    subs: list[type] = base.__subclasses__()
    for sub in subs:
        if not inspect.isabstract(sub):
            found[sub.__name__] = sub
        found |= parts_of(sub)
    return found


def options_of(part: type) -> list[str]:
    """Names of the options that a part takes."""
    return [name for name in inspect.signature(part).parameters if name not in ("args", "kwargs")]
