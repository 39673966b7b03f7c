"""What travels through a sweep beside the hidden state: the batch, and the memory that enters it.

Axes: B rows, T positions of the frame, P positions of one sweep, N positions that mixers can attend
    to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from lrt_lab.layers.rotary import rotary_table


@dataclass(frozen=True)
class Frame:
    """A batch of rows, as every port sees it.

    Attention, memory and rotary position are three separate fields, since resetting each of them at
    document starts is a separate choice.

    Attributes:
        ids: token ids, ``(B, T)``.
        document: attention document of each position, ``(B, T)``; None is one document per row.
        memory_document: document for the memory's reset, ``(B, T)``; None follows ``document``.
        position: rotary position, ``(B, T)``; None is the column (rotary attention only sees
            differences, so inside a document the two agree).
        silent: positions without a token of their own (Coconut's latents), ``(B, T)`` bool or None.
        question: positions whose token is part of a question, or padding, ``(B, T)`` bool; None is
            nowhere.
    """

    ids: Tensor
    document: Tensor | None = None
    memory_document: Tensor | None = None
    position: Tensor | None = None
    silent: Tensor | None = None
    question: Tensor | None = None

    @classmethod
    def packed(cls, ids: Tensor, document: Tensor) -> Frame:
        """A frame of packed documents; rows that hold one document each are marked as such."""
        whole = bool((document == document[:, :1]).all())
        return cls(ids, None if whole else document)

    @property
    def length(self) -> int:
        """Number of positions T."""
        return self.ids.shape[1]

    @property
    def positions(self) -> range:
        """All positions."""
        return range(self.length)

    def start(self) -> Tensor:
        """Where a document starts for the memory, ``(B, T)`` bool; the first position always."""
        document = self._resets()
        start = torch.zeros_like(self.ids, dtype=torch.bool)
        start[:, 0] = True
        if document is not None:
            start[:, 1:] = document[:, 1:] != document[:, :-1]
        return start

    def at(self, positions: range, reach: int) -> View:
        """The frame at the positions of one sweep.

        Mixers attend to the first ``reach`` positions.
        """
        cut = slice(positions.start, positions.stop, positions.step)
        document = self.document
        return View(
            positions=positions,
            reach=reach,
            ids=self.ids[:, cut],
            before=self.ids.roll(1, dims=1)[:, cut],
            start=self.start()[:, cut],
            position=None if self.position is None else self.position[:, cut],
            silent=None if self.silent is None else self.silent[:, cut],
            question=None if self.question is None else self.question[:, cut],
            document=None if document is None else document[:, cut],
            key_document=None if document is None else document[:, :reach],
        )

    def append(self, other: Frame) -> Frame:
        """This frame, then the columns of another.

        These continue its document if they name none.
        """

        def join(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            if mine is None and theirs is None:
                return None
            if mine is None:
                mine = torch.zeros_like(self.ids, dtype=theirs.dtype)  # type: ignore[union-attr]
            if theirs is None:
                theirs = mine[:, -1:].expand_as(other.ids)
            return torch.cat([mine, theirs], dim=1)

        if (self.position is None) != (other.position is None):
            raise ValueError("frames with and without rotary positions cannot be joined")
        memory_document = None
        if self.memory_document is not None or other.memory_document is not None:
            memory_document = join(self._resets(), other._resets())

        def mark(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            if mine is None and theirs is None:
                return None
            pairs = ((self, mine), (other, theirs))
            return torch.cat(
                [torch.zeros_like(f.ids, dtype=torch.bool) if m is None else m for f, m in pairs],
                dim=1,
            )

        return Frame(
            torch.cat([self.ids, other.ids], dim=1),
            join(self.document, other.document),
            memory_document,
            join(self.position, other.position),
            mark(self.silent, other.silent),
            mark(self.question, other.question),
        )

    def _resets(self) -> Tensor | None:
        return self.document if self.memory_document is None else self.memory_document

    def select(self, rows: Tensor) -> Frame:
        """The rows named by an index tensor."""
        return self._each(lambda own: own[rows])

    def head(self, length: int) -> Frame:
        """The first ``length`` positions."""
        return self._each(lambda own: own[:, :length])

    def to(self, device: torch.device) -> Frame:
        """The frame on a device."""
        return self._each(lambda own: own.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Frame:
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return Frame(**{k: None if f is None else change(f) for k, f in named.items()})  # type: ignore[arg-type]


@dataclass
class View:
    """The frame at the P positions of one sweep; the engine adds the raw token embedding.

    ``before`` are the tokens one position back, which mean nothing where ``start``. Masks and
    rotary tables are computed once per sweep and shared by all units.
    """

    positions: range
    reach: int
    ids: Tensor
    start: Tensor
    before: Tensor | None = None
    position: Tensor | None = None
    silent: Tensor | None = None
    question: Tensor | None = None
    document: Tensor | None = None
    key_document: Tensor | None = None
    embedding: Tensor | None = None
    _cache: dict[object, object] = field(default_factory=dict, repr=False)

    def alone(self) -> View:
        """Every position as a row of its own, ``(B P, 1)``, for mixers that are to see no other."""
        if "alone" not in self._cache:
            ids = self.ids.reshape(-1, 1)
            start = torch.ones_like(ids, dtype=torch.bool)
            self._cache["alone"] = View(range(1), 1, ids, start)
        return self._cache["alone"]  # type: ignore[return-value]

    def mask(self, window: int | None = None) -> Tensor | None:
        """Which keys a query may see; None where causal order is all there is.

        Args:
            window: positions a query looks back, itself not counted; None is all of them.

        Returns:
            bool, ``(P, N)`` or ``(B, 1, P, N)``.
        """
        whole = self.positions == range(self.reach)
        last = len(self.positions) == 1 and self.positions[0] == self.reach - 1
        free = window is None or self.positions[-1] <= window
        if (whole or last) and free and self.document is None:
            return None
        name = ("mask", window)
        if name not in self._cache:
            device = self.ids.device
            query = torch.tensor(self.positions, device=device).unsqueeze(-1)
            distance = query - torch.arange(self.reach, device=device)
            seen = distance >= 0
            if window is not None:
                seen = seen & (distance <= window)
            if self.document is not None and self.key_document is not None:
                same = self.document.unsqueeze(-1) == self.key_document.unsqueeze(-2)
                seen = (seen & same).unsqueeze(1)
            self._cache[name] = seen
        return self._cache[name]  # type: ignore[return-value]

    def rotary(self, head_dim: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin at these positions, ready for `lrt_lab.layers.rotate`."""
        name = ("rotary", head_dim, base, dtype)
        if name not in self._cache:
            position = self.position
            if position is None:
                position = torch.tensor(self.positions, device=self.ids.device)
            self._cache[name] = rotary_table(position, head_dim, base, dtype)
        return self._cache[name]  # type: ignore[return-value]


@dataclass
class Memory:
    """What enters the positions of one sweep.

    No memory at all (None in its place) is the initializer sweep; a memory that is absent at a
    position (a document start) is not the same thing, and routes may treat the two differently.

    Attributes:
        value: ``(B, P, ...)``, zero where absent.
        present: ``(B, P)`` bool.
        derived: what a route computed from ``value`` once for all units.
    """

    value: Tensor
    present: Tensor
    derived: dict[object, Tensor] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Taps:
    """What a sweep keeps for a route.

    The hidden state before some units, the top state, the bank.
    """

    units: Sequence[int] = ()
    top: bool = False
    bank: bool = False

    def __bool__(self) -> bool:
        return bool(self.units) or self.top or self.bank
