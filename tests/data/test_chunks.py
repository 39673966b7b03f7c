"""Prepared chunks: written once, recognised, rebuilt when damaged, safe under two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lrt_lab.console import console
from lrt_lab.data import cards, chunks, corpora
from lrt_lab.data.commands import prepare
from lrt_lab.errors import UserError

LENGTH = 64


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A corpus of 20 short documents, prepared into a folder of its own."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(20):
        (texts / f"{i:02}.txt").write_text(f"document {i} " * (20 + 7 * i))
    source = corpora.Corpus(
        name="tiny",
        about="for tests",
        files=lambda: {path.name: path for path in texts.iterdir()},
        sha256=None,
        remedy="none",
    )
    monkeypatch.setitem(corpora.CORPORA, "tiny", source)
    monkeypatch.setenv("LRT_DATA", str(tmp_path / "data"))
    corpora.corpus_sha256.cache_clear()
    return "tiny"


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_pack_starts_each_document_with_the_separator() -> None:
    packed = chunks.pack([b"ab", b"", b"\xff"])
    assert packed.dtype == np.int16
    assert packed.tolist() == [256, 97, 98, 256, 256, 255]


def test_stream_is_the_text_of_the_split(tiny: str) -> None:
    folder, card = chunks.prepared(tiny, LENGTH)
    documents = corpora.read(tiny)
    for part, titles in corpora.split(tiny, documents).items():
        expected = chunks.pack([documents[title] for title in titles])
        about = card["splits"][part]
        assert about["documents"] == titles
        assert about["tokens"] == len(expected) == about["bytes"] + len(titles)
        assert about["tokens_lost"] == len(expected) % (LENGTH + 1)
        kept = about["windows"] * (LENGTH + 1)
        assert chunks.stream(folder / part, LENGTH).tolist() == expected[:kept].tolist()


def test_long_splits_lose_nothing_between_chunks(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, card = chunks.prepared(tiny, LENGTH)
    whole = chunks.stream(folder / "train", LENGTH)
    monkeypatch.setattr(chunks, "CHUNK_TOKENS", 5 * (LENGTH + 1) + 3)
    other = folder.parent / "small-chunks"
    other.mkdir()
    small = chunks.build(tiny, LENGTH, other)
    files = small["splits"]["train"]["files"]
    assert len(files) - 1 == -(-small["splits"]["train"]["tokens"] // (5 * (LENGTH + 1)))
    assert torch.equal(chunks.stream(other / "train", LENGTH), whole)
    assert small["index_sha256"] != card["index_sha256"]


def test_preparing_twice_writes_once(tiny: str) -> None:
    folder, card = chunks.prepared(tiny, LENGTH)
    before = snapshot(folder)
    again, same = chunks.prepared(tiny, LENGTH)
    assert (again, same) == (folder, card)
    assert snapshot(folder) == before
    assert card["corpus_sha256"] == corpora.corpus_sha256(tiny)


def test_identity_does_not_depend_on_time_or_place(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, card = chunks.prepared(tiny, LENGTH)
    monkeypatch.setenv("LRT_DATA", str(tmp_path / "elsewhere"))
    _, other = chunks.prepared(tiny, LENGTH)
    assert other["index_sha256"] == card["index_sha256"]
    _, longer = chunks.prepared(tiny, LENGTH + 1)
    assert longer["index_sha256"] != card["index_sha256"]


DAMAGE = {
    "card-missing": lambda folder: (folder / "card.json").unlink(),
    "card-cut": lambda folder: (folder / "card.json").write_text('{"format": 1, "spl'),
    "card-of-older-format": lambda folder: (folder / "card.json").write_text('{"format": 0}'),
    "chunk-missing": lambda folder: (folder / "train" / "chunk-0-0.bin").unlink(),
    "chunk-cut": lambda folder: os.truncate(folder / "train" / "chunk-0-0.bin", 100),
    "index-missing": lambda folder: (folder / "test" / "index.json").unlink(),
    "index-damaged": lambda folder: (folder / "test" / "index.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_is_rebuilt(tiny: str, damage: str) -> None:
    folder, card = chunks.prepared(tiny, LENGTH)
    DAMAGE[damage](folder)
    assert cards.valid_card(folder) is None
    again, rebuilt = chunks.prepared(tiny, LENGTH)
    assert again == folder
    assert rebuilt["index_sha256"] == card["index_sha256"]
    assert cards.valid_card(folder) == rebuilt


def test_interrupted_build_leaves_no_cache(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = chunks._write

    def interrupted(packed: np.ndarray, window: int, folder: Path) -> None:
        if folder.name == "validation":
            raise KeyboardInterrupt
        write(packed, window, folder)

    monkeypatch.setattr(chunks, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        chunks.prepared(tiny, LENGTH)
    folder = cards.folder_of(tiny, LENGTH)
    assert not folder.exists()
    monkeypatch.setattr(chunks, "_write", write)
    chunks.prepared(tiny, LENGTH)
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        f".{folder.name}.lock",
        folder.name,
    ]


def test_processes_that_prepare_at_once_agree(tmp_path: Path) -> None:
    code = (
        "from lrt_lab.data.chunks import prepared;"
        "print(prepared('shakespeare', 96)[1]['index_sha256'])"
    )
    # HOME is empty so that anything that leaks into it is seen.
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "LRT_DATA": str(tmp_path / "data"),
        "HOME": str(home),
        "MPLCONFIGDIR": str(tmp_path),
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    # Exactly one line each: litdata prints nothing.
    assert printed[0] == printed[1] and printed[0].count("\n") == 1
    assert not list(home.iterdir())
    folder = next((tmp_path / "data").iterdir())
    assert sorted(path.name for path in folder.iterdir()) == [".length-96.lock", "length-96"]


@pytest.mark.parametrize(
    ("length", "message"), [(0, "length is 0"), (5000, "validation split .* has only")]
)
def test_impossible_length_is_refused(tiny: str, length: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        chunks.prepared(tiny, length)


def test_unwritable_root_is_one_clear_line(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LRT_DATA", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set LRT_DATA to a writable folder"):
        chunks.prepared(tiny, LENGTH)


def test_prepare_says_what_is_there(tiny: str) -> None:
    with console().capture() as captured:
        prepare(tiny, LENGTH)
    first = captured.get()
    assert first.startswith("tiny prepared in ")
    with console().capture() as captured:
        prepare(tiny, LENGTH)
    lines = captured.get().splitlines()
    assert lines[0].startswith("tiny already prepared: ")
    assert lines[1] == f"text sha256 {corpora.corpus_sha256(tiny)}"
    assert [line.split(":")[0] for line in lines[2:]] == ["train", "validation", "test"]
    assert "18 documents" in lines[2]
    card = json.loads((cards.folder_of(tiny, LENGTH) / "card.json").read_text())
    assert f"{card['splits']['train']['windows']} windows of 65 tokens" in lines[2]
