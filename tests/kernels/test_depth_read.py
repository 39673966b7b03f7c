"""The depth read against its formula written out, at numbers of sources that break kernels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lrt_kernels import depth_mix, depth_read, depth_score
from tests.support.compare import SAME, error, rms_error
from tests.support.golden import golden

WIDTH = 6
MANY = pytest.mark.parametrize("count", [1, 2, 5, 31, 32, 33, 49, 129])


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64) * scale


def written_out(
    sources: Tensor,
    query: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    eps: float = 1e-6,
    masks: Tensor | None = None,
) -> Tensor:
    """The formula on stacked sources ``(S, ..., d)``; masks ``(S, ...)`` are true where present."""
    keys = sources / torch.sqrt(sources.square().mean(-1, keepdim=True) + eps)
    query = query.expand(len(sources), -1).reshape(len(sources), *[1] * (sources.dim() - 2), WIDTH)
    logits = (query * keys).sum(-1)
    if bias is not None:
        logits = logits + bias.reshape(-1, *[1] * (logits.dim() - 1))
    weights = torch.exp(logits / scale)
    if masks is not None:
        weights = weights * masks
    return (weights.unsqueeze(-1) * sources).sum(0) / weights.sum(0).unsqueeze(-1)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@MANY
def test_one_query_for_all_sources(count: int, shape: tuple[int, ...]) -> None:
    sources, query = random(count, *shape, WIDTH), random(WIDTH, seed=1)
    got = depth_read(list(sources), query)
    assert error(got, written_out(sources, query)) <= SAME


@MANY
def test_a_query_and_a_bias_per_source(count: int) -> None:
    sources, query = random(count, 2, 3, WIDTH), random(count, WIDTH, seed=1)
    bias = random(count, seed=2)
    got = depth_read(list(sources), query, bias, scale=16.0, eps=1e-3)
    assert error(got, written_out(sources, query, bias, 16.0, 1e-3)) <= SAME


@MANY
def test_absent_sources(count: int) -> None:
    sources, query = random(count, 2, 3, WIDTH), random(WIDTH, seed=1)
    masks = random(count, 2, 3, seed=3) > 0
    masks[0] = True
    got = depth_read(list(sources), query, masks=list(masks))
    assert error(got, written_out(sources, query, masks=masks)) <= SAME
    some = [None if mask.all() else mask for mask in masks]
    assert torch.equal(depth_read(list(sources), query, masks=some), got)


@MANY
def test_gradients_of_everything(count: int) -> None:
    sources = random(count, 2, WIDTH).requires_grad_()
    query = random(count, WIDTH, seed=1).requires_grad_()
    bias = random(count, seed=2).requires_grad_()
    masks = random(count, 2, seed=3) > -1
    masks[0] = True
    cotangent = random(2, WIDTH, seed=4)
    inputs = (sources, query, bias)
    ours = depth_read(list(sources), query, bias, 2.0, masks=list(masks))
    theirs = written_out(sources, query, bias, 2.0, masks=masks)
    one, two = (
        torch.autograd.grad((out * cotangent).sum(), inputs, materialize_grads=True)
        for out in (ours, theirs)
    )
    for mine, expected in zip(one, two, strict=True):
        # A single source is read whatever its logit: both gradients are zero, up to rounding.
        assert (mine - expected).abs().max() <= SAME * max(1.0, expected.abs().max())


def test_numerical_gradients() -> None:
    sources = random(4, 2, WIDTH).requires_grad_()
    query, bias = random(WIDTH, seed=1).requires_grad_(), random(4, seed=2).requires_grad_()
    masks = [None, torch.tensor([True, False]), None, torch.tensor([False, False])]

    def read(sources: Tensor, query: Tensor, bias: Tensor) -> Tensor:
        return depth_read(list(sources), query, bias, scale=1.5, masks=masks)

    assert torch.autograd.gradcheck(read, (sources, query, bias))


@MANY
def test_scoring_and_mixing_apart(count: int) -> None:
    """One product for many readers, then a mix per reader."""
    sources, queries = random(count, 2, 3, WIDTH), random(3, WIDTH, seed=1)
    logits = [depth_score(source, queries) for source in sources]
    for reader, query in enumerate(queries):
        mixed = depth_mix([logit[..., reader] for logit in logits], list(sources))
        assert error(mixed, depth_read(list(sources), query)) <= SAME


def test_published_numbers() -> None:
    expected = golden("attnres_read_fp32")
    sources = expected["V"].clone().requires_grad_()
    query = expected["query"].clone().requires_grad_()
    gain = expected["key_norm_weight"].clone().requires_grad_()
    eps = float(expected["eps"])
    out = depth_read(list(sources), query * gain, eps=eps)
    assert rms_error(out, expected["out"]) <= 2e-5
    out.square().sum().backward()
    assert rms_error(sources.grad, expected["grad_V"]) <= 2e-5
    assert rms_error(query.grad, expected["grad_query"]) <= 2e-5
    assert rms_error(gain.grad, expected["grad_key_norm_weight"]) <= 2e-5
    logits = torch.stack([depth_score(s, (query * gain)[None], eps)[..., 0] for s in sources])
    assert rms_error(torch.softmax(logits, dim=0), expected["alpha"]) <= 2e-5


def test_values_stay_raw_and_scores_do_not_see_their_size() -> None:
    query = random(WIDTH, seed=1)
    small, large = random(WIDTH, seed=2), random(WIDTH, seed=3, scale=1e3)
    score = depth_score(small, query[None])
    assert error(depth_score(1e3 * small, query[None]), score) <= 1e-6
    twin = depth_read([large, large], query)
    assert error(twin, large) <= 1e-12


def test_extreme_logits_do_not_overflow() -> None:
    sources = random(3, 2, WIDTH).requires_grad_()
    query = random(WIDTH, seed=1) * 1e4
    out = depth_read(list(sources), query, masks=[None, torch.tensor([True, False]), None])
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(sources.grad).all()


def test_zero_sources_have_finite_gradients() -> None:
    sources = [torch.zeros(2, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    depth_read(sources, random(WIDTH)).sum().backward()
    assert all(torch.isfinite(source.grad).all() for source in sources)


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_logits_are_wide_when_sources_are_narrow(autocast: bool) -> None:
    sources = list(random(5, 2, 3, WIDTH).to(torch.bfloat16))
    query = random(WIDTH, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        score = depth_score(sources[0], query[None])
        out = depth_read(sources, query)
    assert score.dtype == torch.float32
    assert out.dtype == torch.bfloat16
    wide = depth_score(sources[0].double(), query[None].double())
    assert error(score.double(), wide) <= 1e-5
    exact = written_out(torch.stack(sources).double(), query.double())
    assert rms_error(out.double(), exact) <= 4 * torch.finfo(torch.bfloat16).eps


def test_equal_logits_are_a_mean() -> None:
    sources = random(7, 2, WIDTH)
    got = depth_read(list(sources), torch.zeros(WIDTH, dtype=torch.float64))
    assert error(got, sources.mean(0)) <= 1e-12
    lifted = depth_read(
        list(sources), torch.zeros(WIDTH, dtype=torch.float64), torch.tensor([math.log(2.0)] * 7)
    )
    assert error(lifted, got) <= 1e-12
