"""The benchmark's naive forms are the same operations, and its bytes are the roofline's."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lrt_kernels.delta_rule import _empty
from lrt_lab.store import read_json
from tests.benchmarks import row_ops
from tests.benchmarks.kernel_cases import (
    ON_CPU,
    Case,
    delta_rules,
    dense_aggregates,
    depth_pulls,
    depth_reads,
    outputs,
    simplicials,
    stream_scores,
)
from tests.benchmarks.kernels import COMMITTED, COPY_RATE, GPU_TOKENS, predicted
from tests.benchmarks.peers import peers
from tests.kernels.row_cases import CASES

#: So many that what all share is little beside them.
ROWS = 1024
SMALL = [
    depth_reads(5, 4, 3, torch.float32),
    depth_pulls(5, 4, 3, torch.float32),
    dense_aggregates(5, 4, 3, torch.float32),
    stream_scores(5, 4, torch.float32),
    simplicials(2, 7, 4, 2, 4, (4, 2), torch.float32),
    delta_rules(1, 5, 2, 4, 3, torch.float32),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op)
def test_both_forms_are_the_same_operation(case: Case) -> None:
    leaves = case.leaves("cpu")
    for ours, naive in zip(outputs(case.call(*leaves)), outputs(case.naive(*leaves)), strict=True):
        torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op)
def test_peers_are_the_same_operation(case: Case) -> None:
    """Other packages' references, where they are installed."""
    forms = peers(case.op, "cpu")
    if not forms:
        pytest.skip("no other package that has it is installed")
    leaves = case.leaves("cpu")
    if case.op == "depth_read":
        # Theirs have one query for all sources and no bias.
        *values, query, bias = leaves
        leaves = [*values, query[:1].expand_as(query), torch.zeros_like(bias)]
    for form in forms.values():
        for ours, theirs in zip(outputs(case.call(*leaves)), outputs(form(*leaves)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_bytes_of_a_read() -> None:
    """S + 1 states forward, and 2 S + 3 backward, at 17 sources of 1024 bfloat16 numbers."""
    work = depth_reads(1, 1024, 17, torch.bfloat16).work
    assert work["forward"].bytes == pytest.approx(18 * 2048, rel=0.01)
    assert work["backward"].bytes == pytest.approx(37 * 2048, rel=0.01)


def test_bytes_of_a_pull() -> None:
    """Backward a source with R later readers takes R + 3 states, and every read two."""
    work, readers = depth_pulls(1, 1024, 16, torch.bfloat16).work, 16
    seen = sum(r + 1 for r in range(1, readers + 1))
    assert work["forward"].bytes == pytest.approx((seen + readers) * 2048, rel=0.01)
    least = seen + 3 * (readers + 1) + 2 * readers
    assert work["backward"].bytes == pytest.approx(least * 2048, rel=0.01)


def test_bytes_of_an_aggregate() -> None:
    """S + 4 states forward, and 2 S + 4 backward."""
    work = dense_aggregates(1, 1024, 17, torch.bfloat16).work
    assert work["forward"].bytes == pytest.approx(21 * 2048, rel=0.01)
    assert work["backward"].bytes == pytest.approx(38 * 2048, rel=0.01)


def test_bytes_of_scores() -> None:
    """The streams once forward; backward once more, and their gradient."""
    work = stream_scores(1, 1024, torch.bfloat16).work
    assert work["forward"].bytes == pytest.approx(4 * 2048, rel=0.02)
    assert work["backward"].bytes == pytest.approx(8 * 2048, rel=0.02)
    assert work["backward"].flops == 2 * work["forward"].flops == 4 * 4096 * 24


def test_work_of_simplicial_attention() -> None:
    """Two products of both windows forward, six backward; of the memory, queries and outputs."""
    windows, length = (64, 32), 32768
    work = simplicials(1, length, 8, 1, 128, windows, torch.bfloat16).work
    product = 2 * 8 * 128 * 64 * 32 * length
    assert work["forward"].flops == pytest.approx(2 * product, rel=0.01)
    assert work["backward"].flops == pytest.approx(6 * product, rel=0.01)
    assert work["forward"].bytes == pytest.approx((2 * 8 + 4) * 256 * length, rel=0.01)
    assert work["backward"].bytes == pytest.approx((4 * 8 + 8) * 256 * length, rel=0.01)


def test_work_of_the_delta_rule() -> None:
    """Bytes of what is given, returned and kept; FLOPs within a tenth of the reference's."""
    case = delta_rules(2, 64, 3, 128, 256, torch.float32)
    leaves = case.leaves("cpu")
    with FlopCounterMode(display=False) as counter:
        out, _ = case.call(*leaves, backend="reference")
    assert case.work["forward"].flops == pytest.approx(counter.get_total_flops(), rel=0.1)
    _, _, *kept = _empty(*leaves[:3], 32, True)
    given, moved = sum(x.nbytes for x in leaves), out.nbytes + sum(x.nbytes for x in kept)
    assert case.work["forward"].bytes == given + moved
    assert case.work["backward"].bytes == 2 * given + moved


def test_committed_numbers() -> None:
    """The depth read is twice as fast as stacked; the prediction says that it is one."""
    committed = read_json(COMMITTED)
    assert set(committed["cpu"]["ops"]) <= {case.op for case in ON_CPU}
    assert committed["cpu"]["ops"]["depth_read"]["reference"]["median"] >= 2.0
    assert committed["predicted, nothing timed"] == predicted()
    rows = row_ops.predicted(GPU_TOKENS, COPY_RATE)
    assert committed["row kernels predicted, nothing timed"] == rows


def test_bytes_of_rows() -> None:
    """As many states as a kernel's inputs and outputs: the least that it can move."""
    for name, least in row_ops.MOVED.items():
        case = CASES[name]
        inputs = case.inputs(ROWS, case.gpu_width, torch.bfloat16)
        with torch.no_grad():
            out = case.on("reference")(*inputs)
        into = sum(x.nbytes for x in inputs) // ROWS
        forward, backward = least(case.gpu_width, 2)
        assert forward == pytest.approx(into + out.nbytes // ROWS, rel=0.02), name
        assert backward == pytest.approx(2 * into + out.nbytes // ROWS, rel=0.02), name
