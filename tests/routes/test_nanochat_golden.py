"""nanochat itself: its trunk without a route, two steps of its optimizer, its initial scalars."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.layers import rotary_table
from lrt_lab.schedules import SinglePass
from tests.routes.nanochat_optimizer import nanochat_optimizer
from tests.routes.nanochat_trunk import initial_scalars, names, trunk
from tests.support.compare import error
from tests.support.golden import golden
from tests.support.models import run

# The reference is float32.
NEAR = 1e-5
ARRAYS = golden("nanochat_tiny_gpt_muonadamw")
BLOCKS, BASE = 4, 100000.0
#: Scalars that the small model's weights still have; the file gave the smear another value.
TRUNK = {"resid_lambdas": "resid_lambdas", "x0_lambdas": "x0_lambdas", "backout": "backout_lambda"}


@pytest.fixture
def decoder() -> Decoder:
    cos, sin = rotary_table(torch.arange(12), 24, BASE, torch.float32)
    tables = {"cos": cos.squeeze(-2), "sin": sin.squeeze(-2)}
    return trunk(ARRAYS | tables, BLOCKS, 1, torch.float32)


def loss_of(decoder: Decoder) -> tuple[Tensor, Tensor]:
    (only,) = run(SinglePass(), decoder, Frame(ARRAYS["idx"]))
    logits = decoder.logits(only.hidden)
    return logits, F.cross_entropy(logits.mT, ARRAYS["targets"])


def test_scores_loss_and_every_gradient(decoder: Decoder) -> None:
    logits, loss = loss_of(decoder)
    assert error(logits, ARRAYS["logits"]) <= NEAR
    assert error(loss, ARRAYS["loss"]) <= NEAR
    loss.backward()
    for ours, theirs in names(BLOCKS).items():
        gradient = decoder.get_parameter(ours).grad
        assert error(gradient, ARRAYS[f"grad.{theirs}"]) <= NEAR, ours
    assert set(names(BLOCKS).values()) == {
        name.removeprefix("grad.") for name in ARRAYS if name.startswith("grad.")
    }


def test_two_steps_on_the_same_batch(decoder: Decoder) -> None:
    """Decay is cautious: where an update is zero but for rounding, either choice is right."""
    decay, ties = 0.1, 0
    optimizer = nanochat_optimizer(decoder, decay)
    for after in ("1_step", "2_steps"):
        optimizer.zero_grad()
        loss = loss_of(decoder)[1]
        loss.backward()
        optimizer.step()
        for ours, theirs in names(BLOCKS).items():
            # Relative to what a parameter was: one scalar's first step leads to zero.
            was, expected = ARRAYS[f"param.{theirs}"], ARRAYS[f"param_after_{after}.{theirs}"]
            near = NEAR * max(was.abs().max(), expected.abs().max())
            off = (decoder.get_parameter(ours).detach() - expected).abs()
            tied = off > near
            # Tall matrices take longer steps, and decay with them.
            tall = max(1.0, len(was) / was[0].numel()) if was.dim() == 2 else 1.0
            gap = off - 0.02 * tall**0.5 * decay * expected.abs()
            assert (gap.abs()[tied] <= near).all(), (after, ours)
            ties += int(tied.sum())
            # The next step starts where theirs does: Adam would make much of a small difference.
            with torch.no_grad():
                decoder.get_parameter(ours)[tied] = expected[tied].to(off.dtype)
    assert ties <= 2
    assert error(loss, ARRAYS["loss_step2"]) <= NEAR


def test_the_initial_scalars_of_twelve_blocks() -> None:
    expected = golden("nanochat_init_scalars_d12")
    for name, values in initial_scalars(12, 2048).items():
        assert_close(torch.tensor(values), expected[name], rtol=0, atol=1e-6, check_dtype=False)
    assert set(expected) == set(initial_scalars(12, 2048))


def test_the_trunk_begins_with_them() -> None:
    for name, values in initial_scalars(BLOCKS, 12).items():
        if name in TRUNK:
            assert_close(torch.tensor(values), ARRAYS[f"param.{TRUNK[name]}"], rtol=0, atol=1e-6)
