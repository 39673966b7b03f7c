"""A compiled sweep gives the losses and gradients of an eager one.

Compiled for fixed shapes: which positions a sweep evaluates is part of its structure.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT, T2MLR, FullBandwidth
from lrt_lab.schedules import Clock, Interleaved, Jacobi, MiddleJacobi, Schedule
from lrt_lab.training.loss import training_loss
from tests.support.compare import SAME, error
from tests.support.models import documents, small_decoder, tokens

# The compiler looks at every tensor's gradient, and hides the warning unless it is an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

#: Tracing is what a state's way through a sweep could break; generating code takes long.
BACKEND = "aot_eager"
CASES: dict[str, Callable[[], tuple[Decoder, Schedule]]] = {
    "AttentionResiduals-LRT-Interleaved": lambda: (
        small_decoder(AttentionResiduals(), LRT(), blocks=2),
        Interleaved(2),
    ),
    "PreNorm-FullBandwidth-Jacobi-recomputed": lambda: (
        small_decoder(PreNorm(), FullBandwidth(), blocks=2),
        Jacobi(2),
    ),
    # Enters its interval from a saved state.
    "PreNorm-T2MLR-MiddleJacobi": lambda: (
        small_decoder(PreNorm(), T2MLR(first=1, last=1), blocks=2),
        MiddleJacobi(2, None),
    ),
}


def gradients(decoder: Decoder, schedule: Schedule) -> tuple[Tensor, list[Tensor | None]]:
    ids = tokens(9)
    loss = training_loss(
        decoder, schedule, Frame(ids[:, :-1], documents(3, 5)), ids[:, 1:], Clock()
    )
    found = torch.autograd.grad(loss, list(decoder.parameters()), allow_unused=True)
    return loss, list(found)


@pytest.mark.parametrize("case", CASES)
def test_the_same_loss_and_gradients(case: str) -> None:
    decoder, schedule = CASES[case]()
    loss, expected = gradients(decoder, schedule)
    torch._dynamo.reset()
    counted = CompileCounterWithBackend(BACKEND)
    decoder.evaluated = torch.compile(decoder.evaluated, backend=counted, dynamic=False)  # type: ignore[method-assign]
    # One case is recomputed as well: what is compiled is then what runs twice.
    decoder.recompute = case.endswith("Jacobi-recomputed")
    again, found = gradients(decoder, schedule)
    assert counted.frame_count
    assert error(again, loss) <= SAME
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert error(other, one) <= SAME
