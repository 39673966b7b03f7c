"""The parts as test cases: every class that a package exports, and its options.

A new part joins every battery by being exported, with each of its flags and literals changed once.
`VARIANTS` says it otherwise for a part whose options are too many for that, or are numbers.

Every backbone meets LRT, and every route the anchors (`each_near_pair`); where the exact recurrence
is concerned the other pairs meet too (`each_far_pair`, `each_pair` is both). All that with their
defaults: variants meet the anchors only. Every schedule meets LRT and the route that it was made
for, on the anchors. Batteries thus grow with the sum of the variants.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import lrt_lab.backbones
import lrt_lab.mixers
import lrt_lab.routes
import lrt_lab.schedules
from lrt_lab.backbones import Backbone
from lrt_lab.mixers import Mixer
from lrt_lab.routes import Route
from lrt_lab.schedules import Schedule

#: Options of a part that the batteries try instead of changing one at a time.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "AttentionResiduals": ({"block_size": 3}, {"heads": 2, "key_gain": False}),
    "HyperConnections": ({"dynamic": False}, {"norm": "rms", "tanh": False, "streams": 2}),
    "MHC": ({"iterations": 2, "exact": "destination", "readout": "head", "initial": "authors"},),
    "MHCLite": ({"streams": 3, "readout": "sum"},),
    "MUDDFormer": (
        {"prepost": True, "gelu": "tanh", "round64": True},
        {"dynamic": False, "multiway": False},
    ),
    "PairwiseAttentionResiduals": ({"scale": 1.0, "block_size": 2},),
    "T2MLR": ({"first": 0, "last": 1, "features": "projected", "norm": "clamped"},),
    "LRT": (
        {"source": "top"},
        {"projections": "layerwise"},
        {"enters": "source"},
        {"enters": "read"},
        {"memory": "zero"},
        {"memory": "shift"},
        {"memory": "self"},
        {"enters": "source", "retain": "gather"},
        {"retain": "bank"},
    ),
    "GatherFFN": (
        {"retain": "block", "enters": "injection"},
        {"upto": "gather", "count": 2},
        {"upto": "norm", "count": 2, "enters": "read"},
        {"upto": "token", "gate": "lookup"},
        {"upto": "linear", "count": 2, "queries": "input"},
    ),
    "Householder": (
        {"retain": "bank"},
        {"turn": "generalised", "gate": "none"},
        {"turn": "double", "queries": "shared", "count": 1},
        {"turn": "cayley", "gate": "embedding", "queries": "input"},
        {"turn": "delta", "count": 4},
    ),
    "FullBandwidth": (
        {"state": "raw", "gate_norm": False, "input_norm": False},
        {"fuse": "concat"},
    ),
    "Interleaved": (
        {"subsets": 3},
        {"subsets": 2, "rounds": 2, "warmup": 1},
    ),
    "Jacobi": ({"count": 3}, {"count": 4, "fewest": 2, "damping": 0.25, "backward": 0}),
    "Curriculum": (),
    "PassMix": ({"shares": (1, 1), "normalize": True, "prefixes": False, "jitter": 0.0},),
    "MiddleJacobi": ({"forward": 3, "backward": 1},),
}
#: The schedule that a route was published with.
OWN = {
    "Coconut": "Curriculum",
    "FullBandwidth": "PassMix",
    "Householder": "Cycle",
    "T2MLR": "MiddleJacobi",
}


@dataclass(frozen=True)
class Case:
    """One part with its options, built afresh by calling it."""

    name: str
    part: Callable[..., Any]
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, **more: Any) -> Any:
        return self.part(**{**dict(self.options), **more})

    def __str__(self) -> str:
        return self.name


def exported(package: ModuleType, base: type) -> list[type]:
    """The classes below ``base`` that a package exports."""
    parts = [getattr(package, name) for name in package.__all__]
    return [p for p in parts if inspect.isclass(p) and issubclass(p, base) and p is not base]


def alternatives(annotation: Any, default: Any, counts: bool) -> list[Any]:
    """Other values of an option: a flag's other side, literals, with ``counts`` one more."""
    if annotation is bool:
        return [not default]
    if annotation is int and counts:
        return [default + 1]
    members = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [value for value in members if value != default]
    return [v for m in members if get_origin(m) is Literal for v in get_args(m) if v != default]


