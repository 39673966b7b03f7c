"""Coconut's training: reasoning steps give way to silent positions (arXiv:2412.06769).

A row is question, steps, answer. In stage s its first s steps are replaced by s c silent positions:

    question <begin> (silent) x s c <end> steps s+1.. answer

and only what follows <end> is predicted. After the last stage no step is left. Silent positions
are resolved in order, keys and values being kept: with n of them in a row there are n + 1 sweeps,
which together evaluate every position once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from lrt_lab.data.batch import ANSWER, IGNORED, QUESTION
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules.base import Clock, Pass, Schedule


class Curriculum(Schedule):
    """Exact evaluation of silent positions, and the stages that put them into a row.

    The defaults are Coconut's for GSM8K, but that a stage is counted in optimizer steps.

    Args:
        stages: steps that are replaced one stage after the other; then follows a stage without any.
        steps_per_stage: optimizer steps of a stage.
        silent_per_step: c, silent positions for each step that is replaced.
        pad_to_stages: after the last stage give every row as many silent positions as the longest
            could have, whatever number of steps it had.
        random_stage: probability that a row is drawn for a random stage instead of its own.
        begin: token id before the silent positions; null leaves it out.
        end: token id after them; null leaves it out.
        context: longest row; null is any length.
        restarts_per_stage: how often in a stage the optimizer starts anew, the stage's start
            counted: every epoch in the released code, of which a stage has three for GSM8K; the
            paper's is 1; 0 is never. The course of the learning rate goes on.
    """

    silent = True

    def __init__(
        self,
        stages: int = 3,
        steps_per_stage: int = 1000,
        silent_per_step: int = 2,
        pad_to_stages: bool = True,
        random_stage: float = 0.0,
        begin: int | None = None,
        end: int | None = None,
        context: int | None = None,
        restarts_per_stage: int = 3,
    ) -> None:
        for name, value in (
            ("stages", stages),
            ("steps_per_stage", steps_per_stage),
            ("silent_per_step", silent_per_step),
        ):
            if value < 1:
                raise UserError(f"schedule.{name}={value}: it must be at least 1")
        if not 0 <= random_stage <= 1:
            raise UserError(f"schedule.random_stage={random_stage}: give a probability, 0 to 1")
        if not 0 <= restarts_per_stage <= steps_per_stage:
            raise UserError(
                f"schedule.restarts_per_stage={restarts_per_stage}: give 0 (never) to"
                f" {steps_per_stage}, the steps of a stage"
            )
        self.restarts_per_stage = restarts_per_stage
        self.stages, self.steps_per_stage = stages, steps_per_stage
        self.silent_per_step, self.pad_to_stages = silent_per_step, pad_to_stages
        self.random_stage, self.begin, self.end = random_stage, begin, end
        self.context = context

    def stage(self, step: int) -> int:
        """The stage of an optimizer step, from 0; ``stages + 1`` is the last one."""
        return min(step // self.steps_per_stage, self.stages + 1)

    def restarts(self, step: int) -> bool:
        here, before = (
            n * self.restarts_per_stage // self.steps_per_stage for n in (step, step - 1)
        )
        return step > 0 and here != before

    def plan(self, stage: int, steps: int) -> tuple[int, int]:
        """Of a row with so many steps: how many are dropped, and the silent positions in place."""
        if stage <= self.stages:
            return min(stage, steps), stage * self.silent_per_step
        kept = self.stages if self.pad_to_stages else min(steps, self.stages)
        return steps, kept * self.silent_per_step

    def prepare(self, batch: Mapping[str, Tensor], clock: Clock) -> tuple[Frame, Tensor]:
        """The rows of this step's stage, and their targets.

        Rows are padded on the left so that their first silent positions share a column; padding is
        a document of its own.

        Args:
            batch: "tokens" ``(B, N)``, and "labels" ``(B, N)``: for each token `QUESTION`, the
                number of its step from 1 on, `ANSWER` or `PADDING`, in this order.
            clock: where training stands.

        Returns:
            a frame ``(B, T)`` and targets ``(B, T)``, `IGNORED` where nothing is predicted.
        """
        labels = self.labels(batch)
        g, stages = clock.generator("stage"), []
        for _ in labels:
            stage = self.stage(clock.step)
            if float(torch.rand((), generator=g)) < self.random_stage:
                stage = int(torch.randint(0, self.stages + 1, (), generator=g))
            stages.append(stage)
        return self.staged(batch, stages)

    def judged(self, batch: Mapping[str, Tensor]) -> tuple[Frame, Tensor]:
        """Every row after the last stage."""
        return self.staged(batch, [self.stages + 1] * len(self.labels(batch)))

    def staged(self, batch: Mapping[str, Tensor], stages: list[int]) -> tuple[Frame, Tensor]:
        """Each row at its stage."""
        tokens, labels = batch["tokens"], batch["labels"]
        rows = [
            self.row(ids, own, stage)
            for ids, own, stage in zip(tokens.tolist(), labels.tolist(), stages, strict=True)
        ]
        return assemble(rows, tokens.device)

    def labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What each token belongs to."""
        if "labels" not in batch:
            raise UserError(
                "model.schedule=Curriculum: the data has no step labels; choose data that says"
                " which step each token belongs to, or another schedule"
            )
        return batch["labels"]

    def row(self, ids: list[int], labels: list[int], stage: int) -> Row:
        """One row at a stage."""
        drop, count = self.plan(stage, max(0, *labels))
        pairs = list(zip(ids, labels, strict=True))
        begin = [t for t in (self.begin,) if t is not None]
        head = [t for t, label in pairs if label == QUESTION] + begin
        end = [t for t in (self.end,) if t is not None]
        rest = [t for t, label in pairs if label > drop or label == ANSWER]
        length = len(head) + count + len(end) + len(rest)
        if self.context is not None and length > self.context:
            raise UserError(
                f"schedule.context={self.context}: with {count} silent positions a row has {length}"
                " positions; allow more, or lower stages or silent_per_step"
            )
        return Row(head, count, end, rest)

    def passes(self, decoder: Decoder, frame: Frame, clock: Clock) -> Iterator[Pass]:
        # Each sweep starts at a column where some row is silent and holds no other such column: its
        # memory is what the last one left at its end.
        silent = [] if frame.silent is None else frame.silent.any(0).nonzero().flatten().tolist()
        cuts = sorted({0, *silent, frame.length})
        carried, buffers, hidden = None, None, []
        for start, stop in pairwise(cuts):
            positions, memory = range(start, stop), None
            if carried is not None:
                before = carried.new_zeros(carried.shape[0], stop - start, *carried.shape[2:])
                before = torch.cat([carried[:, -1:], before[:, 1:]], dim=1)
                memory = decoder.receive(before, decoder.view(frame, positions, stop))
            out = decoder.sweep(frame, positions, memory, buffers, reach=stop)
            carried, buffers = out.carried, out.buffers
            hidden.append(out.hidden)
        yield Pass(frame.positions, torch.cat(hidden, dim=1), 1.0, "pass 1")

    def cost(self, length: int, decoder: Decoder) -> float:
        return float(length)

    def rehearsal(self, length: int, device: torch.device) -> Frame:
        """A row of the last stage, its silent positions in the middle."""
        count = min(self.stages * self.silent_per_step, length - 1)
        first = (length - count + 1) // 2
        # Where the sweeps are cut is decided by values, which the meta device does not have.
        column = torch.arange(length)
        silent = (column >= first) & (column < first + count)
        return Frame(super().rehearsal(length, device).ids, silent=silent.unsqueeze(0))


