"""The dimensions of a decoder, as every part's ``setup`` sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder.

    Attributes:
        width: features d of a hidden state.
        blocks: number of blocks L; a block is two units, a token mixer and an FFN.
        vocab: number of token ids V.
        kv: for each block the (heads, features per head) of its keys and values.
    """

    width: int
    blocks: int
    vocab: int
    kv: tuple[tuple[int, int], ...] = ()

    @property
    def units(self) -> int:
        """Number of units U = 2 L; unit 2l is block l's mixer, unit 2l+1 its FFN."""
        return 2 * self.blocks
