"""Initial values: keyed on seed and name, drawn wide, on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lrt_lab.layers import constant, fan_in, initialize, normal, parameter, uniform


class Two(nn.Module):
    def __init__(self, first: str = "a", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name in (first, "z"):
            self.register_parameter(name, parameter(64, 64, init=normal(1.0), role="matrix"))
        self.to(dtype)


def test_values_depend_on_the_name_and_not_on_the_company() -> None:
    one, two = Two("a"), Two("b")
    initialize(one, 1)
    initialize(two, 1)
    assert torch.equal(one.z, two.z)
    assert not torch.equal(one.a, two.b)
    assert not torch.equal(one.a, one.z)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_values_are_drawn_in_float32_whatever_the_dtype(dtype: torch.dtype) -> None:
    one, other = Two(), Two(dtype=dtype)
    initialize(one, 1)
    initialize(other, 1)
    assert torch.equal(one.z.to(dtype), other.z)


@pytest.mark.parametrize(
    ("init", "std", "bound"),
    [(normal(0.5), 0.5, 5.0), (uniform(0.3), 0.3 / 3**0.5, 0.3), (fan_in, 0.125, 0.217)],
    ids=["normal", "uniform", "fan_in"],
)
def test_distributions(init, std: float, bound: float) -> None:
    value = torch.empty(64, 64)
    init(value, torch.Generator().manual_seed(0))
    assert value.std().item() == pytest.approx(std, rel=0.05)
    assert value.abs().max() <= bound


def test_constants() -> None:
    value = torch.empty(3)
    constant(0.1)(value, torch.Generator())
    assert value.eq(0.1).all()


def test_values_on_the_meta_device_are_left_alone() -> None:
    with torch.device("meta"):
        module = Two()
    initialize(module, 1)
    assert module.a.is_meta
