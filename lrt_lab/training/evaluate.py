"""Evaluation, a step of its own after training: bits per byte on held-out text, or accuracy.

Three readings of the same model: the last training pass, the exact recurrence (the headline,
because it is what decoding does), and the curve over Jacobi passes, which shows whether more passes
than training used still converge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.data.batch import IGNORED, Batch, framed
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Jacobi, Schedule, Serial
from lrt_lab.training.carried import carried
from lrt_lab.training.loss import pick, token_losses
from lrt_lab.training.metrics import Accuracy, BitsPerByte, Nats
from lrt_lab.training.ports import strength

if TYPE_CHECKING:
    from lrt_lab.data import EvaluationSlice

Prepare = Callable[[Batch], tuple[Frame, Tensor]]
# : Tokens evaluated at once. The exact recurrence takes many rows, since its sequential steps cost
# overhead each.
PARALLEL_TOKENS, SERIAL_TOKENS = 8192, 65536
#: Positions whose memory is looked at.
CARRIED_TOKENS = 512
#: A window's loss is recorded in so many bins of positions at most.
BINS = 64


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated, and how often.

    Args:
        validate_every: steps between scores on the validation slice; 0 is never.
        curve_bytes: size of the slice for the curve over passes; 0 leaves the curve out.
        curve_passes: passes that the curve goes up to.
        part: what a finished run is scored on, "test", or "validation" where runs are chosen among.
    """

    validate_every: int = 50
    curve_bytes: int = 32768
    curve_passes: int = 16
    part: Literal["test", "validation"] = "test"

    def __post_init__(self) -> None:
        if min(self.validate_every, self.curve_bytes) < 0 or self.curve_passes < 1:
            raise UserError(
                f"evaluation.validate_every={self.validate_every}, curve_bytes={self.curve_bytes}, "
                f"curve_passes={self.curve_passes}: none negative, at least one pass"
            )
        if self.part not in ("test", "validation"):
            raise UserError(f"evaluation.part={self.part!r}: give test or validation")


