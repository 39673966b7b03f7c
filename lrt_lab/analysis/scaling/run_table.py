"""The runs that a scaling law is fitted to, and which of them may enter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from lrt_lab.errors import UserError

# beyond about so many epochs a repeated token is worth clearly less than a new one
MOST_EPOCHS = 4.0


@dataclass(frozen=True)
class Runs:
    """Finished runs, one entry each, all (n,).

    Attributes:
        size: N, parameters used in matrix products.
        tokens: D, training tokens seen.
        loss: final loss, nats per token or any other positive unit.
        passes: K, passes over all positions.
        recurrent: share of N that every pass uses again (N_rec / N).
        model: 0 for the baseline, 1, 2, ... for others.
        compute: training FLOPs.
        unique: tokens of the corpus; infinite where unknown.
        cell: runs of one cell are resampled together.
    """

    size: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    passes: np.ndarray
    recurrent: np.ndarray
    model: np.ndarray
    compute: np.ndarray
    unique: np.ndarray
    cell: np.ndarray

    def __len__(self) -> int:
        return len(self.size)

    def take(self, which: np.ndarray) -> Runs:
        """The runs of a mask or of positions."""
        return Runs(*(getattr(self, f.name)[which] for f in fields(self)))

    @property
    def epochs(self) -> np.ndarray:
        """How often each run saw its corpus; 0 where the corpus is unknown."""
        return self.tokens / self.unique

    def names(self) -> np.ndarray:
        """Sizes as strata of a bootstrap."""
        return np.unique(self.size, return_inverse=True)[1]


def runs(
    size: ArrayLike,
    tokens: ArrayLike,
    loss: ArrayLike,
    *,
    passes: ArrayLike = 1.0,
    recurrent: ArrayLike = 1.0,
    model: ArrayLike = 0,
    compute: ArrayLike | None = None,
    unique: ArrayLike = np.inf,
    cell: Sequence[object] | None = None,
) -> Runs:
    """Runs from columns; a single value stands for all runs.

    Args:
        size, tokens, loss, passes, recurrent, model, unique: see `Runs`.
        compute: training FLOPs (default: 6 N D K).
        cell: a name per run (default: every run is its own cell).

    Raises:
        UserError: a size, token count, loss or pass count that is not a positive number.
    """
    n, d, y = (np.atleast_1d(np.asarray(v, dtype=float)) for v in (size, tokens, loss))
    k, f, u = (
        np.broadcast_to(np.asarray(v, dtype=float), n.shape) for v in (passes, recurrent, unique)
    )
    for name, values in {"size": n, "tokens": d, "loss": y, "passes": k, "corpus": u}.items():
        wrong = ~(values > 0)
        if name != "corpus":
            wrong |= ~np.isfinite(values)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise UserError(f"run {at + 1}: {name} must be a positive number, not {values[at]:g}")
    if (wrong := ~((f >= 0) & (f <= 1))).any():
        at = int(np.argmax(wrong))
        raise UserError(f"run {at + 1}: the recurrent share lies in [0, 1], not {f[at]:g}")
    spent = 6 * n * d * k if compute is None else np.asarray(compute, dtype=float)
    names = range(len(n)) if cell is None else [str(c) for c in cell]
    group = np.unique(np.array(list(names)), return_inverse=True)[1]
    number = np.broadcast_to(np.asarray(model, dtype=int), n.shape)
    return Runs(n, d, y, k, f, number, spent, u, group)


@dataclass(frozen=True)
class Admitted:
    """The runs that enter a fit, and what was done about repeated data, in words."""

    runs: Runs
    refused: np.ndarray
    repetition: bool
    said: str


def admit(given: Runs, repeated: str = "refuse", most: float = MOST_EPOCHS) -> Admitted:
    """Runs of more than `most` epochs are refused, or get a repetition term.

    Args:
        given: all runs.
        repeated: "refuse" leaves such runs out; "term" keeps them, and the law must then carry
            `effects.Repetition`.
        most: epochs of the corpus that still count as fresh data.
    """
    if repeated not in ("refuse", "term"):
        raise UserError(f"repeated data is 'refuse' or 'term', not {repeated!r}")
    many = given.epochs > most
    if not many.any():
        known = np.isfinite(given.unique)
        said = (
            f"no run saw its corpus more than {most:g} times"
            if known.all()
            else "the size of the corpus is not given: nothing is known about repeated data"
        )
        return Admitted(given, np.flatnonzero(many), False, said)
    about = f"{many.sum()} of {len(given)} runs saw their corpus more than {most:g} times"
    if repeated == "term":
        return Admitted(given, np.flatnonzero(many)[:0], True, f"{about}: repetition term fitted")
    if many.all():
        raise UserError(f"{about}; nothing is left to fit: give more data, or the repetition term")
    return Admitted(given.take(~many), np.flatnonzero(many), False, f"{about}: refused")


def told_apart(given: Runs) -> bool:
    """Whether some model ran with at least two pass counts, or a model other than the baseline
    shares a pass count with it: else a multiplier and phi are one number.
    """
    base = np.unique(given.passes[given.model == 0])
    others = [np.unique(given.passes[given.model == m]) for m in np.unique(given.model) if m > 0]
    return any(len(np.intersect1d(k, base)) for k in others) or any(len(k) > 2 for k in others)
