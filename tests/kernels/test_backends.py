"""Which backend a call takes, what it asks of its inputs, and that it traces as one graph."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lrt_kernels import KERNELS, OPS, backend, depth_read
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error

SOURCES = [normal(2, 4, seed=j) for j in range(3)]
QUERY = normal(4, seed=9)


def test_kernels_are_for_cuda_devices() -> None:
    assert {backend(op, torch.device("cpu")) for op in OPS} == {"reference"}
    on_cuda = {op for op in OPS if backend(op, torch.device("cuda")) == "triton"}
    assert on_cuda == KERNELS
    with pytest.raises(ValueError, match="unknown operation 'flash'"):
        backend("flash", torch.device("cpu"))


def test_importing_the_package_does_not_import_triton() -> None:
    code = "import sys, lrt_kernels; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_kernels_need_a_device_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="backend='triton': the tensors are on cpu"):
        depth_read(SOURCES, QUERY, backend="triton")
    with pytest.raises(ValueError, match="backend='cuda': give auto, reference or triton"):
        depth_read(SOURCES, QUERY, backend="cuda")


WRONG = {
    "sources is empty": {"sources": []},
    r"sources\[1\] has shape \(2, 5\), not \(2, 4\)": {"sources": [SOURCES[0], normal(2, 5)]},
    r"sources\[1\] is torch.float32": {"sources": [SOURCES[0], SOURCES[1].float()]},
    r"sources\[0\] is torch.int64: give one of": {"sources": [torch.ones(2, 4).long()]},
    r"sources\[0\] is not contiguous": {"sources": [normal(4, 2).mT]},
    r"sources\[2\] is on meta": {"sources": [*SOURCES[:2], SOURCES[2].to("meta")]},
    r"query has shape \(2, 4\), not \(3, 4\)": {"query": normal(2, 4)},
    r"query has shape \(5,\), not \(4,\)": {"query": normal(5)},
    "query has 4 axes": {"query": normal(1, 1, 1, 4)},
    "query has no reads": {"query": normal(0, 3, 4)},
    "query is on meta": {"query": QUERY.to("meta")},
    "query is torch.int64": {"query": torch.ones(4).long()},
    r"bias has shape \(2,\), not \(3,\)": {"bias": normal(2)},
    r"bias has shape \(2, 3\), not \(1, 3\)": {"bias": normal(2, 3)},
    "masks has 1 entries for 3 sources": {"masks": [None]},
    r"masks\[1\] is torch.float64: give one of bool": {"masks": [None, normal(2), None]},
    r"masks\[0\] has shape \(3,\), not \(2,\)": {"masks": [torch.ones(3).bool(), None, None]},
    "scale=0: it divides": {"scale": 0},
    "norm_gain is given without norm_eps": {"norm_gain": normal(4)},
    r"norm_gain has shape \(3,\)": {"norm_gain": normal(3), "norm_eps": 1e-6},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("chosen", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, chosen: str) -> None:
    with pytest.raises(ValueError, match=message):
        depth_read(**{"sources": SOURCES, "query": QUERY, "backend": chosen} | WRONG[message])


@interpreted
def test_kernels_ask_for_aligned_sources() -> None:
    shifted = normal(9)[1:].view(2, 4)
    with pytest.raises(ValueError, match=r"sources\[1\] does not start at a multiple of 16 bytes"):
        depth_read([SOURCES[0], shifted], QUERY, backend="triton")


@pytest.mark.parametrize("chosen", ["auto", pytest.param("triton", marks=interpreted)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_one_graph(chosen: str) -> None:
    """Traced whole, forward and backward; the operation's own body is not looked into."""
    masks = [None, torch.tensor([True, False]), None]
    inputs = [*SOURCES, normal(2, 3, 4), normal(2, 3), normal(4)]

    def call(*x: torch.Tensor) -> torch.Tensor:
        return depth_read(
            list(x[:3]), x[3], x[4], 2.0, masks=masks, norm_eps=1e-6, norm_gain=x[5], backend=chosen
        )

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    both = value_and_gradients(compiled, inputs), value_and_gradients(call, inputs)
    for actual, expected in zip(*both, strict=True):
        assert error(actual, expected) <= SAME


def test_the_environment_names_the_interpreter() -> None:
    """Without a GPU the suite runs kernels in the interpreter, so their tests are not skipped."""
    assert torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] == "1"
