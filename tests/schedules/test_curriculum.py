"""Curriculum: stages, the rows they make, what is predicted, and its refusals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_lab.backbones import PreNorm
from lrt_lab.data.batch import ANSWER, IGNORED, PADDING, QUESTION
from lrt_lab.errors import UserError
from lrt_lab.layers import SquaredReLU
from lrt_lab.mixers import Attention
from lrt_lab.module import LanguageModel
from lrt_lab.routes import LRT, Coconut
from lrt_lab.schedules import Clock, Curriculum
from lrt_lab.training.loss import training_loss
from lrt_lab.training.optimizer import AdamW, MuonAdamW
from tests.support.models import run, small_decoder

BEGIN, END = 30, 31
# Two questions of different length; three steps and one.
TOKENS = torch.tensor([[1, 2, 3, 11, 12, 13, 14, 21, 22], [1, 2, 11, 12, 21, 0, 0, 0, 0]])
LABELS = torch.tensor(
    [
        [QUESTION] * 3 + [1, 1, 2, 3] + [ANSWER] * 2,
        [QUESTION] * 2 + [1, 1] + [ANSWER] + [PADDING] * 4,
    ]
)
BATCH = {"tokens": TOKENS, "labels": LABELS}


def schedule(**options) -> Curriculum:
    defaults = {"stages": 2, "steps_per_stage": 10, "begin": BEGIN, "end": END}
    return Curriculum(**{**defaults, **options})


def whole(frame, targets: Tensor, row: int) -> list[object]:
    """A row without its padding: tokens, "." at silent positions, and what is predicted."""
    seen: list[object] = []
    for t in range(frame.length):
        if frame.document[row, t] == 0:
            seen.append("." if frame.silent[row, t] else int(frame.ids[row, t]))
    predicted = [int(t) for t in targets[row] if t != IGNORED]
    return [seen, predicted]


@pytest.mark.parametrize(
    ("step", "first", "second"),
    [
        (0, [[1, 2, 3, 30, 31, 11, 12, 13, 14, 21], [11, 12, 13, 14, 21, 22]], [11, 12, 21]),
        (9, [[1, 2, 3, 30, 31, 11, 12, 13, 14, 21], [11, 12, 13, 14, 21, 22]], [11, 12, 21]),
        (10, [[1, 2, 3, 30, ".", ".", 31, 13, 14, 21], [13, 14, 21, 22]], [21]),
        (20, [[1, 2, 3, 30, ".", ".", ".", ".", 31, 14, 21], [14, 21, 22]], [21]),
        (30, [[1, 2, 3, 30, ".", ".", ".", ".", 31, 21], [21, 22]], [21]),
        (999, [[1, 2, 3, 30, ".", ".", ".", ".", 31, 21], [21, 22]], [21]),
    ],
)
def test_every_stage(step: int, first: list, second: list) -> None:
    frame, targets = schedule().prepare(BATCH, Clock(step))
    assert whole(frame, targets, 0) == first
    assert whole(frame, targets, 1)[1] == second


def test_rows_are_aligned_at_their_first_silent_position() -> None:
    frame, targets = schedule().prepare(BATCH, Clock(10))
    assert frame.silent.long().argmax(dim=1).tolist() == [4, 4]
    assert frame.document[1].tolist()[:2] == [1, 0]
    assert frame.position[:, :5].tolist() == [[0, 1, 2, 3, 4], [0, 0, 1, 2, 3]]
    # The token after <end> is predicted at <end>, nothing before it.
    assert (targets[:, :6] == IGNORED).all()


def test_the_stage_table() -> None:
    ours = Curriculum(stages=3, steps_per_stage=5, silent_per_step=2)
    assert [ours.stage(step) for step in (0, 4, 5, 14, 15, 20, 999)] == [0, 0, 1, 2, 3, 4, 4]
    assert [ours.plan(stage, steps=6) for stage in range(5)] == [
        (0, 0), (1, 2), (2, 4), (3, 6), (6, 6),
    ]  # fmt: skip
    assert ours.plan(2, steps=1) == (1, 4)
    assert ours.plan(4, steps=1) == (1, 6)
    assert Curriculum(stages=3, pad_to_stages=False).plan(4, steps=1) == (1, 2)


def test_rows_of_random_stages() -> None:
    ours = schedule(random_stage=1.0)
    drawn = [ours.prepare(BATCH, Clock(step))[0].silent.sum(1) for step in range(40)]
    assert {int(count) for row in drawn for count in row} == {0, 2, 4}
    again = ours.prepare(BATCH, Clock(7))[0].silent.sum(1)
    assert torch.equal(again, drawn[7])


def test_without_markers() -> None:
    frame, targets = schedule(begin=None, end=None).prepare(BATCH, Clock(10))
    assert whole(frame, targets, 0)[0] == [1, 2, 3, ".", ".", 13, 14, 21]


def test_the_loss_is_the_mean_over_what_is_predicted() -> None:
    decoder, ours = small_decoder(route=Coconut()), schedule()
    frame, targets = ours.prepare(BATCH, Clock(10))
    loss = training_loss(decoder, ours, frame, targets, Clock(10))
    (only,) = run(ours, decoder, frame)
    expected = F.cross_entropy(decoder.logits(only.hidden).mT, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert (targets != IGNORED).sum() == 5


def test_padding_changes_nothing() -> None:
    decoder, ours = small_decoder(route=Coconut()), schedule()
    frame, _ = ours.prepare(BATCH, Clock(10))
    alone, _ = ours.prepare({k: v[1:, :5] for k, v in BATCH.items()}, Clock(10))
    with torch.no_grad():
        (both,), (one,) = (run(ours, decoder, f) for f in (frame, alone))
    shift = 1
    torch.testing.assert_close(
        both.hidden[1:, shift : shift + alone.length], one.hidden, rtol=1e-10, atol=1e-12
    )


def test_data_without_step_labels() -> None:
    line = r"^model.schedule=Curriculum: the data has no step labels; choose data that says which"
    with pytest.raises(UserError, match=line):
        schedule().prepare({"tokens": TOKENS}, Clock())


def test_more_silent_positions_than_the_context_holds() -> None:
    assert schedule(context=11).prepare(BATCH, Clock(10))
    line = r"^schedule.context=10: with 2 silent positions a row has 11 positions; allow more, or"
    with pytest.raises(UserError, match=line):
        schedule(context=10).prepare(BATCH, Clock(10))


@pytest.mark.parametrize(
    ("restarts", "steps"),
    [(0, []), (1, [10, 20, 30, 40]), (2, list(range(5, 45, 5)))],
    ids=["never", "by stage", "by epoch"],
)
def test_the_optimizer_starts_anew_within_and_between_stages(
    restarts: int, steps: list[int]
) -> None:
    """The step alone decides, so a resumed run does it where an uncut one does."""
    ours = schedule(restarts_per_stage=restarts)
    assert [step for step in range(45) if ours.restarts(step)] == steps


def test_the_released_code_has_three_epochs_in_a_stage() -> None:
    found = [step for step in range(2001) if Curriculum().restarts(step)]
    assert found == [334, 667, 1000, 1334, 1667, 2000]
    line = r"^schedule.restarts_per_stage=11: give 0 \(never\) to 10, the steps of a stage$"
    with pytest.raises(UserError, match=line):
        schedule(restarts_per_stage=11)


@pytest.mark.parametrize("optimizer", [AdamW(), MuonAdamW()], ids=lambda o: type(o).__name__)
def test_a_restart_forgets_all_moments(optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = schedule(restarts_per_stage=1)
    parts = PreNorm(), Coconut(), Attention(heads=2), SquaredReLU(), optimizer, ours
    module = LanguageModel(*parts, width=8, blocks=1, vocab=40)
    descent, left = optimizer.build(module.decoder), []
    for step in range(8, 12):
        monkeypatch.setattr(LanguageModel, "global_step", step)
        module.on_before_optimizer_step(descent)
        left.append(len(moments(descent)))
        for target in module.decoder.parameters():
            target.grad = torch.ones_like(target)
        descent.step()
    every = len(list(module.decoder.parameters()))
    assert left == [0, every, 0, every]


def moments(optimizer) -> list[dict]:
    members = getattr(optimizer, "optimizers", [optimizer])
    return [state for member in members for state in member.state.values()]


@pytest.mark.parametrize("option", ["stages", "steps_per_stage", "silent_per_step"])
def test_counts_start_at_one(option: str) -> None:
    with pytest.raises(UserError, match=rf"^schedule.{option}=0: it must be at least 1$"):
        Curriculum(**{option: 0})


def test_random_stage_is_a_probability() -> None:
    with pytest.raises(UserError, match=r"^schedule.random_stage=1.5: give a probability, 0 to 1$"):
        Curriculum(random_stage=1.5)


def test_other_routes_are_refused() -> None:
    line = r"^model.schedule=Curriculum lets memory in at silent positions only: with model.route="
    with pytest.raises(UserError, match=line):
        LanguageModel(PreNorm(), LRT(), Attention(), SquaredReLU(), AdamW(), Curriculum())
    LanguageModel(PreNorm(), Coconut(), Attention(), SquaredReLU(), AdamW(), Curriculum())
