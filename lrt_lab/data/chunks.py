"""Tokens on disk: documents packed into litdata's optimized chunks, and read back as one stream.

Tokens are bytes, 0..255, and the separator 256, which *starts* each document: a split is
`256 d d d ... 256 d d d ...` with its documents in order of file name. A chunk holds a whole number
of windows of `length + 1` tokens, so only the tail of a split, less than one window, is never read;
the card reports it.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from litdata import StreamingDataset, TokensLoader
from litdata import __version__ as litdata_version
from litdata.streaming import Cache

from lrt_lab.data import corpora
from lrt_lab.data.cards import Card, index_sha256, ready
from lrt_lab.errors import UserError

# litdata wraps its read-only memory map in a tensor, warns about that, and copies it at once.
warnings.filterwarnings("ignore", message="The given buffer is not writable", module="litdata")

__all__ = ["SEPARATOR", "VOCABULARY", "pack", "prepared", "stream", "tokens"]

SEPARATOR = 256
VOCABULARY = 257

# 64 MiB of int16, litdata's own default. A corpus that fits in one chunk is shuffled uniformly,
# since litdata permutes the windows within a chunk, and in the same way on every file system.
CHUNK_TOKENS = 2**25


def pack(documents: list[bytes]) -> np.ndarray:
    """All documents as one int16 stream, each started by the separator."""
    parts = [np.zeros(0, dtype=np.int16)]
    for text in documents:
        parts += [np.array([SEPARATOR], dtype=np.int16), np.frombuffer(text, dtype=np.uint8)]
    return np.concatenate(parts).astype(np.int16)


def prepared(corpus: str, length: int) -> tuple[Path, Card]:
    """The folder and card of a corpus for windows of `length` predictions, prepared if need be."""
    return ready(corpus, length, lambda folder: build(corpus, length, folder))


def build(corpus: str, length: int, folder: Path) -> Card:
    """Writes the chunks of every split into `folder` and returns the card.

    litdata's writer is used in this process: `litdata.optimize` with one worker writes the same
    bytes, but starts a process that imports torch anew, which takes forty times as long here.
    """
    documents = corpora.read(corpus)
    splits: dict[str, Card] = {}
    for part, titles in corpora.split(corpus, documents).items():
        packed = pack([documents[title] for title in titles])
        if len(packed) <= length:
            raise UserError(
                f"length is {length}, but the {part} split of corpus {corpus!r} has only "
                f"{len(packed)} tokens: choose a shorter length or a larger corpus."
            )
        _write(packed, length + 1, folder / part)
        splits[part] = {
            "documents": titles,
            "bytes": int((packed != SEPARATOR).sum()),
            "tokens": len(packed),
            "windows": len(packed) // (length + 1),
            "tokens_lost": len(packed) % (length + 1),
            "files": {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted((folder / part).iterdir())
            },
        }
    card: Card = {
        "corpus": corpus,
        "corpus_sha256": corpora.corpus_sha256(corpus),
        "length": length,
        "vocabulary": VOCABULARY,
        "separator": SEPARATOR,
        "dtype": "int16",
        "versions": {"litdata": litdata_version, "python": sys.version.split()[0]},
        "splits": splits,
    }
    return {**card, "index_sha256": index_sha256(card)}


def tokens(folder: Path, length: int, **options: Any) -> StreamingDataset:
    """litdata's streaming dataset over one split: items are int16 windows (length + 1,)."""
    return StreamingDataset(
        str(folder),
        item_loader=TokensLoader(block_size=length + 1),
        # Permute all windows of a chunk: the default keeps blocks of 256 neighbours together.
        item_shuffle_window="full",
        **options,
    )


def stream(folder: Path, length: int) -> torch.Tensor:
    """All tokens of a split but its tail, in order of the text: int16 (N,)."""
    return torch.cat(list(tokens(folder, length, shuffle=False)))


def _write(packed: np.ndarray, window: int, folder: Path) -> None:
    # An item as long as a chunk makes chunks of equal length, however long the documents are.
    size = max(1, CHUNK_TOKENS // window) * window
    writer = Cache(str(folder), chunk_size=size, item_loader=TokensLoader(window))
    for index, start in enumerate(range(0, len(packed), size)):
        writer[index] = torch.from_numpy(packed[start : start + size].copy())
    writer.done()
    writer.merge()
