"""Depth diagnostics: known truths of three backbones, and a run that records them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lrt_lab.backbones import MHC, AttentionResiduals, HyperConnections, MUDDFormer, PreNorm
from lrt_lab.data.corpora import CORPORA
from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import LRT
from lrt_lab.store import read_json, read_jsonl
from lrt_lab.training.depth import (
    composite_gains,
    depth_kernel,
    diagnose,
    observe,
    pairwise_cosine,
    stochastic_errors,
)
from lrt_lab.training.run import train
from tests.support.models import BLOCKS, documents, randomise, small_decoder, tokens
from tests.support.registry import BACKBONES, Case, plain
from tests.training import tiny

WIDTH, UNITS = 16, 2 * BLOCKS
#: Numbers of a record that a clock gives.
CLOCK = ("seconds", "train_seconds", "tokens_per_second", "eval_seconds", "throughput")


def diagnosed(decoder: Decoder) -> dict[str, Any]:
    ids = tokens(9)
    return diagnose(decoder, Frame(ids[:, :-1], documents(3, 5)), ids[:, 1:])


def near(actual: Any, expected: Any) -> None:
    assert torch.allclose(torch.as_tensor(actual).double(), torch.as_tensor(expected).double())


class TestPreNorm:
    def test_everything_reaches_every_unit_once(self) -> None:
        row = diagnosed(small_decoder(PreNorm(), width=WIDTH))
        assert [len(reads) for reads in row["kernel"]] == list(range(1, UNITS + 2))
        for reads in row["kernel"]:
            near(reads, [1.0] * len(reads))
        assert max(row["residual"]) < 1e-12

    def test_outputs_that_are_still_zero_reach_nothing(self) -> None:
        row = diagnosed(Decoder(WIDTH, 2, 40))
        assert row["kernel"][-1] == pytest.approx([1.0, 0.0, 0.0, 0.0, 0.0])
        near(row["state"], [1.0] * 5)

    def test_the_gradient_is_that_of_the_state_behind_the_unit(self) -> None:
        decoder, ids = small_decoder(PreNorm(), width=WIDTH), tokens(9)
        passage = observe(decoder, Frame(ids[:, :-1]), ids[:, 1:])
        states = [passage.states[unit].x for unit in range(1, UNITS + 1)]
        truth = [g.norm() for g in torch.autograd.grad(passage.loss, states)]
        near(diagnose(decoder, Frame(ids[:, :-1]), ids[:, 1:])["gradient"], truth)


class TestAttentionResiduals:
    @pytest.mark.parametrize("heads", [1, 2])
    def test_with_zero_queries_every_source_weighs_the_same(self, heads: int) -> None:
        decoder = Decoder(WIDTH, BLOCKS, 40, AttentionResiduals(heads=heads)).double()
        randomise(decoder)
        torch.nn.init.zeros_(decoder.backbone.query)
        row = diagnosed(decoder)
        for key in ("weights", "kernel"):
            for unit, weights in enumerate(row[key]):
                near(weights if key == "kernel" else weights[0], [1 / (unit + 1)] * (unit + 1))
        assert [len(weights) for weights in row["weights"]] == [heads] * (UNITS + 1)

    def test_with_one_head_the_weights_are_the_kernel(self) -> None:
        row = diagnosed(small_decoder(AttentionResiduals(), width=WIDTH))
        near(row["weights"][-1][0], row["kernel"][-1])
        assert max(row["residual"]) < 1e-12

    def test_heads_are_no_mixture_with_one_number_per_source(self) -> None:
        row = diagnosed(small_decoder(AttentionResiduals(heads=2), width=WIDTH))
        assert row["residual"][-1] > 1e-3

    def test_a_block_weighs_its_units_alike(self) -> None:
        row = diagnosed(small_decoder(AttentionResiduals(block_size=3), width=WIDTH))
        weights = row["weights"][-1][0]
        near([weights[0]] + [weights[1 + unit // 3] for unit in range(UNITS)], row["kernel"][-1])


class TestStreams:
    def test_errors_and_gains_are_those_of_the_matrices(self) -> None:
        decoder, ids = small_decoder(MHC(iterations=2), width=WIDTH), tokens(9)
        frame = Frame(ids[:, :-1])
        row = diagnose(decoder, frame, ids[:, 1:])
        states = observe(decoder, frame, ids[:, 1:]).states
        product = torch.eye(4, dtype=torch.double)
        for unit in range(UNITS):
            carry = decoder.backbone.coefficients(states[unit].x, unit).carry.detach()
            product = product @ carry
            near(row["arriving"][unit], (carry.sum(-2) - 1).abs().max())
            near(row["leaving"][unit], (carry.sum(-1) - 1).abs().max())
            near(row["forward"][unit], product.sum(-2).max())
            near(row["backward"][unit], product.sum(-1).max())
        # Normalised last, what arrives is one up to eps; two iterations leave the rest far off.
        assert max(row["arriving"]) < 1e-5 < 1e-3 < max(row["leaving"])
        assert len(row["cosine"]) == UNITS + 1
        assert row["cosine"][0] == pytest.approx(1.0)

    def test_nothing_bounds_hyper_connections(self) -> None:
        fresh = diagnosed(Decoder(WIDTH, BLOCKS, 40, HyperConnections()))
        assert fresh["forward"] == fresh["backward"] == [1.0] * UNITS
        decoder = small_decoder(HyperConnections(dynamic=False), width=WIDTH)
        for connection in decoder.backbone.connections:
            connection.carry.data = 2 * torch.eye(4, dtype=torch.double)
        assert diagnosed(decoder)["forward"][-1] == 2.0**UNITS

    def test_an_axis_each(self) -> None:
        # Source 0 gives everything to destination 1, source 1 gives nothing.
        carry = torch.tensor([[0.0, 3.0], [0.0, 0.5]])
        assert stochastic_errors(carry) == (2.5, 2.0)
        assert composite_gains([carry]) == ([3.5], [3.0])

    def test_cosine(self) -> None:
        streams = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]])
        assert pairwise_cosine(streams) == pytest.approx(1 / 3)


def test_static_weights_are_the_prior() -> None:
    decoder = small_decoder(MUDDFormer(dynamic=False), width=WIDTH)
    row = diagnosed(decoder)
    near(row["weights"][4], decoder.backbone.aggregates["2"].prior)
    # Inside a block nothing is weighed, and block 0 reads the embedding alone.
    assert [unit for unit, weights in enumerate(row["weights"]) if weights] == [2, 4, 6, 8]


def test_a_kernel_of_what_no_mixture_gives() -> None:
    sources = [torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])]
    coefficients, residual = depth_kernel(torch.tensor([[3.0, 4.0, 12.0]]), sources)
    near(coefficients, [[3.0, 2.0]])
    assert residual == pytest.approx(12 / 13)
    _, broken = depth_kernel(torch.tensor([[torch.nan, 0.0, 0.0]]), sources)
    assert broken != broken


@pytest.mark.parametrize("route", [None, LRT], ids=["none", "LRT"])
@pytest.mark.parametrize("backbone", [case for case in BACKBONES if plain(case)], ids=str)
def test_every_backbone_is_diagnosed_and_left_alone(backbone: Case, route: Any) -> None:
    decoder = small_decoder(backbone(), route and route(), width=WIDTH)
    before = torch.get_rng_state()
    row = diagnosed(decoder)
    json.dumps(row, allow_nan=False)
    assert len(row["state"]) == len(row["kernel"]) == len(row["residual"]) == UNITS + 1
    assert len(row["gradient"]) == UNITS
    assert all(p.grad is None for p in decoder.parameters())
    hooks = (m._forward_hooks or m._forward_pre_hooks for m in decoder.modules())
    assert not any(hooks) and torch.equal(before, torch.get_rng_state())


class StopAt(Callback):
    """Ends a run with an error after so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise InterruptedError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("depth")
    tiny.write_corpus(root / "corpus")
    tiny.register(root / "corpus")
    options = tiny.config()["recording"]

    def run(name: str, every: int, *callbacks: Callback) -> Path:
        config = tiny.config(recording={**options, "depth_every": every})
        train(config, root / name, {"cell": "tiny", "seed": 5}, callbacks=callbacks)
        return root / name

    yield run
    del CORPORA["tiny"]


