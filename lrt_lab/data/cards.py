"""The card of a prepared corpus: what was written, from which text, and whether it is still there.

A prepared corpus is the folder `<root>/<corpus>-<hash10>/length-<n>/` with one folder of chunks per
split and `card.json`, which is written last. Nothing here needs torch or litdata, so a corpus that
is ready is recognised at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lrt_lab.data.corpora import corpus_sha256
from lrt_lab.errors import UserError

__all__ = ["Card", "data_root", "folder_of", "index_sha256", "ready", "valid_card"]

Card = dict[str, Any]

# Raised whenever the layout of tokens or chunks changes, so that older folders are rebuilt.
FORMAT = 1


def data_root() -> Path:
    """Where prepared corpora live: $LRT_DATA, or else `data` in the current folder."""
    return Path(os.environ.get("LRT_DATA") or "data").resolve()


def folder_of(corpus: str, length: int) -> Path:
    """The folder of a corpus prepared for windows of `length` predictions."""
    if length < 1:
        raise UserError(f"length is {length}: give the number of positions per window, at least 1.")
    return data_root() / f"{corpus}-{corpus_sha256(corpus)[:10]}" / f"length-{length}"


def ready(corpus: str, length: int, build: Callable[[Path], Card]) -> tuple[Path, Card]:
    """The prepared folder and its card; builds it first where it is missing, cut short or damaged.

    `build(folder)` fills an empty sibling folder and returns the card. The card is added last and
    the folder is then renamed, so the final name never holds half a corpus. A kernel lock makes a
    second process wait and then reuse.
    """
    folder = folder_of(corpus, length)
    card = valid_card(folder)
    if card is not None:
        return folder, card
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"Cannot write prepared text to {folder.parent} ({error.strerror}): "
            "set LRT_DATA to a writable folder."
        ) from error
    with _locked(folder.with_name(f".{folder.name}.lock")):
        card = valid_card(folder)
        if card is None:
            card = _rebuild(folder, build)
    return folder, card


def valid_card(folder: Path) -> Card | None:
    """The folder's card if every file is there with the bytes that the card names, else None."""
    try:
        card: Card = json.loads((folder / "card.json").read_text())
        if card["format"] != FORMAT:
            return None
        for part, about in card["splits"].items():
            for name, expected in about["files"].items():
                if hashlib.sha256((folder / part / name).read_bytes()).hexdigest() != expected:
                    return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return card


def index_sha256(card: Card) -> str:
    """The identity of the chunks: their names and bytes; litdata's index also has a time stamp."""
    chunks = {
        part: {name: digest for name, digest in about["files"].items() if name != "index.json"}
        for part, about in card["splits"].items()
    }
    canonical = json.dumps({"length": card["length"], "chunks": chunks}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _rebuild(folder: Path, build: Callable[[Path], Card]) -> Card:
    # Leftovers of a process that was killed while it built or swapped: the lock proves it dead.
    fresh, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir()
    card = {"format": FORMAT, **build(fresh)}
    (fresh / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)
    return card


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
