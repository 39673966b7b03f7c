"""Several processes, a share of the rows each, take the steps that one takes with all of them.

Batches with one pass leave the route's own weights without a gradient, on every rank alike: the
optimizer then neither steps nor decays them.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame
from lrt_lab.routes import FullBandwidth
from lrt_lab.schedules import Clock, PassMix
from lrt_lab.training.loss import training_loss
from lrt_lab.training.optimizer import AdamW
from tests.support.compare import SAME, error
from tests.support.models import small_decoder, tokens

RANKS, STEPS = 2, 6
#: Jitter would be drawn for the rows of each rank.
MIX = PassMix([0.5, 0.25, 0.25], jitter=0.0, prefixes=False)


class Loss(nn.Module):
    """The training loss of a batch at a step, as a module whose forward can be distributed."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: Tensor, step: int) -> Tensor:
        frame, clock = Frame(ids[:, :-1]), Clock(step)
        return training_loss(self.decoder, MIX, frame, ids[:, 1:], clock)


def trained(rank: int, ranks: int, wrap: Any = lambda loss: loss) -> dict[str, Any]:
    """Weights after some steps on every ``ranks``-th row; when the route had gradients."""
    decoder = small_decoder(route=FullBandwidth(), blocks=2).train()
    loss, heard = wrap(Loss(decoder)), []
    optimizer = AdamW(weight_decay=0.1).build(decoder)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(tokens(9, rows=4, seed=step)[rank::ranks], step).backward()
        heard.append(decoder.route.value.grad is not None)
        optimizer.step()
    return {"weights": decoder.state_dict(), "heard": heard}


def work(rank: int, folder: Path) -> None:
    """One rank: train, and leave what came out."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found = trained(
        rank, RANKS, lambda loss: DistributedDataParallel(loss, find_unused_parameters=True)
    )
    torch.save(found, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(rank, folder)) for rank in range(RANKS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * RANKS
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def test_two_processes_end_where_one_does(ranks: list[dict[str, Any]]) -> None:
    alone = trained(0, 1)
    for found in ranks:
        for name, weight in alone["weights"].items():
            assert error(found["weights"][name], weight) <= SAME, name


def test_pass_counts_agree_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    counts = [MIX.count(Clock(step)) for step in range(STEPS)]
    assert 1 in counts and max(counts) > 1
    for found in ranks:
        assert found["heard"] == [count > 1 for count in counts]


def test_a_batch_of_one_pass_leaves_the_route_alone() -> None:
    decoder = small_decoder(route=FullBandwidth(), blocks=2).train()
    optimizer = AdamW(weight_decay=0.1).build(decoder)
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    step = next(step for step in range(STEPS) if MIX.count(Clock(step)) == 1)
    Loss(decoder)(tokens(9), step).backward()
    optimizer.step()
    still = {n for n, p in decoder.named_parameters() if torch.equal(p.detach(), before[n])}
    assert still == {"route.value", "route.gate"}
