"""The data protocol: what training, evaluation and pricing ask of data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from lrt_lab.data.batch import Batch
from lrt_lab.data.slices import EvaluationSlice
from lrt_lab.errors import UserError

__all__ = ["Data", "at_least", "held_out"]


class Data(ABC):
    """Training batches and evaluation slices; building one reads and writes nothing.

    Attributes:
        length: positions T per row.
        batch_size: rows per training batch.
        seed: decides the training batches, and nothing else.
    """

    length: int
    batch_size: int
    seed: int

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of token ids, those of the targets included."""

    def prepare_data(self) -> None:  # noqa: B027
        """Fetch or make what is read, once; nothing for what is generated."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What was read or generated, for the record of a run."""

    @abstractmethod
    def train_dataloader(self) -> Iterable[Batch]:
        """Training batches, with a ``state_dict`` from which they go on exactly."""

    @abstractmethod
    def size(self, split: str) -> int | None:
        """Positions of the slice on which runs are judged; None is the whole split."""

    @abstractmethod
    def slices(self, split: str, size: int | None) -> EvaluationSlice:
        """The fixed rows of a held-out split, the same for every seed and cell.

        Args:
            split: ``test`` or ``validation``.
            size: at most so many positions, in whole rows, but at least one row; None is all.
        """

    def longer(self, split: str) -> EvaluationSlice | None:
        """Rows beyond the trained length, twice it; None where there are none."""
        return None


def at_least(options: Mapping[str, tuple[int, int]]) -> None:
    """Refuse the first of the options, each a value and its smallest one, that is too small."""
    for name, (value, least) in options.items():
        if value < least:
            raise UserError(f"data.{name} is {value}: give a whole number of at least {least}.")


def held_out(split: str) -> None:
    """Refuse a split that slices are not cut from."""
    if split not in ("test", "validation"):
        raise UserError(f"split is {split!r}: slices come from 'test' or 'validation'.")
