"""mHC-lite: permutations, units and start values against the authors' code; what it promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lrt_kernels import stream_write
from lrt_lab.backbones import MHCLite
from lrt_lab.backbones.mhc_lite import permutations
from lrt_lab.decoder import Decoder
from lrt_lab.errors import UserError
from tests.backbones.test_mhc import WIDTH, N, built, carried, check_authors, check_initial, load
from tests.support.golden import golden


def authors(arrays: dict[str, Tensor], prefix: str = "", gamma: str = "norm_gamma") -> dict:
    """The authors' arrays as ours.

    Theirs: static_alpha, n reads and then n! permutations; dynamic_alpha_fn (n d; the same); beta
    is the write. The norm's gain is 1 + gamma.
    """
    static, dynamic = arrays[f"{prefix}static_alpha"], arrays[f"{prefix}dynamic_alpha_fn"].mT
    scales = ("pre_branch_scale", "h_post_scale", "residual_scale")
    return {
        "phi": torch.cat([dynamic[:N], arrays[f"{prefix}dynamic_beta_fn"].mT, dynamic[N:]]),
        "beta": torch.cat([static[:N], arrays[f"{prefix}static_beta"], static[N:]]),
        "alpha": torch.stack([arrays[prefix + scale].reshape(()) for scale in scales]),
        "gain": arrays[gamma] + (0 if prefix == "grad_" else 1),
    }


def test_one_unit() -> None:
    expected = golden("mhc_lite_unit")
    backbone = built(MHCLite(eps=0.0), torch.float64)
    load(backbone, authors(expected))
    check_authors(expected, backbone, authors(expected, "grad_", "grad_norm_gamma"))


def test_the_authors_initial_values() -> None:
    expected = golden("mhc_lite_unit")
    backbone = built(MHCLite(initial="authors", eps=0.0), torch.float64, blocks=2)
    check_initial(expected, backbone, authors(expected, "init_", "init_norm.gamma"))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_permutations_are_the_authors(n: int) -> None:
    expected = golden("mhc_lite_permutations")
    assert torch.equal(permutations(n), expected[f"perms_n{n}"])
    assert torch.equal(permutations(n)[0], torch.eye(n))
    if n == N:
        assert torch.equal(permutations(n).argmax(-1), expected["perm_index_n4"])


@pytest.mark.parametrize("n, count", [(0, 0), (6, 720), (7, 5040)])
def test_too_many_permutations(n: int, count: int) -> None:
    with pytest.raises(UserError, match=f"{n} streams have {count} permutations: give 1 to 5"):
        permutations(n)


@pytest.mark.parametrize("streams", [2, 3, 4, 5])
@pytest.mark.parametrize("std", [1.0, 12.0])
def test_the_carry_preserves_the_mean_and_never_expands(std: float, streams: int) -> None:
    backbone = built(MHCLite(streams), torch.float64)
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(64, math.factorial(streams), generator=g, dtype=torch.float64) * std
    carry = carried(backbone, logits)
    for axis in (-1, -2):
        assert (carry.sum(axis) - 1).abs().max() <= 1e-14
    x = torch.randn(64, streams, WIDTH, generator=g, dtype=torch.float64)
    still = x.new_zeros(64, streams)
    for _ in range(20):
        following = stream_write(x, carry, still, x.new_zeros(64, WIDTH))
        assert (following.mean(-2) - x.mean(-2)).abs().max() <= 1e-14
        assert (following.norm(dim=(-1, -2)) <= x.norm(dim=(-1, -2)) * (1 + 1e-14)).all()
        x = following


def test_differences_between_streams_may_vanish() -> None:
    """All permutations alike average the streams in one step; nothing brings them back."""
    backbone = built(MHCLite(), torch.float64)
    carry = carried(backbone, torch.zeros(1, 24, dtype=torch.float64))
    x = torch.randn(1, N, WIDTH, dtype=torch.float64)
    zero = x.new_zeros(1, N), x.new_zeros(1, WIDTH)
    following = stream_write(x, carry, *zero)
    assert (following - x.mean(-2, keepdim=True)).abs().max() <= 1e-15


def test_the_matrices_follow_the_module_and_stay_out_of_its_state() -> None:
    decoder = Decoder(8, 1, 4, backbone=MHCLite())
    assert not any("permutations" in name for name in decoder.state_dict())
    assert decoder.backbone.permutations.dtype == torch.float32
    assert decoder.double().backbone.permutations.dtype == torch.float64
    # Ones and zeros lose nothing in bfloat16; the carry is wide again.
    narrow = decoder.bfloat16().backbone
    assert narrow.permutations.dtype == torch.bfloat16
    assert carried(narrow, torch.zeros(1, 24)).dtype == torch.float32
    with torch.device("meta"):
        assert Decoder(8, 1, 4, backbone=MHCLite()).backbone.permutations.is_meta
