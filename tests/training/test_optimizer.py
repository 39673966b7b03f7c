"""Named groups, the course of the learning rate, and Muon beside AdamW."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, PreNorm
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.training.optimizer import AdamW, MuonAdamW, named_groups

BODY = {"query", "key", "value", "out", "up", "down"}


def decoder(backbone: type = AttentionResiduals, route: type = LRT) -> Decoder:
    return Decoder(16, 1, 11, backbone(), route())


def test_groups_are_decided_by_role() -> None:
    groups = {role: set(members) for role, members in named_groups(decoder()).items()}
    assert groups["matrix"] == {
        *(
            f"units.{unit}.body.{name}"
            for unit in (0, 1)
            for name in BODY
            if (name in ("up", "down")) == unit
        ),
        "route.key_4x4",
        "route.value_4x4",
    }
    assert groups["embedding"] == {"embedding"}
    assert groups["head"] == {"head"}
    assert groups["gain"] == {"units.0.norm.gain", "units.1.norm.gain", "norm.gain"}
    assert groups["connection"] == {
        "backbone.query",
        "backbone.key_gain",
        "route.gate_0",
        "route.alpha",
        "route.gamma",
    }


@pytest.mark.parametrize("spec", [AdamW(), MuonAdamW()], ids=["AdamW", "MuonAdamW"])
def test_only_matrices_and_the_head_decay(spec: AdamW) -> None:
    optimizer = spec.build(decoder())
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert {name for name, decay in decays.items() if decay} == {"matrix", "head"}
    held = sum(
        parameter.numel() for group in optimizer.param_groups for parameter in group["params"]
    )
    assert held == sum(parameter.numel() for parameter in decoder().parameters())


def test_connections_never_go_to_muon() -> None:
    optimizer = MuonAdamW().build(decoder())
    muon = optimizer.optimizers[0]
    names = [name for group in muon.param_groups for name in group["parameter_names"]]
    assert names and not any(name.startswith("backbone") or "gate" in name for name in names)


def test_the_rate_rises_then_falls_to_its_floor() -> None:
    spec = AdamW(warmup=0.1, final=0.1)
    course = [spec.factor(step, 100) for step in range(100)]
    assert course[0] == pytest.approx(0.1)
    assert max(course) == course[9] == 1.0
    assert all(a > b for a, b in zip(course[9:], course[10:], strict=False))
    assert course[-1] == pytest.approx(0.1)
    assert AdamW(warmup=0.0, final=0.0, decay="linear").factor(99, 100) == pytest.approx(0.0)


def test_muon_and_adamw_step_and_resume_as_one() -> None:
    def run(steps: int, state: tuple | None = None) -> tuple[list[torch.Tensor], tuple]:
        model = decoder(PreNorm, NoRoute)
        optimizer = MuonAdamW(lr=0.01).build(model)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for _ in range(steps):
            optimizer.zero_grad()
            sum(parameter.square().sum() for parameter in model.parameters()).backward()
            optimizer.step()
        values = [parameter.detach().clone() for parameter in model.parameters()]
        return values, (model.state_dict(), optimizer.state_dict())

    whole, _ = run(4)
    _, half = run(2)
    resumed, _ = run(2, half)
    start, _ = run(0)
    for a, b, c in zip(whole, resumed, start, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c) or not c.any()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"lr": 0.0}, "lr=0.0"), ({"warmup": 1.0}, "warmup=1.0"), ({"final": 2.0}, "final=2.0")],
    ids=["rate", "warmup", "final"],
)
def test_options_that_cannot_be_used(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        AdamW(**options)
