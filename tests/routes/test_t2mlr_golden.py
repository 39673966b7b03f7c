"""T2MLR against its public release: gate, cache, exact recurrence, every depth, truncation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lrt_kernels.merge_cache import GROW, SHRINK
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import T2MLR
from lrt_lab.routes.t2mlr import EPS
from lrt_lab.schedules import MiddleJacobi
from tests.routes.t2mlr_release import GATE, release_gate, release_model
from tests.support.compare import error
from tests.support.golden import golden
from tests.support.models import exact, run

# The release's norms and softmax are float32, its gate's tanh too.
NEAR, GATE_NEAR = 1e-5, 1e-7
LLAMA = golden("t2mlr_wrapper_tiny_llama")
PLACES = {
    "W_rec": "route.projection",
    "embed": "embedding",
    "gamma_rec": "route.recurrent_strength",
    "l_end_down": "units.7.body.down",
}


@pytest.fixture
def decoder() -> Decoder:
    return release_model(LLAMA)


@pytest.fixture
def frame() -> Frame:
    # Two of the release's flow: every position receives.
    assert (LLAMA["control_flows"] == 2).all()
    return Frame(LLAMA["input_ids"])


def furthest(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).detach().abs().max())


def test_the_gate_and_its_gradients() -> None:
    arrays = golden("t2mlr_gate")
    route = release_gate(arrays, 8)
    h, cache = (arrays[name].clone().requires_grad_() for name in ("x", "r"))
    out = route.merge(h, cache)
    assert furthest(out, arrays["out"]) <= GATE_NEAR
    (out * arrays["cotangent"]).sum().backward()
    assert error(h.grad, arrays["grad_x"]) <= GATE_NEAR
    assert error(cache.grad, arrays["grad_r"]) <= GATE_NEAR
    for ours, theirs in GATE.items():
        gradient = arrays[f"grad.{theirs}"].double()
        assert error(route.get_parameter(ours).grad, gradient) <= 5 * GATE_NEAR, ours


def test_the_gate_does_nothing_at_its_initial_values() -> None:
    arrays = golden("t2mlr_gate")
    route = release_gate(arrays, 8)
    with torch.no_grad():
        for name in ("recurrent_strength", "current_strength"):
            route.get_parameter(name).zero_()
        assert torch.equal(route.merge(arrays["x"], arrays["r"]), arrays["out_at_init"])


def test_the_cache_update_and_its_gradients() -> None:
    arrays = golden("t2mlr_cache_update")
    h, cache = (arrays[name].clone().requires_grad_() for name in ("h", "R_prev"))
    bounds = (1 / arrays["clamp"], arrays["clamp"], arrays["eps"])
    assert pytest.approx([float(bound) for bound in bounds]) == (SHRINK, GROW, EPS)
    new = T2MLR(norm="clamped").update(h, cache)
    assert error(new, arrays["R_new"]) <= GATE_NEAR
    (new * arrays["cotangent"]).sum().backward()
    assert error(h.grad, arrays["grad_h"]) <= GATE_NEAR
    assert error(cache.grad, arrays["grad_R"]) <= GATE_NEAR


def test_the_exact_recurrence(decoder: Decoder, frame: Frame) -> None:
    with torch.no_grad():
        logits = decoder.logits(exact(decoder, frame))
    assert furthest(logits, LLAMA["exact_logits"]) <= NEAR


@pytest.mark.parametrize("index", range(len(LLAMA["jacobi_depths"])))
def test_every_forward_depth(index: int, decoder: Decoder, frame: Frame) -> None:
    depth = int(LLAMA["jacobi_depths"][index])
    with torch.no_grad():
        (only,) = run(MiddleJacobi(depth, None), decoder, frame)
        logits = decoder.logits(only.hidden)
    assert furthest(logits, LLAMA["jacobi_logits"][index]) <= NEAR
    off = (logits - LLAMA["exact_logits"]).abs().amax((0, 2))
    assert (off[:depth] <= NEAR).all()
    assert (off[depth:] > 10 * NEAR).all()


@pytest.mark.parametrize("backward", [0, 1, 2, 4, 5, 6, None])
def test_truncated_gradients(backward: int | None, decoder: Decoder, frame: Frame) -> None:
    name = f"D6_B{'inf' if backward is None else backward}"
    (only,) = run(MiddleJacobi(6, backward), decoder, frame)
    logits = decoder.logits(only.hidden)[:, :-1]
    loss = F.cross_entropy(logits.mT, frame.ids[:, 1:])
    assert furthest(loss, LLAMA[f"loss_{name}"]) <= NEAR
    loss.backward()
    gradients = {n: p.grad for n, p in decoder.named_parameters()}
    for theirs, ours in PLACES.items():
        assert_close(gradients[ours], LLAMA[f"grad_{name}.{theirs}"], rtol=0, atol=NEAR)


def test_restarted_positions_without_a_reset(decoder: Decoder) -> None:
    """The release resets its cache only where it is told to: here only rotary positions restart."""
    frame = Frame(LLAMA["input_ids"], position=LLAMA["packed_position_ids"])
    with torch.no_grad():
        (only,) = run(MiddleJacobi(12), decoder, frame)
        logits = decoder.logits(only.hidden)
    assert furthest(logits, LLAMA["packed_logits_no_attn_blockmask"]) <= NEAR
