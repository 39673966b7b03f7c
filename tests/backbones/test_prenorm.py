"""PreNorm: one unit against its equation's numbers, stream scales, where things land."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from lrt_lab.backbones import PreNorm
from lrt_lab.decoder import Decoder, Unit
from lrt_lab.frame import Frame
from lrt_lab.layers import Shape
from tests.backbones.stacks import Branch
from tests.support.golden import golden
from tests.support.models import small_decoder, tokens


def test_one_unit() -> None:
    expected = golden("prenorm_unit")
    width = expected["x"].shape[-1]
    body = Branch()
    body.setup(Shape(width, 1, 1), 0)
    unit = Unit(body, width, float(expected["eps"])).double()
    with torch.no_grad():
        body.weight.copy_(expected["W"])
        unit.norm.gain.copy_(expected["norm_weight"])
    x = expected["x"].clone().requires_grad_()
    backbone = PreNorm()
    state = backbone.start(x, [])
    normed = unit.normed(backbone.read(state, 1))
    branch = unit.body(normed)
    out = backbone.finish(backbone.write(state, 1, branch))
    loss = out.square().sum()
    loss.backward()
    close = {"rtol": 1e-9, "atol": 1e-10}
    assert_close(normed.detach(), expected["normed"], **close)
    assert_close(branch.detach(), expected["branch_out"], **close)
    assert_close(out.detach(), expected["out"], **close)
    assert_close(loss.detach(), expected["loss"], **close)
    assert_close(x.grad, expected["grad_x"], **close)
    assert_close(body.weight.grad, expected["grad_W"], **close)
    assert_close(unit.norm.gain.grad, expected["grad_norm_weight"], **close)


def test_stream_scales_enter_every_block_and_only_there() -> None:
    backbone = PreNorm(stream_scales=True)
    backbone.setup(Shape(4, 2, 1), 0)
    with torch.no_grad():
        backbone.stream.copy_(torch.tensor([2.0, 3.0]))
        backbone.skip.copy_(torch.tensor([0.5, 0.25]))
    x, y = torch.ones(1, 1, 4), torch.full((1, 1, 4), 10.0)
    state = backbone.start(x, [])
    entered = []
    for unit in range(4):
        state = backbone.enter(state, unit, lambda x: x)
        entered.append(backbone.read(state, unit)[0, 0, 0].item())
        state = backbone.write(state, unit, y)
    assert entered == [2.5, 12.5, 3 * 22.5 + 0.25, 3 * 22.5 + 0.25 + 10]


def test_an_injection_changes_the_stream_for_good() -> None:
    backbone = PreNorm()
    state = backbone.start(torch.zeros(1, 2, 4), [])
    changed = backbone.enter(state, 0, lambda x: x + 1)
    assert backbone.read(changed, 0).eq(1).all()
    assert backbone.finish(backbone.write(changed, 0, torch.ones(1, 2, 4))).eq(2).all()
    # States are values: the one before is as it was.
    assert backbone.read(state, 0).eq(0).all()


def test_sources_are_added_where_they_are_present() -> None:
    backbone = PreNorm()
    present = torch.tensor([[True, False]])
    state = backbone.start(torch.zeros(1, 2, 4), [(torch.ones(1, 2, 4), present)])
    assert backbone.finish(state)[0, :, 0].tolist() == [1, 0]


def test_normformer_norms_the_mixer_output_and_the_hidden_features() -> None:
    decoder = small_decoder(PreNorm(normformer=True))
    plain = small_decoder(PreNorm())
    extra = {n for n, _ in decoder.named_parameters()} - {n for n, _ in plain.named_parameters()}
    blocks = range(decoder.shape.blocks)
    assert extra == {f"backbone.mixer_norm.{block}.gain" for block in blocks} | {
        f"units.{2 * block + 1}.body.inner.gain" for block in blocks
    }
    backbone, x, y = decoder.backbone, *torch.randn(2, 2, 3, 8).double()
    state = backbone.start(x, [])
    after = backbone.finish(backbone.write(state, 2, y))
    gain = backbone.mixer_norm[1].gain
    assert_close(after, x + y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain)
    assert_close(backbone.finish(backbone.write(state, 3, y)), x + y)
    body = decoder.units[3].body
    hidden = torch.relu(x @ body.up.T).square()
    normed = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-6).sqrt() * body.inner.gain
    assert_close(body(x), normed @ body.down.T)


def test_normformer_starts_as_prenorm() -> None:
    """Output maps are zero, so there is nothing to norm yet."""
    frame = Frame(tokens())
    one, other = (Decoder(8, 2, 40, backbone=PreNorm(normformer=n)) for n in (True, False))
    for decoder in (one, other):
        decoder.sweep(frame, frame.positions).hidden.square().mean().backward()
    assert torch.equal(*(d.sweep(frame, frame.positions).hidden for d in (one, other)))