def cases(package: ModuleType, base: type, counts: bool = False) -> list[Case]:
    """Every exported part with its defaults, then with its variants."""
    found = []
    for part in exported(package, base):
        found.append(Case(part.__name__, part))
        for options in VARIANTS.get(part.__name__, ()):
            name = ", ".join(f"{option}={value}" for option, value in options.items())
            found.append(Case(f"{part.__name__}({name})", part, tuple(options.items())))
        if part.__name__ in VARIANTS or part.__init__ is base.__init__:
            continue
        hints = get_type_hints(part.__init__)
        for name, option in list(inspect.signature(part.__init__).parameters.items())[1:]:
            for value in alternatives(hints[name], option.default, counts):
                found.append(Case(f"{part.__name__}({name}={value})", part, ((name, value),)))
    return found


BACKBONES = cases(lrt_lab.backbones, Backbone)
ROUTES = cases(lrt_lab.routes, Route)
#: Silent positions are another kind of batch; a route that needs them has tests of its own.
RECURRENT = [r for r in ROUTES if r().traits.recurrent and not r().traits.silent]
SCHEDULES = cases(lrt_lab.schedules, Schedule, counts=True)
MIXERS = cases(lrt_lab.mixers, Mixer)

#: The parts of the first experiment, with their defaults: every variant meets these.
ANCHORS = ("PreNorm", "AttentionResiduals", "LRT")
#: The schedule that uses most of a sweep: subsets, buffers, memory of mixed age.
DEMANDING = "Interleaved(subsets=3)"


def anchored(*parts: Case) -> bool:
    """Whether any of these is an anchor."""
    return any(part.name in ANCHORS for part in parts)


def plain(*parts: Case) -> bool:
    """Whether all of these have their defaults."""
    return not any(part.options for part in parts)


#: Routes that meet every backbone, and schedules that meet these pairs, in every test.
CORE = ("NoRoute", "LRT")
#: Routes of many variants, of which most are for a backbone that chooses among its sources.
COMPACTORS = ("GatherFFN", "Householder")
CORE_SCHEDULES = ("Interleaved", "Jacobi", "Jacobi(count=3)", "Serial", "SinglePass")


def near(backbone: Case, route: Case) -> bool:
    """Whether this pair is tried on more than the exact recurrence."""
    if route.part.__name__ in CORE:
        return plain(backbone, route) or anchored(backbone, route)
    if route.part.__name__ in COMPACTORS and not plain(route):
        return backbone.name == "AttentionResiduals"
    return backbone.name in ANCHORS


def tried(backbone: Case, route: Case, schedule: Case) -> bool:
    """Whether this pair is tried under this schedule."""
    if schedule.name == DEMANDING:
        return True
    if not plain(backbone, route):
        return False
    if schedule.name in CORE_SCHEDULES:
        return anchored(backbone, route) and route.part.__name__ in CORE
    own = OWN.get(route.name) == schedule.part.__name__
    # Sixteen passes are too many for a battery; the variant has three.
    return (
        backbone.name in ANCHORS
        and (route.name in ANCHORS or own)
        and schedule.name != "MiddleJacobi"
    )


# On batches without silent positions a route that needs them is the plain model everywhere.
PAIRS = [
    (b, r) for b in BACKBONES for r in ROUTES if near(b, r) or plain(b, r) and not r().traits.silent
]
NEAR = [(b, r) for b, r in PAIRS if near(b, r)]
FAR = [pair for pair in PAIRS if pair not in NEAR]
TRIALS = [(b, r, s) for b, r in NEAR for s in SCHEDULES if tried(b, r, s)]

each_pair = pytest.mark.parametrize(("backbone", "route"), PAIRS, ids=str)
each_far_pair = pytest.mark.parametrize(("backbone", "route"), FAR, ids=str)
each_near_pair = pytest.mark.parametrize(("backbone", "route"), NEAR, ids=str)
each_recurrent_pair = pytest.mark.parametrize(
    ("backbone", "route"), [(b, r) for b, r in NEAR if r in RECURRENT], ids=str
)
each_trial = pytest.mark.parametrize(("backbone", "route", "schedule"), TRIALS, ids=str)