@pytest.fixture(scope="module")
def whole(runs: Any) -> Path:
    return runs("whole", 10)


def test_rows_at_the_start_every_so_often_and_at_the_end(whole: Path) -> None:
    rows = read_jsonl(whole / "depth.jsonl")
    assert [row["step"] for row in rows] == [0, 10, 20, 30]
    assert rows[0]["weights"] != rows[-1]["weights"]


def test_training_does_not_notice(whole: Path, runs: Any) -> None:
    plain = runs("plain", 0)
    assert not (plain / "depth.jsonl").exists()
    one, other = (
        [{k: v for k, v in row.items() if k not in CLOCK} for row in rows]
        for rows in (
            [*read_jsonl(folder / "metrics.jsonl"), read_json(folder / "final.json")]
            for folder in (whole, plain)
        )
    )
    assert one == other
    # It is no part of what a run is.
    assert (
        read_json(whole / "meta.json")["config_hash"]
        == (read_json(plain / "meta.json")["config_hash"])
    )


def test_a_cut_run_leaves_the_same_rows(whole: Path, runs: Any) -> None:
    # Cut behind a row that the checkpoint, at step 20, does not know.
    with pytest.raises(InterruptedError):
        runs("cut", 3, StopAt(23))
    folder = runs("cut", 3)
    rows = read_jsonl(folder / "depth.jsonl")
    assert [row["step"] for row in rows] == list(range(0, 31, 3))
    assert rows[-1] == read_jsonl(whole / "depth.jsonl")[-1]


def test_tensorboard_shows_them(whole: Path) -> None:
    events = EventAccumulator(str(next(whole.rglob("events.out*")).parent)).Reload()
    tags = events.Tags()
    assert {"depth/state/00", "depth/gradient/03", "depth/residual/04"} <= set(tags["scalars"])
    assert set(tags["images"]) == {"depth/kernel", "depth/weights"}
