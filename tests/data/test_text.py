"""TextData: same seed, same batches; the loader resumes exactly; evaluation slices are fixed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from litdata import StreamingDataLoader
from torch import Tensor

from lrt_lab.data.chunks import SEPARATOR, prepared, stream
from lrt_lab.data.slices import document_ids, windows
from lrt_lab.data.text import TextData
from lrt_lab.errors import UserError

LENGTH = 128


def data(**options: object) -> TextData:
    return TextData(**{"length": LENGTH, "batch_size": 16, "seed": 3, **options})


def batches(source: TextData | Iterator, count: int) -> list[Tensor]:
    running = iter(source.train_dataloader()) if isinstance(source, TextData) else source
    return [batch["tokens"] for batch in islice(running, count)]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def test_batches_are_windows_with_document_ids() -> None:
    batch = next(iter(data().train_dataloader()))
    assert set(batch) == {"tokens", "document"}
    assert batch["tokens"].shape == batch["document"].shape == (16, LENGTH + 1)
    assert batch["tokens"].dtype == batch["document"].dtype == torch.int64
    assert int(batch["tokens"].min()) >= 0 and int(batch["tokens"].max()) <= SEPARATOR


def test_document_ids_count_the_separators_so_far() -> None:
    tokens = torch.tensor([[7, 256, 7, 256, 256, 7], [256, 1, 2, 3, 4, 5]])
    assert document_ids(tokens, SEPARATOR).tolist() == [[0, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1]]


def test_same_seed_same_batches_whatever_else_draws() -> None:
    first = batches(data(), 20)
    torch.manual_seed(123)
    torch.rand(7)
    assert equal(first, batches(data(), 20))
    assert not equal(first, batches(data(seed=4), 20))


def test_an_epoch_reads_every_window_once(small: TextData) -> None:
    loader = small.train_dataloader()
    folder, card = prepared(small.corpus, small.length)
    text = stream(folder / "train", small.length)
    there = {tuple(row.tolist()) for row in text.view(-1, small.length + 1)}
    for _ in range(2):
        rows = [tuple(row.tolist()) for batch in batches(iter(loader), 10**6) for row in batch]
        assert len(rows) == len(loader) * small.batch_size
        assert card["splits"]["train"]["windows"] - len(rows) < small.batch_size
        assert set(rows) <= there


def test_shuffle_is_uniform_over_the_split() -> None:
    folder, _ = prepared("shakespeare", LENGTH)
    text = stream(folder / "train", LENGTH).view(-1, LENGTH + 1)
    place = {row.numpy().tobytes(): i for i, row in enumerate(text)}
    rows = torch.cat(batches(data(), 60)).short()
    places = torch.tensor([place[row.numpy().tobytes()] for row in rows]) / len(place)
    # The mean of 960 uniform draws has standard error .0093; two draws lie 1/3 apart on average.
    assert abs(float(places.mean()) - 0.5) < 0.05
    assert abs(float(places.diff().abs().mean()) - 1 / 3) < 0.05


@pytest.fixture
def small() -> TextData:
    """Windows so long that an epoch is a handful of batches."""
    return data(length=8192, batch_size=32)


def resumed(loader: StreamingDataLoader, small: TextData) -> StreamingDataLoader:
    state = loader.state_dict()
    other = small.train_dataloader()
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("cut", [1, 5, 9], ids=lambda cut: f"after-{cut}-batches")
def test_loader_resumes_mid_epoch(small: TextData, cut: int) -> None:
    loader = small.train_dataloader()
    running = iter(loader)
    batches(running, cut)
    again = resumed(loader, small)
    rest = batches(running, 10**6)
    assert rest and equal(rest, batches(iter(again), 10**6))
    # The next epoch too.
    assert equal(batches(iter(loader), 10**6), batches(iter(again), 10**6))


@pytest.mark.parametrize("exhausted", [True, False], ids=["exhausted", "at-last-batch"])
def test_loader_resumes_at_the_end_of_an_epoch(small: TextData, exhausted: bool) -> None:
    loader = small.train_dataloader()
    running = iter(loader)
    first = batches(running, len(loader))
    if exhausted:
        assert not batches(running, 1)
    again = resumed(loader, small)
    second = batches(iter(small_epoch(small, 2)), 10**6)
    assert not equal(first, second)
    assert equal(second, batches(iter(again), 10**6))


def small_epoch(small: TextData, epoch: int) -> StreamingDataLoader:
    """A loader that was never cut, about to start that epoch."""
    loader = small.train_dataloader()
    for _ in range(epoch - 1):
        batches(iter(loader), 10**6)
    return loader


def test_slices_are_fixed_and_hashed() -> None:
    first, again = data().slices("test", 32768), data(seed=9, batch_size=2).slices("test", 32768)
    assert first.sha256 == again.sha256
    assert torch.equal(first.batch["tokens"], again.batch["tokens"])
    assert first.batch["tokens"].shape == first.batch["document"].shape == (256, LENGTH + 1)
    assert first.positions == 32768
    assert first.bytes == int((first.batch["tokens"][:, 1:] != SEPARATOR).sum()) <= first.positions
    assert torch.equal(first.batch["document"], document_ids(first.batch["tokens"], SEPARATOR))
    other = data().slices("validation", 32768)
    assert other.sha256 != first.sha256 != data().slices("test", 16384).sha256


def test_the_whole_split_is_scored_once() -> None:
    whole = data().slices("test", None)
    folder, card = prepared("shakespeare", LENGTH)
    text = stream(folder / "test", LENGTH).long()
    assert torch.equal(whole.batch["tokens"][:, 1:].flatten(), text[1 : 1 + whole.positions])
    assert len(text) - 1 - whole.positions < LENGTH
    separators = len(card["splits"]["test"]["documents"]) - 1
    assert whole.positions - whole.bytes == separators
    assert data().slices("test", 10**9).sha256 == whole.sha256


def test_a_small_slice_spreads_over_the_split() -> None:
    # 1001 tokens hold 100 windows of 10; four of them start at 0, 250, 500 and 750.
    part = windows(torch.arange(1001) % 256, length=10, size=40, separator=SEPARATOR)
    assert part.batch["tokens"].shape == (4, 11)
    assert part.batch["tokens"][:, 0].tolist() == [0, 250, 500 % 256, 750 % 256]
    assert windows(torch.arange(101), length=10, size=3, separator=SEPARATOR).batch[
        "tokens"
    ].shape == (
        1,
        11,
    )


def test_identity_names_text_and_chunks() -> None:
    identity = data().identity()
    assert list(identity) == ["corpus", "corpus_sha256", "index_sha256", "training_tokens"]
    assert identity["training_tokens"] == data().card["splits"]["train"]["tokens"]
    assert identity["corpus"] == "shakespeare"
    assert identity == data(seed=8).identity()
    assert identity != data(length=64).identity()


def test_batches_survive_a_rebuilt_cache() -> None:
    first = batches(data(length=200), 3)
    folder, _ = prepared("shakespeare", 200)
    shutil.rmtree(Path(folder))
    assert equal(first, batches(data(length=200), 3))


@pytest.mark.parametrize(
    "options",
    [
        {"length": 0},
        {"batch_size": 0},
        {"workers": -1},
        {"seed": -1},
        {"test_bytes": 0},
        {"validation_bytes": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(UserError, match=f"data.{name} is {value}"):
        data(**options)


def test_batch_larger_than_the_split_is_refused(small: TextData) -> None:
    with pytest.raises(
        UserError, match=r"batch_size is 100000, but the training split has only \d+ windows"
    ):
        data(length=small.length, batch_size=100_000).train_dataloader()


def test_training_windows_are_not_slices() -> None:
    with pytest.raises(UserError, match="split is 'train'"):
        data().slices("train", None)
