"""`lrt-lab prepare`: the corpus as token chunks, ready to train on."""

from __future__ import annotations

import time

from lrt_lab.console import console
from lrt_lab.data.cards import folder_of, valid_card

__all__ = ["prepare"]


def prepare(corpus: str = "shakespeare", length: int = 128) -> None:
    """Prepares a corpus: checks its hash, splits it by file and writes its token chunks.

    Training prepares what it needs by itself; this does it beforehand and says what is there. A
    corpus that is already prepared is only checked; one that was cut short or damaged is rebuilt.
    Chunks go to $LRT_DATA, or else to ./data.

    Args:
        corpus: shakespeare, or python (the running interpreter's standard library).
        length: Positions per training window.
    """
    start = time.perf_counter()
    folder = folder_of(corpus, length)
    card = valid_card(folder)
    done = "already prepared"
    if card is None:
        # Only writing needs litdata and torch.
        from lrt_lab.data.chunks import prepared

        folder, card = prepared(corpus, length)
        done = f"prepared in {time.perf_counter() - start:.1f} s"
    out = console()
    out.print(f"{corpus} {done}: {folder}")
    out.print(f"text sha256 {card['corpus_sha256']}")
    for part, about in card["splits"].items():
        out.print(
            f"{part}: {len(about['documents'])} documents, {about['bytes']} bytes, "
            f"{about['windows']} windows of {card['length'] + 1} tokens, "
            f"{about['tokens_lost']} tokens of the tail unused"
        )
