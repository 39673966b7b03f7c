"""2-simplicial attention: published arrays, the double loop, attention, memory and cost."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from lrt_kernels import simplicial_attention
from tests.support.compare import SAME, error
from tests.support.golden import golden

META = [
    "simplicial_mqa_w5_w3_T12",
    "simplicial_gqa_w4_w8_T14",
    "simplicial_mha_full_T9",
    "simplicial_mqa_kvbias_w5_w3_T12",
]


@pytest.fixture(params=[1 << 21, 64], ids=["one group", "groups"])
def grouped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package's attribute of that name is the function.
    module = import_module("lrt_kernels.simplicial_attention")
    monkeypatch.setattr(module, "SCORES", request.param)


def random(length: int, heads: int = 4, kv_heads: int = 2, size: int = 6) -> list[Tensor]:
    """q, k, k', v, v' in float64."""
    g = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, length, n, size, generator=g, dtype=torch.float64)
        for n in (heads, *[kv_heads] * 4)
    ]


@pytest.mark.parametrize("name", META)
@pytest.mark.usefixtures("grouped")
def test_published_arrays(name: str) -> None:
    z = golden(name)
    x = {key: z[key].clone().requires_grad_() for key in ("q", "k1", "k2", "v1", "v2")}
    keys, values = (x["k1"], x["k2"] + z["k2_bias"]), (x["v1"], x["v2"] + z["v2_bias"])
    windows = (int(z["w1"]), int(z["w2"]))
    o = simplicial_attention(x["q"], keys, values, windows, scale=float(z["scale"]))
    (o * z["do"]).sum().backward()
    for actual, expected in [(o, z["o"]), *((x[key].grad, z[f"d{key}"]) for key in x)]:
        assert_close(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("form", ["trilinear", "signed_det"])
@pytest.mark.parametrize("windows", [(9, 9), (9, 20), (20, 9)], ids=str)
@pytest.mark.usefixtures("grouped")
def test_published_arrays_of_both_forms(form: str, windows: tuple[int, int]) -> None:
    z = golden(f"simplicial_lucidrains_{form}_causal_T9")
    x = {key: z[key].transpose(1, 2).clone().requires_grad_() for key in ("q", "k1", "k2")}
    x |= {key: z[key].transpose(1, 2).clone().requires_grad_() for key in ("v1", "v2")}
    o = simplicial_attention(
        x["q"],
        (x["k1"], x["k2"]),
        (x["v1"], x["v2"]),
        windows,
        scale=float(z["scale"]),
        determinant=form == "signed_det",
    )
    (o * z["do"].transpose(1, 2)).sum().backward()
    pairs = [(o, z["o"]), *((x[key].grad, z[f"d{key}"]) for key in x)]
    for actual, expected in pairs:
        assert_close(actual, expected.transpose(1, 2), rtol=1e-9, atol=1e-10)


def by_hand(
    x: list[Tensor], windows: tuple[int, int], document: Tensor, determinant: bool
) -> Tensor:
    """One softmax and one pair at a time."""
    q, k, pair_k, v, pair_v = x
    out = torch.zeros_like(q)
    share = q.shape[2] // k.shape[2]
    for row in range(q.shape[0]):
        for i in range(q.shape[1]):
            near = [
                [j for j in range(max(0, i - w + 1), i + 1) if document[row, j] == document[row, i]]
                for w in windows
            ]
            pairs = [(j, other) for j in near[0] for other in near[1]]
            for h in range(q.shape[2]):
                g, scores = h // share, []
                for j, other in pairs:
                    three = torch.stack([q[row, i, h], k[row, j, g], pair_k[row, other, g]])
                    if determinant:
                        triples = three.view(3, -1, 3).transpose(0, 1)
                        scores.append(torch.linalg.det(triples).sum())
                    else:
                        scores.append(three.prod(0).sum())
                weights = torch.softmax(torch.stack(scores) / q.shape[-1] ** 0.5, 0)
                for weight, (j, other) in zip(weights, pairs, strict=True):
                    out[row, i, h] += weight * v[row, j, g] * pair_v[row, other, g]
    return out


@pytest.mark.parametrize("determinant", [False, True], ids=["trilinear", "determinant"])
@pytest.mark.parametrize("windows", [(4, 2), (2, 4), (1, 1), (20, 3)], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.usefixtures("grouped")
@torch.no_grad()
def test_the_double_loop(windows: tuple[int, int], packed: bool, determinant: bool) -> None:
    length = 8
    x = random(length)
    document = torch.zeros(2, length)
    if packed:
        document[0, 3:], document[1, 6:] = 1, 1
    expected = by_hand(x, windows, document, determinant)
    q, *kv = x
    options = {"determinant": determinant, "document": document if packed else None}
    keys, values = (kv[0], kv[1]), (kv[2], kv[3])
    assert error(simplicial_attention(q, keys, values, windows, **options), expected) <= SAME
    for some in (range(1, 8, 3), range(7, 8), range(2, 5)):
        own = simplicial_attention(q[:, list(some)], keys, values, windows, some, **options)
        assert error(own, expected[:, list(some)]) <= SAME


@pytest.mark.parametrize("which", [0, 1], ids=["window", "pair window"])
@torch.no_grad()
def test_ones_in_place_of_a_pair_is_attention(which: int) -> None:
    """Every position of the other window then counts alike, so the softmax is attention's."""
    q, k, _, v, _ = random(9)
    ones = torch.ones_like(k)
    keys, values = [(k, ones), (v, ones)] if which == 0 else [(ones, k), (ones, v)]
    windows = (9, 4) if which == 0 else (4, 9)
    expected = F.scaled_dot_product_attention(
        *(y.transpose(1, 2) for y in (q, k, v)), is_causal=True, enable_gqa=True
    )
    o = simplicial_attention(q, keys, values, windows)
    assert error(o, expected.transpose(1, 2)) <= SAME


def kept_bytes(length: int, windows: tuple[int, int]) -> int:
    """Bytes of the storages saved for backward, those of the inputs not counted."""
    x = [y.float().requires_grad_() for y in random(length)]
    known = {y.untyped_storage().data_ptr() for y in x}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    q, k, pair_k, v, pair_v = x
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        o = simplicial_attention(q, (k, pair_k), (v, pair_v), windows)
    assert o.requires_grad
    return sum(sizes.values())


def test_scores_are_not_kept() -> None:
    length, windows = 256, (64, 8)
    scores = 4 * 2 * 4 * length * windows[0] * windows[1]
    assert kept_bytes(length, windows) < scores / 20


def flops(length: int, windows: tuple[int, int]) -> int:
    x = [y.float().to("meta").requires_grad_() for y in random(length, size=16)]
    q, k, pair_k, v, pair_v = x
    with FlopCounterMode(display=False) as counter:
        simplicial_attention(q, (k, pair_k), (v, pair_v), windows).sum().backward()
    return counter.get_total_flops()


def test_cost_is_length_times_both_windows() -> None:
    """Forward, recomputed forward and backward: 2 + 2 + 4 products; edges of groups add some."""
    unit = 2 * 2 * 4 * 16
    for length, windows in ((256, (64, 8)), (512, (64, 8)), (256, (128, 8)), (256, (64, 16))):
        least = 8 * unit * length * windows[0] * windows[1]
        assert least <= flops(length, windows) <= 3 * least
