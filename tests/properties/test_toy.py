"""A scalar recurrence that can be followed by hand, through the schedules' own code.

The published table's numbers (a = .7, inputs 1 0 0 1 0 0 0 0), all rounds and the exact result.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.schedules import Interleaved, Jacobi, Serial
from tests.support.compare import SAME, error
from tests.support.golden import golden
from tests.support.linear import linear_decoder, scalar
from tests.support.models import merged, run

TOY = golden("toy_jacobi")
#: As printed, to two decimals, and in full.
PRINTED = [1, 0.70, 0.49, 1.34, 0.94, 0.66, 0.46, 0.32]
FULL = [1, 0.7, 0.49, 1.343, 0.9401, 0.65807, 0.460649, 0.3224543]


@pytest.fixture
def toy() -> Decoder:
    return linear_decoder(scalar(float(TOY["a"])))


@pytest.fixture
def frame() -> Frame:
    return Frame(TOY["b"].long().expand(2, -1))


def states(hidden: Tensor) -> Tensor:
    """m_t of every position; rows and entries are all alike."""
    assert torch.equal(hidden, hidden[:1, :, :1].expand_as(hidden))
    return hidden[0, :, 0].detach()


def test_the_printed_values(toy: Decoder, frame: Frame) -> None:
    assert float(TOY["a"]) == 0.7 and frame.ids[0].tolist() == [1, 0, 0, 1, 0, 0, 0, 0]
    (only,) = run(Serial(), toy, frame)
    assert [round(float(m), 2) for m in states(only.hidden)] == PRINTED
    assert error(states(only.hidden), torch.tensor(FULL, dtype=torch.float64)) <= SAME


def test_the_sequential_values(toy: Decoder, frame: Frame) -> None:
    (only,) = run(Serial(), toy, frame)
    assert error(states(only.hidden), TOY["sequential"]) <= SAME


def test_every_jacobi_round(toy: Decoder, frame: Frame) -> None:
    """Round k of the table, which starts from zero estimates, is pass k; k cells are outlined."""
    rounds = TOY["jacobi_rounds"][1:]
    passes = run(Jacobi(len(rounds)), toy, frame)
    for number, (scored, expected) in enumerate(zip(passes, rounds, strict=True), start=1):
        found = states(scored.hidden)
        assert error(found, expected) <= SAME
        outlined = ((found - TOY["sequential"]).abs() <= SAME).tolist()
        assert outlined[:number] == [True] * min(number, len(outlined))


def test_interleaving_to_the_end(toy: Decoder, frame: Frame) -> None:
    assert error(states(merged(run(Interleaved(8), toy, frame))), TOY["sequential"]) <= SAME


def test_two_subsets_by_hand(toy: Decoder, frame: Frame) -> None:
    a, b = float(TOY["a"]), TOY["b"].tolist()
    m = list(b)
    for subset in range(2):
        for t in range(subset, 8, 2):
            m[t] = b[t] + (a * m[t - 1] if t else 0.0)
    assert error(states(merged(run(Interleaved(2), toy, frame))), torch.tensor(m)) <= 1e-6
