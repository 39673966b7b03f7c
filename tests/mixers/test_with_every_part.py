"""A pattern of every mixer under every backbone, route and schedule."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import PreNorm
from lrt_lab.frame import Frame
from lrt_lab.mixers import Attention, DeltaNet, GatedDeltaNet, SimplicialAttention
from lrt_lab.routes import LRT
from lrt_lab.schedules import Jacobi
from tests.support.compare import SAME, error
from tests.support.models import documents, exact, run, small_decoder, tokens
from tests.support.registry import (
    BACKBONES,
    CORE_SCHEDULES,
    DEMANDING,
    OWN,
    RECURRENT,
    ROUTES,
    SCHEDULES,
    Case,
    plain,
)

PATTERN = [
    GatedDeltaNet(heads=2),
    SimplicialAttention(heads=2, kv_heads=1, window=5, pair_window=3),
    DeltaNet(heads=2),
    Attention(heads=2, kv_heads=1),
]
#: Every schedule with LRT, or with the route that it was made for.
MADE_FOR = {schedule: route for route, schedule in OWN.items()}
PAIRS = [
    (next(r for r in ROUTES if r.name == MADE_FOR.get(s.part.__name__, "LRT")), s)
    for s in SCHEDULES
    if s.name in (*CORE_SCHEDULES, DEMANDING) or plain(s) and s.name != "MiddleJacobi"
]


@pytest.mark.parametrize(
    ("backbone", "route"),
    [(b, LRT) for b in BACKBONES if plain(b)]
    + [(PreNorm, r) for r in RECURRENT if plain(r) and r.part is not LRT],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
@torch.no_grad()
def test_enough_passes_and_decoding_reach_the_exact_recurrence(backbone, route) -> None:
    decoder = small_decoder(backbone(), route(), routing=0.2, mixer=PATTERN)
    frame = Frame(tokens(10), documents(4, 6))
    passes = run(Jacobi(6 + route().traits.offset), decoder, frame)
    assert error(passes[-1].hidden, exact(decoder, frame)) <= SAME


@pytest.mark.parametrize(("route", "schedule"), PAIRS, ids=str)
def test_every_schedule_trains(route: Case, schedule: Case) -> None:
    decoder, frame = small_decoder(route=route(), mixer=PATTERN), Frame(tokens(12))
    passes = run(schedule(), decoder, frame)
    sum(p.weight * p.hidden.square().mean() for p in passes).backward()
    for unit, mixer in decoder.mixers().items():
        for name, parameter in mixer.named_parameters():
            assert torch.isfinite(parameter.grad).all() and parameter.grad.any(), (unit, name)