@dataclass(frozen=True)
class Row:
    """A row before padding: tokens, silent positions, tokens that are not predicted, and the rest.

    Attributes:
        head: tokens before the silent positions.
        silent: number of silent positions.
        end: tokens right after them.
        rest: tokens that are predicted.
    """

    head: list[int]
    silent: int
    end: list[int]
    rest: list[int]


def assemble(rows: list[Row], device: torch.device) -> tuple[Frame, Tensor]:
    """Rows with their silent positions aligned, as a frame and the targets of its positions."""
    width = max(len(row.head) for row in rows)
    fields: dict[str, list[list[int]]] = {
        name: [] for name in ("ids", "document", "position", "silent", "targets")
    }
    for row in rows:
        left = width - len(row.head)
        ids = row.head + [0] * row.silent + row.end + row.rest
        hidden = len(ids) - len(row.rest)
        fields["ids"].append([0] * left + ids)
        fields["document"].append([1] * left + [0] * len(ids))
        fields["position"].append([0] * left + list(range(len(ids))))
        fields["silent"].append([0] * width + [1] * row.silent)
        fields["targets"].append([IGNORED] * (left + hidden) + row.rest)
    length = max(map(len, fields["ids"]))
    filler = {"document": 2, "targets": IGNORED}
    padded = {
        name: torch.tensor(
            [values + [filler.get(name, 0)] * (length - len(values)) for values in lists],
            device=device,
        )
        for name, lists in fields.items()
    }
    # The last token has nothing to predict, the first is not predicted by anything.
    frame = Frame(
        padded["ids"][:, :-1],
        padded["document"][:, :-1],
        position=padded["position"][:, :-1],
        silent=padded["silent"][:, :-1].bool(),
    )
    return frame, padded["targets"][:, 1:]
