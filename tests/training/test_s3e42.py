"""The s3e42 config: its size beside the plan's, its shape, and that it trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lrt_lab.cli import main
from lrt_lab.errors import UserError
from lrt_lab.training.config import merge_configs
from lrt_lab.training.describe import build, price, published
from lrt_lab.training.published import Published
from lrt_lab.training.run import Run, train
from tests.training import tiny

CONFIG = Path(__file__).parents[2] / "configs/model/s3e42.yaml"
PLAN = 144_915_932


def test_parameters_come_within_three_thousandths_of_the_plans() -> None:
    config = merge_configs([CONFIG])
    assert config["published"]["parameters"] == PLAN
    cost, d, vocab = price(config), 1024, 16_384
    counted = {part.name: part.total for part in cost.parts}
    assert counted == {
        "embedding": vocab * d,
        "head": vocab * d,
        # One gain before each of 16 units and before the head.
        "norms": 17 * d,
        # The embedding and two slots for 17 readers, and each output for those above it.
        "backbone PairwiseAttentionResiduals": (3 * 17 + sum(range(1, 17))) * (d + 1),
        "route Householder": 2 * d * d + 2 * 19 * (d + 1) + vocab * d,
        "mixer Attention": 8 * (2 * d * d + 2 * d * d // 8),
        "ffn SwiGLU": 3 * d * (7 * 3072 + 2304),
        "loss": 0,
    }
    assert cost.total == sum(counted.values()) == 144_689_377
    assert abs(cost.total / PLAN - 1) < 0.003
    assert cost.passes == cost.graded_passes == 3.25


def test_describe_prints_the_plans_number_beside_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["describe", "--config", str(CONFIG)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "published: 144,915,932 parameters; these are 144,689,377, -226,555 or -0.16%" in shown
    assert "neither the vocabulary nor which norms have gains" in shown


def test_the_recipe() -> None:
    run = Run(["--config", str(CONFIG)])
    assert run.tokens_per_step == 524_288
    assert run.config["trainer"]["accumulate_grad_batches"] == 8
    assert "published" not in run.config
    with torch.device("meta"):
        decoder, schedule, length = build(merge_configs([CONFIG]))
    assert length == 4096
    assert decoder.route.gather.query.shape == (19, 2, 1024)
    assert decoder.backbone.scale == decoder.route.scale == 16
    assert schedule.turns == [6, 2]
    assert [(part.count, part.weights) for part in schedule.parts] == [
        (3, [0.3, 0.3, 0.4]),
        (4, [0, 0, 0, 1]),
    ]


def test_it_trains_at_a_tiny_width(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    tiny.write_corpus(corpus)
    tiny.register(corpus)
    small = {
        "model.width": 16,
        "model.vocab": None,
        "model.ffn.init_args.hidden": [36, *[48] * 7],
        "data": {"corpus": "tiny", "length": 8, "batch_size": 1, "test_bytes": 32},
        "data.validation_bytes": 32,
        "trainer.max_steps": 2,
        "trainer.accelerator": "cpu",
        "evaluation": {"validate_every": 0, "curve_bytes": 32, "curve_passes": 16},
        "recording": {"tensorboard": False, "log_every": 1},
    }
    folder = tmp_path / "run"
    train(merge_configs([CONFIG], small), folder, {})
    final = json.loads((folder / "final.json").read_text())
    assert final["status"] == "finished" and final["tokens"] == 2 * 8 * 8
    assert final["passes"] == 3.25
    losses = final["curve"]["bpb"]
    assert len(losses) == 16
    # Thirteen losses, as the plan validates; pass 4 and the exact recurrence stand beside it.
    assert final["curve"]["mean_4_16"] == pytest.approx(sum(losses[3:]) / 13)
    assert final["test"]["last_pass"]["bpb"] and final["curve"]["exact_bpb"]


def test_what_is_published_is_checked() -> None:
    with pytest.raises(UserError, match=r"^published.parameters=0: give a count, or null$"):
        Published(0)
    assert Published().beside(3) is None
    assert Published(200).beside(150) == (
        "published: 200 parameters; these are 150, -50 or -25.00%"
    )
    with pytest.raises(
        UserError, match="^published: unknown option 'parameter'.*parameters, about$"
    ):
        published({"published": {"parameter": 3}})
