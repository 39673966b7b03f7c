"""Evaluation: the slices' every target is scored once, by the pass that is meant."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lrt_lab.data.batch import framed
from lrt_lab.data.slices import EvaluationSlice, document_ids
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.schedules import Interleaved, Jacobi, Serial, SinglePass
from lrt_lab.training.evaluate import Evaluation, Score, curve, evaluate, score
from lrt_lab.training.metrics import BitsPerByte


@pytest.fixture
def part() -> EvaluationSlice:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 256, (5, 9), generator=generator)
    tokens[1, 4] = 256
    tokens[3, 0] = 256
    return EvaluationSlice({"tokens": tokens, "document": document_ids(tokens, 256)}, 39, "hash")


def decoder(route: type) -> Decoder:
    model = Decoder(16, 2, 257, route=route())
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def test_bits_per_byte_counts_bytes_not_separators() -> None:
    metric = BitsPerByte()
    metric.update(torch.tensor([math.log(2), math.log(2)]), torch.tensor([65, 256]))
    metric.update(torch.tensor([2 * math.log(2)]), torch.tensor([66]))
    assert float(metric.compute()) == pytest.approx(2.0)
    assert metric.loss == pytest.approx(4 * math.log(2) / 3)


def test_score_equals_a_plain_cross_entropy(part: EvaluationSlice) -> None:
    model = decoder(NoRoute)
    frame, targets = framed(part.batch)
    hidden = model.sweep(frame, frame.positions).hidden
    expected = F.cross_entropy(model.logits(hidden).flatten(0, 1), targets.flatten())
    scored = score(model, SinglePass(), part, tokens=16)
    assert scored.loss == pytest.approx(expected.item(), rel=1e-6)
    metric = scored.metric
    assert int(metric.tokens) == targets.numel() and int(metric.bytes) == (targets < 256).sum()
    each = F.cross_entropy(model.logits(hidden).transpose(1, 2), targets, reduction="none")
    assert torch.allclose(scored.by_position, each.detach().double().mean(0), rtol=1e-5)


def test_loss_by_position_is_binned_evenly() -> None:
    long = Score(BitsPerByte(), torch.arange(130, dtype=torch.float64))
    bins = long.binned()
    assert len(bins["position"]) == len(bins["loss"]) == 44
    assert bins["position"] == bins["loss"] == [*range(1, 129, 3), 129.0]


def test_the_last_pass_that_scores_a_position_has_its_word(part: EvaluationSlice) -> None:
    model = decoder(LRT)
    assert score(model, Interleaved(8), part).loss == pytest.approx(
        score(model, Serial(), part).loss, rel=1e-6
    )
    assert score(model, Jacobi(1), part).loss != pytest.approx(score(model, Serial(), part).loss)


def test_the_curve_ends_at_the_exact_recurrence(part: EvaluationSlice) -> None:
    model = decoder(LRT)
    points = curve(model, part, 9)
    exact = score(model, Serial(), part).record()["bpb"]
    assert points[-1] == pytest.approx(exact, rel=1e-6)
    assert points[0] != pytest.approx(exact, rel=1e-4)


def test_the_record_of_a_route_and_of_none(part: EvaluationSlice) -> None:
    routed = evaluate(decoder(LRT), Interleaved(), part, part, 4)
    assert routed["curve"]["passes"] == [1, 2, 3, 4]
    assert routed["test"]["exact"]["loss"] != routed["test"]["last_pass"]["loss"]
    plain = evaluate(decoder(NoRoute), SinglePass(), part, part, 4)
    assert routed["curve"]["mean_4_16"] is None
    assert plain["curve"]["bpb"] == [plain["curve"]["exact_bpb"]] * 4
    assert plain["carried"] is None
    assert plain["test"]["exact"] == plain["test"]["last_pass"]
    assert plain["test"]["sha256"] == "hash" and plain["test"]["bytes"] == 39


def test_options_that_cannot_be_used() -> None:
    with pytest.raises(UserError, match="curve_passes=0"):
        Evaluation(curve_passes=0)
