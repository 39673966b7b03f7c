"""Routes that can be switched off by the values of their parameters, on every backbone."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.frame import Frame
from lrt_lab.routes import T2MLR, NoRoute
from lrt_lab.schedules import Jacobi, Serial
from tests.support.compare import DIFFERENT, SAME, error
from tests.support.models import documents, run, small_decoder, tokens
from tests.support.registry import PAIRS, RECURRENT, Case


@pytest.mark.parametrize(
    ("backbone", "route"),
    [(b, r) for b, r in PAIRS if r in RECURRENT and r().traits.identity],
    ids=str,
)
@torch.no_grad()
def test_every_pass_is_the_plain_model_with_the_identity_values(
    backbone: Case, route: Case
) -> None:
    routed, plain = small_decoder(backbone(), route()), small_decoder(backbone(), NoRoute())
    shared = {n: v for n, v in routed.state_dict().items() if not n.startswith("route.")}
    plain.load_state_dict(shared)
    frame = Frame(tokens(), documents(5, 7))
    truth = run(Jacobi(1), plain, frame)[0].hidden
    assert error(run(Jacobi(3), routed, frame)[-1].hidden, truth) > DIFFERENT
    for start, value in route().traits.identity:
        found = [p for name, p in routed.route.named_parameters() if name.startswith(start)]
        assert found, start
        for target in found:
            target.fill_(value)
    for scored in [*run(Jacobi(3), routed, frame), *run(Serial(), routed, frame)]:
        assert error(scored.hidden, truth) <= SAME


@torch.no_grad()
def test_a_fresh_t2mlr_is_the_plain_model_to_the_bit() -> None:
    decoder = small_decoder(route=T2MLR())
    decoder.route.recurrent_strength.zero_()
    decoder.route.current_strength.zero_()
    first, *later = run(Jacobi(3), decoder, Frame(tokens()))
    assert all(torch.equal(scored.hidden, first.hidden) for scored in later)
