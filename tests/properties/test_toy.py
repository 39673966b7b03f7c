"""A scalar recurrence that can be followed by hand, through the schedules' own code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lrt_lab.decoder import Decoder, Sweep
from lrt_lab.frame import Frame
from lrt_lab.layers import SquaredReLU
from lrt_lab.mixers import Attention
from lrt_lab.routes import LRT
from lrt_lab.schedules import Interleaved, Jacobi, Serial
from tests.support.compare import SAME, error
from tests.support.golden import golden
from tests.support.models import merged, run

TOY = golden("toy_jacobi")


class Toy(Decoder):
    """m_t = a m_{t-1} + b_t in place of the stack; the memory's path is the real one."""

    def __init__(self) -> None:
        super().__init__(2, 1, 2, route=LRT(), mixer=Attention(heads=1), ffn=SquaredReLU(1))

    def sweep(self, frame, positions, memory=None, buffers=None, **_) -> Sweep:
        value = TOY["b"][list(positions)].view(1, -1, 1).expand(len(frame.ids), -1, -1)
        if memory is not None:
            value = value + TOY["a"] * memory.value
        return Sweep(positions, value, value, {}, {})


@pytest.fixture
def toy() -> Decoder:
    return Toy().double()


@pytest.fixture
def frame() -> Frame:
    return Frame(torch.zeros(2, len(TOY["b"]), dtype=torch.long))


def states(hidden: Tensor) -> Tensor:
    assert torch.equal(hidden[0], hidden[1])
    return hidden[0, :, 0]


def test_the_sequential_values(toy: Decoder, frame: Frame) -> None:
    (only,) = run(Serial(), toy, frame)
    assert error(states(only.hidden), TOY["sequential"]) <= SAME


def test_every_jacobi_round(toy: Decoder, frame: Frame) -> None:
    rounds = TOY["jacobi_rounds"][1:]
    passes = run(Jacobi(len(rounds)), toy, frame)
    for number, (scored, expected) in enumerate(zip(passes, rounds, strict=True), start=1):
        assert error(states(scored.hidden), expected) <= SAME
        assert error(states(scored.hidden)[:number], TOY["sequential"][:number]) <= SAME


def test_interleaving_to_the_end(toy: Decoder, frame: Frame) -> None:
    assert error(states(merged(run(Interleaved(8), toy, frame))), TOY["sequential"]) <= SAME


def test_two_subsets_by_hand(toy: Decoder, frame: Frame) -> None:
    a, b = float(TOY["a"]), TOY["b"].tolist()
    m = list(b)
    for subset in range(2):
        for t in range(subset, 8, 2):
            m[t] = b[t] + (a * m[t - 1] if t else 0.0)
    assert error(states(merged(run(Interleaved(2), toy, frame))), torch.tensor(m)) <= 1e-6
