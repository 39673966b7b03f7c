"""Tasks: targets against their closed forms, disjoint splits, the same batches, exact resume."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

import lrt_lab.data.tasks as tasks
from lrt_lab.data.batch import framed
from lrt_lab.data.tasks import Parity, SwapsS5, Task
from lrt_lab.data.tasks.base import split_of
from lrt_lab.data.tasks.swaps_s5 import states
from lrt_lab.errors import UserError

TASKS = [getattr(tasks, name) for name in tasks.__all__ if name != "Task"]
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)


def equal(mine: dict, theirs: dict) -> bool:
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_a_swap_acts_on_the_permutation_so_far() -> None:
    batch = SwapsS5(length=12).batch(0)
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        things = [0, 1, 2, 3, 4]
        for token, target in zip(tokens, targets, strict=True):
            i = token - 120
            things[i], things[i + 1] = things[i + 1], things[i]
            assert states()[target] == tuple(things)


def test_every_state_of_s5_is_reached() -> None:
    assert len(set(states())) == 120
    # The longest element needs ten adjacent transpositions, and half the states are even.
    targets = SwapsS5(length=31).batch(0)["targets"]
    assert len(set(targets[:, -1].tolist() + targets[:, -2].tolist())) > 60
    assert SwapsS5().vocabulary == 124


def test_parity_is_the_cumulative_xor() -> None:
    batch = Parity(length=9).batch(3)
    for bits, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        parity = 0
        for bit, target in zip(bits, targets, strict=True):
            parity ^= bit
            assert target == parity


@each_task
def test_a_batch_depends_on_the_seed_and_its_number_alone(task: type[Task]) -> None:
    first = list(islice(task(seed=2).train_dataloader(), 3))
    torch.manual_seed(7)
    assert all(map(equal, first, islice(task(seed=2).train_dataloader(), 3)))
    assert not equal(first[0], first[1])
    assert not equal(first[0], task(seed=3).batch(0))
    assert not equal(first[0], task(seed=2).batch(0, rank=1))


@each_task
def test_batches_go_on_from_their_state(task: type[Task]) -> None:
    loader = task().train_dataloader()
    list(islice(loader, 4))
    again = task().train_dataloader()
    again.load_state_dict(loader.state_dict())
    assert all(map(equal, islice(again, 2), islice(task().train_dataloader(), 4, 6)))


@each_task
def test_splits_share_no_row(task: type[Task]) -> None:
    data = task()
    for index in range(3):
        assert (split_of(data.batch(index)["tokens"]) == 0).all()
    assert (split_of(data.slices("validation", None).batch["tokens"]) == 1).all()
    assert (split_of(data.slices("test", None).batch["tokens"]) == 2).all()


@each_task
def test_slices_are_fixed_and_hashed(task: type[Task]) -> None:
    data, other = task(seed=1), task(seed=9, batch_size=3)
    part = data.slices("test", None)
    assert part.sha256 == other.slices("test", None).sha256
    assert part.sha256 != data.slices("validation", None).sha256
    assert len(part) == 512 and part.positions == data.size("test")
    few = data.slices("test", 10 * data.length)
    assert len(few) == 10 and equal(few.batch, part.rows(0, 10))
    longer = data.longer("test")
    assert len(longer) == 512 and longer.positions == 2 * part.positions


@each_task
def test_tokens_and_targets_are_in_the_vocabulary(task: type[Task]) -> None:
    data = task()
    for part in (data.batch(0), data.longer("test").batch):
        frame, targets = framed(part)
        assert targets.shape == frame.ids.shape and frame.document is None
        predicted = targets[targets >= 0]
        assert len(predicted) >= len(targets)
        assert int(frame.ids.min()) >= 0 and int(frame.ids.max()) < data.vocabulary
        assert int(predicted.max()) < data.vocabulary


def test_a_split_that_cannot_be() -> None:
    with pytest.raises(UserError, match="too few rows of this length for a"):
        # Two rows are not enough for three splits.
        for split in ("train", "validation", "test"):
            Parity().rows(split, 1, 1, torch.Generator())
    with pytest.raises(UserError, match="split is 'train'"):
        Parity().slices("train", None)
    with pytest.raises(UserError, match=r"data\.test_rows is 0"):
        SwapsS5(test_rows=0)
