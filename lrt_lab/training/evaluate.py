"""Evaluation, a step of its own after training: bits per byte on held-out text.

Three readings of the same model: the last training pass, the exact recurrence (the headline,
because it is what decoding does), and the curve over Jacobi passes, which shows whether more passes
than training used still converge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lrt_lab.data.batch import framed
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.frame import Frame
from lrt_lab.schedules import Clock, Jacobi, Schedule, Serial
from lrt_lab.training.loss import pick, token_losses
from lrt_lab.training.metrics import BitsPerByte

if TYPE_CHECKING:
    from lrt_lab.data import EvaluationSlice

# : Tokens evaluated at once. The exact recurrence takes many rows, since its sequential steps cost
# overhead each.
PARALLEL_TOKENS, SERIAL_TOKENS = 8192, 65536
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
    """What a slice costs: bits per byte, and nats per token by position of a window, ``(T,)``."""

    metric: BitsPerByte
    by_position: Tensor

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.metric.loss

    @property
    def bpb(self) -> float:
        """Bits per byte."""
        return float(self.metric.compute())

    def binned(self) -> dict[str, list[float]]:
        """Loss by position, in at most `BINS` bins of neighbouring positions (0-based centres)."""
        size = -(-len(self.by_position) // BINS)
        bins = self.by_position.split(size)
        centres = [index * size + (len(part) - 1) / 2 for index, part in enumerate(bins)]
        return {"position": centres, "loss": [float(part.mean()) for part in bins]}


def batches(part: EvaluationSlice, tokens: int) -> Iterator[tuple[Frame, Tensor]]:
    """The slice's rows, about so many tokens at once, as frames with their targets."""
    rows = max(1, tokens * len(part) // part.positions)
    for start in range(0, len(part), rows):
        yield framed(part.rows(start, start + rows))


@torch.no_grad()
def score(
    decoder: Decoder, schedule: Schedule, part: EvaluationSlice, tokens: int = PARALLEL_TOKENS
) -> Score:
    """Score every position by the last pass that computed it."""
    metric = BitsPerByte()
    device = decoder.head.device
    by_position = torch.zeros(part.positions // len(part), dtype=torch.float64)
    for frame, targets in batches(part, tokens):
        frame, targets = to(frame, device), targets.to(device)
        losses = torch.zeros(targets.shape, device=device, dtype=torch.float32)
        for scored in schedule.passes(decoder, frame, Clock()):
            own = scored.positions
            losses[:, own.start : own.stop : own.step] = token_losses(
                decoder, scored.hidden, pick(targets, own)
            ).to(losses.dtype)
        metric.update(losses.cpu(), targets.cpu())
        by_position += losses.double().sum(0).cpu()
    return Score(metric, by_position / len(part))


@torch.no_grad()
def curve(decoder: Decoder, part: EvaluationSlice, passes: int) -> list[float]:
    """Bits per byte of each of so many Jacobi passes."""
    metrics = [BitsPerByte() for _ in range(passes)]
    device = decoder.head.device
    for frame, targets in batches(part, PARALLEL_TOKENS):
        frame, targets = to(frame, device), targets.to(device)
        for metric, scored in zip(
            metrics, Jacobi(passes).passes(decoder, frame, Clock()), strict=True
        ):
            metric.update(token_losses(decoder, scored.hidden, targets).cpu(), targets.cpu())
    return [float(metric.compute()) for metric in metrics]


def to(frame: Frame, device: torch.device) -> Frame:
    """The frame on a device."""
    document = None if frame.document is None else frame.document.to(device)
    return Frame(frame.ids.to(device), document)


def evaluate(
    decoder: Decoder,
    schedule: Schedule,
    test: EvaluationSlice,
    curve_part: EvaluationSlice | None,
    passes: int,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The ``test``, ``by_position`` and ``curve`` entries of a run's final record."""
    decoder.eval()
    recurrent = decoder.route.traits.recurrent
    progress("last training pass")
    last = score(decoder, schedule, test)
    progress("exact recurrence")
    if recurrent:
        exact = score(decoder, Serial(), test, SERIAL_TOKENS)
    else:
        # Where nothing travels between positions, a few parallel passes *are* the exact recurrence.
        loops = decoder.route.traits.loops
        exact = last if loops == 1 else score(decoder, Jacobi(loops), test)
    record: dict[str, Any] = {
        "test": {
            "bytes": test.bytes,
            "tokens": int(exact.metric.tokens),
            "sha256": test.sha256,
            "exact": {"loss": exact.loss, "bpb": exact.bpb},
            "last_pass": {"loss": last.loss, "bpb": last.bpb},
        },
        "by_position": exact.binned(),
        "curve": None,
    }
    if recurrent and curve_part is not None:
        progress("curve over passes")
        record["curve"] = {
            "bytes": curve_part.bytes,
            "sha256": curve_part.sha256,
            "passes": list(range(1, passes + 1)),
            "bpb": curve(decoder, curve_part, passes),
            "exact_bpb": score(decoder, Serial(), curve_part, SERIAL_TOKENS).bpb,
        }
    return record