@dataclass(frozen=True)
class Score:
    """What a slice costs, and of answers how many are right.

    Attributes:
        metric: nats per token, and bits per byte of text.
        by_position: nats per token by position of a row, ``(T,)``; NaN where no row predicts.
        accuracy: shares of right answers; None of text.
        right: share of right answers by position, ``(T,)``.
    """

    metric: Nats
    by_position: Tensor
    accuracy: Accuracy | None = None
    right: Tensor | None = None

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.metric.loss

    def record(self) -> dict[str, float]:
        """Loss, then bits per byte or accuracies."""
        more = {"bpb": float(self.metric.compute())}
        return {"loss": self.loss, **(self.accuracy.record() if self.accuracy else more)}

    def binned(self) -> dict[str, list[float | None]]:
        """Loss by position, in at most `BINS` bins of neighbouring positions (0-based centres)."""
        size = -(-len(self.by_position) // BINS)
        curves = {"loss": self.by_position}
        if self.right is not None:
            curves["accuracy"] = self.right
        bins = range(-(-len(self.by_position) // size))
        parts = {name: values.split(size) for name, values in curves.items()}
        centres: list[float | None] = [i * size + (len(parts["loss"][i]) - 1) / 2 for i in bins]
        means = {name: [_mean(part) for part in values] for name, values in parts.items()}
        return {"position": centres, **means}


def _mean(values: Tensor) -> float | None:
    """Mean of the numbers among them; None of none."""
    there = values[~values.isnan()]
    return float(there.mean()) if len(there) else None


def batches(
    part: EvaluationSlice, tokens: int, prepare: Prepare = framed
) -> Iterator[tuple[Frame, Tensor]]:
    """The slice's rows, about so many tokens at once, as frames with their targets."""
    rows = max(1, tokens * len(part) // part.positions)
    for start in range(0, len(part), rows):
        yield prepare(part.rows(start, start + rows))


@torch.no_grad()
def score(
    decoder: Decoder,
    schedule: Schedule,
    part: EvaluationSlice,
    tokens: int = PARALLEL_TOKENS,
    prepare: Prepare = framed,
) -> Score:
    """Score every position by the last pass that computed it.

    Args:
        decoder: the model, in evaluation mode.
        schedule: the passes.
        part: the rows.
        tokens: how many are evaluated at once.
        prepare: makes the frame of a batch; of a schedule with silent positions its own.
    """
    metric: Nats = BitsPerByte() if part.bytes else Nats()
    accuracy = None if part.bytes else Accuracy(decoder.shape.vocab)
    device = decoder.head.device
    sums = Sums()
    for frame, targets in batches(part, tokens, prepare):
        frame, targets = frame.to(device), targets.to(device)
        losses = torch.zeros(targets.shape, device=device, dtype=torch.float32)
        predicted = torch.zeros_like(targets)
        for scored in schedule.passes(decoder, frame, Clock()):
            own = scored.positions
            cut = slice(own.start, own.stop, own.step)
            losses[:, cut] = token_losses(decoder, scored.hidden, pick(targets, own)).to(
                losses.dtype
            )
            if accuracy is not None:
                predicted[:, cut] = decoder.logits(scored.hidden).argmax(-1)
        losses, predicted, targets = losses.cpu(), predicted.cpu(), targets.cpu()
        metric.update(losses, targets)
        sums.add(losses=losses, right=predicted == targets, answers=targets != IGNORED)
        if accuracy is not None:
            accuracy.update(predicted, targets)
    right = None if accuracy is None else sums["right"] / sums["answers"]
    return Score(metric, sums["losses"] / sums["answers"], accuracy, right)


class Sums(dict[str, Tensor]):
    """Sums over rows by position, ``(T,)`` each, of rows that need not be equally long."""

    def add(self, **values: Tensor) -> None:
        """Add rows ``(B, T)`` of each."""
        for name, rows in values.items():
            new, old = rows.double().sum(0), self.get(name, torch.zeros(0, dtype=torch.float64))
            width = max(len(new), len(old))
            self[name] = F.pad(old, (0, width - len(old))) + F.pad(new, (0, width - len(new)))


@torch.no_grad()
def curve(decoder: Decoder, part: EvaluationSlice, passes: int) -> list[float]:
    """Bits per byte of each of so many Jacobi passes."""
    metrics = [BitsPerByte() for _ in range(passes)]
    device = decoder.head.device
    for frame, targets in batches(part, PARALLEL_TOKENS):
        frame, targets = frame.to(device), targets.to(device)
        for metric, scored in zip(
            metrics, Jacobi(passes).passes(decoder, frame, Clock()), strict=True
        ):
            metric.update(token_losses(decoder, scored.hidden, targets).cpu(), targets.cpu())
    return [float(metric.compute()) for metric in metrics]


def passed(decoder: Decoder, part: EvaluationSlice, passes: int) -> tuple[list[float], float]:
    """Bits per byte of each of so many passes, and of the exact recurrence."""
    traits = decoder.route.traits
    if traits.recurrent:
        exact = score(decoder, Serial(), part, SERIAL_TOKENS).record()["bpb"]
        return curve(decoder, part, passes), exact
    # Where nothing travels between positions, further passes change nothing.
    own = curve(decoder, part, traits.loops)
    return [*own, *own[-1:] * passes][:passes], own[-1]


def evaluate(
    decoder: Decoder,
    schedule: Schedule,
    test: EvaluationSlice,
    curve_part: EvaluationSlice | None,
    passes: int,
    progress: Callable[[str], None] = lambda _: None,
    longer: EvaluationSlice | None = None,
) -> dict[str, Any]:
    """``test``, ``by_position``, ``curve``, ``injection`` and ``carried`` of a final record.

    Args:
        decoder: the trained model.
        schedule: the one that it was trained by.
        test: the rows that the record is about.
        curve_part: text for the curve over passes; None leaves the curve out.
        passes: passes that the curve goes up to.
        progress: told what is being evaluated.
        longer: rows beyond the trained length.
    """
    decoder.eval()
    device = decoder.head.device
    progress("last training pass")
    last = score(decoder, schedule, test, prepare=schedule.judged)
    progress("exact recurrence")
    exact = exactly(decoder, schedule, test, last)
    few = next(batches(test, CARRIED_TOKENS, schedule.judged))[0].to(device)
    record: dict[str, Any] = {
        "test": {**about(test, exact), "exact": exact.record(), "last_pass": last.record()},
        "by_position": exact.binned(),
        "curve": None,
        "injection": strength(decoder, next(batches(test, PARALLEL_TOKENS))[0].to(device)),
        "carried": carried(decoder, few),
    }
    if longer is not None:
        progress("beyond the trained length")
        last = score(decoder, schedule, longer, prepare=schedule.judged)
        exact = exactly(decoder, schedule, longer, last)
        record["test"]["longer"] = {
            **about(longer, exact),
            "exact": exact.record(),
            "last_pass": last.record(),
            "by_position": exact.binned(),
        }
    if curve_part is not None:
        progress("curve over passes")
        by_pass, ends = passed(decoder, curve_part, passes)
        record["curve"] = {
            "bytes": curve_part.bytes,
            "sha256": curve_part.sha256,
            "passes": list(range(1, passes + 1)),
            "bpb": by_pass,
            "mean_4_16": beyond(by_pass),
            "exact_bpb": ends,
        }
    return record


def beyond(by_pass: list[float]) -> float | None:
    """The mean of passes 4 to 16, as s3e42 is validated; None of a shorter curve.

    They are the deepest pass that it trains, and twelve more.
    """
    return sum(by_pass[3:16]) / 13 if len(by_pass) >= 16 else None


def exactly(decoder: Decoder, schedule: Schedule, part: EvaluationSlice, last: Score) -> Score:
    """The score of the exact recurrence, given that of the last training pass."""
    if decoder.route.traits.recurrent:
        return score(decoder, Serial(), part, SERIAL_TOKENS, schedule.judged)
    # Where nothing travels between positions, a few parallel passes *are* the exact recurrence.
    loops = decoder.route.traits.loops
    return last if loops == 1 else score(decoder, Jacobi(loops), part, prepare=schedule.judged)


def about(part: EvaluationSlice, scored: Score) -> dict[str, Any]:
    """What was evaluated."""
    size = {"bytes": part.bytes} if part.bytes else {"rows": len(part)}
    return {**size, "tokens": int(scored.metric.tokens), "sha256": part.sha256}
