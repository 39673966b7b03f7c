"""2-simplicial attention's kernels, interpreted on the CPU, and what the operation asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

from lrt_kernels import simplicial_attention
from lrt_kernels.gpu import simplicial_attention as kernels
from lrt_kernels.simplicial_attention import _op
from tests.kernels.interpreter import interpreted, normal, value_and_gradients
from tests.support.compare import SAME, error, rms_error

#: Rows and positions of a tile in these tests: the fewest that a matrix product takes.
BLOCK = 16


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORWARD", "BACKWARD", "KEYS"):
        monkeypatch.setattr(kernels, name, BLOCK)


@dataclass(frozen=True)
class Case:
    """Queries at some positions of B rows of keys; all sizes are tiny."""

    positions: range
    windows: tuple[int, int]
    heads: int = 1
    kv_heads: int = 1
    size: int = 5
    batch: int = 1
    length: int | None = None
    packed: bool = False

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """q, k, k', v, v'."""
        length = self.positions[-1] + 1 if self.length is None else self.length
        sizes = [(len(self.positions), self.heads), *[(length, self.kv_heads)] * 4]
        return [
            normal(self.batch, *size, self.size, seed=n, dtype=dtype)
            for n, size in enumerate(sizes)
        ]

    def document(self) -> Tensor | None:
        """Documents of several lengths; the first one goes on after the second."""
        if not self.packed:
            return None
        rows = [[0, 0, 0, 1, 1, 0, 0, 2, 2, 2, 2] + [3] * 99, [0] * 5 + [1] * 99]
        return torch.tensor([row[: self.positions[-1] + 1] for row in rows[: self.batch]])

    def on(self, backend: str):
        def call(q: Tensor, *kv: Tensor) -> Tensor:
            return simplicial_attention(
                q,
                (kv[0], kv[1]),
                (kv[2], kv[3]),
                self.windows,
                self.positions,
                self.document(),
                backend=backend,
            )

        return call


CASES = {
    "one row": Case(range(1), (3, 2)),
    "a row less than a tile": Case(range(5), (3, 2), heads=3),
    "a row more than a tile": Case(range(BLOCK + 1), (4, 2)),
    "several heads": Case(range(6), (4, 2), heads=6, kv_heads=2, batch=2),
    "pair window wider": Case(range(6), (2, 4), heads=4),
    "windows of one": Case(range(6), (1, 1), heads=4),
    "pair window of one": Case(range(BLOCK + 3), (BLOCK + 1, 1)),
    "windows beyond the row": Case(range(5), (99, 20), heads=4),
    "several tiles of keys": Case(range(32, 37), (2 * BLOCK + 2, 2), heads=2),
    "documents": Case(range(12), (5, 4), heads=2, batch=2, packed=True),
    "documents, pair window wider": Case(range(9), (2, 6), heads=2, batch=2, packed=True),
    "prefill": Case(range(7, 12), (4, 3), heads=4, length=20, packed=True),
    "decoding": Case(range(10, 11), (6, 3), heads=8, kv_heads=2, length=18),
    "every fourth": Case(range(1, 22, 4), (7, 3), heads=4, packed=True),
    "as many features as a tile": Case(range(3), (3, 2), heads=2, size=16),
}


@interpreted
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("small_tiles")
def test_kernels(name: str) -> None:
    case = CASES[name]
    both = (value_and_gradients(case.on(b), case.inputs()) for b in ("triton", "reference"))
    for actual, expected in zip(*both, strict=True):
        assert (actual - expected).abs().max() <= SAME * max(1.0, expected.abs().max())


@interpreted
def test_tiles_of_a_gpu() -> None:
    """One row more than a whole tile of each kernel's."""
    case = Case(range(13), (3, 2), heads=5)
    assert 13 * 5 == kernels.FORWARD + 1 == 2 * kernels.BACKWARD + 1
    both = (value_and_gradients(case.on(b), case.inputs()) for b in ("triton", "reference"))
    assert all(error(actual, expected) <= SAME for actual, expected in zip(*both, strict=True))


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_little_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key head at a time: the same bits."""
    case = Case(range(3), (3, 2), heads=2, kv_heads=2)
    at_once = value_and_gradients(case.on("triton"), case.inputs())
    monkeypatch.setattr(kernels, "SCRATCH", 1)
    assert all(map(torch.equal, at_once, value_and_gradients(case.on("triton"), case.inputs())))


@interpreted
@pytest.mark.parametrize(
    "dtype, bounds", [(torch.float32, (1e-6, 2e-6)), (torch.bfloat16, (5e-3, 8e-3))], ids=str
)
@pytest.mark.usefixtures("small_tiles")
def test_narrow_inputs(dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    """Against float64 on the same, already rounded inputs: the output, and the gradients."""
    case = Case(range(9), (5, 3), heads=4, size=64, packed=True)
    ours = value_and_gradients(case.on("triton"), case.inputs(dtype))
    exact = value_and_gradients(case.on("reference"), case.inputs(dtype), torch.float64)
    found = [rms_error(actual, expected) for actual, expected in zip(ours, exact, strict=True)]
    assert found[0] <= bounds[0], found
    assert max(found[1:]) <= bounds[1], found
    again = value_and_gradients(case.on("triton"), case.inputs(dtype))
    assert all(map(torch.equal, ours, again))


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_large_scores() -> None:
    """Scores of hundreds: nothing overflows, and padding takes no part."""
    case = replace(CASES["documents"], batch=1)
    inputs = [100 * x if n < 1 else x for n, x in enumerate(case.inputs())]
    both = (value_and_gradients(case.on(b), inputs) for b in ("triton", "reference"))
    assert all(error(actual, expected) <= SAME for actual, expected in zip(*both, strict=True))


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_keys_apart() -> None:
    """Halves of the axis of heads, as a buffer of both keys holds them."""
    case = Case(range(5), (3, 2), heads=4, kv_heads=2)
    q, k, pair_k, v, pair_v = case.inputs()
    (k, pair_k), (v, pair_v) = (
        torch.cat(pair, 2).chunk(2, dim=2) for pair in ((k, pair_k), (v, pair_v))
    )
    assert not k.is_contiguous()
    found = case.on("triton")(q, k, pair_k, v, pair_v)
    assert error(found, case.on("reference")(q, k, pair_k, v, pair_v)) <= SAME


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_a_scale() -> None:
    case, scale = Case(range(5), (3, 2), heads=2), -0.7
    q, k, pair_k, v, pair_v = case.inputs()
    found, expected = (
        simplicial_attention(q, (k, pair_k), (v, pair_v), (3, 2), scale=scale, backend=backend)
        for backend in ("triton", "reference")
    )
    assert error(found, expected) <= SAME


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_autocast_narrows() -> None:
    case = Case(range(5), (3, 2), heads=2, size=64)
    inputs = case.inputs(torch.float32)
    # As a norm in float32 leaves them: queries and keys are wider than values.
    inputs[3:] = [x.bfloat16() for x in inputs[3:]]
    exact = case.on("reference")(*(x.double() for x in inputs))
    for backend in ("triton", "reference"):
        with torch.autocast("cpu", torch.bfloat16):
            found = case.on(backend)(*inputs)
        assert found.dtype == torch.bfloat16
        assert 1e-4 < rms_error(found.double(), exact) <= 0.02


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_numerical_gradients() -> None:
    """Of the kernels themselves, along random directions."""
    case = Case(range(1, 4), (3, 2), heads=2, size=3)
    inputs = [x.requires_grad_() for x in case.inputs()]
    assert torch.autograd.gradcheck(case.on("triton"), inputs, fast_mode=True)


@interpreted
@pytest.mark.parametrize("packed", [False, True], ids=["one document", "documents"])
@pytest.mark.usefixtures("small_tiles")
def test_registration(packed: bool) -> None:
    case = Case(range(2), (2, 1), packed=packed)
    inputs = [x.requires_grad_() for x in case.inputs()]
    document = case.document()
    document = None if document is None else document.int()
    found = torch.library.opcheck(_op, (*inputs, document, 0, 1, 2, 1, 0.5))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["auto", pytest.param("triton", marks=interpreted)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.usefixtures("small_tiles")
def test_one_graph(backend: str) -> None:
    """Traced whole, forward and backward; a kernel's operation is not looked into."""
    torch.compiler.reset()
    case = Case(range(2, 5), (3, 2), heads=2, length=6, packed=True)
    compiled = torch.compile(case.on(backend), fullgraph=True, backend="aot_eager")
    both = (value_and_gradients(call, case.inputs()) for call in (compiled, case.on(backend)))
    assert all(error(actual, expected) <= SAME for actual, expected in zip(*both, strict=True))


def test_the_determinant_form_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the reference where other calls take kernels, and says so when told to take them."""
    q, k, pair_k, v, pair_v = Case(range(4), (3, 2), size=6).inputs()
    call = {"q": q, "keys": (k, pair_k), "values": (v, pair_v), "windows": (3, 2)}
    expected = simplicial_attention(**call, determinant=True)
    # The package's attribute of that name is the function.
    module = import_module("lrt_kernels.simplicial_attention")
    monkeypatch.setattr(module, "choose", lambda op, backend, device: "triton")
    assert torch.equal(simplicial_attention(**call, determinant=True), expected)
    with pytest.raises(ValueError, match="backend='triton': the determinant form has no kernels"):
        simplicial_attention(**call, determinant=True, backend="triton")


Q, KEY = normal(2, 3, 4, 6), normal(2, 5, 2, 6)
WRONG = {
    r"q has shape \(3, 4, 6\): give \(B, P, H, d\)": {"q": Q[0]},
    r"q has shape \(2, 0, 4, 6\): give": {"q": Q[:, :0]},
    "q is not contiguous along its last axis": {"q": normal(2, 3, 6, 4).mT},
    "q is torch.int64: give one of": {"q": Q.long()},
    "keys has 1 entries: give two": {"keys": (KEY,)},
    "values has 3 entries: give two": {"values": (KEY, KEY, KEY)},
    r"keys\[0\] has shape \(2, 5, 6\): give \(B, N, G, d\)": {"keys": (KEY[:, :, 0], KEY)},
    r"keys\[0\] has 3 heads: they divide the 4 of q": {"keys": (normal(2, 5, 3, 6), KEY)},
    r"keys\[0\] has shape \(1, 5, 2, 6\), not \(2, 5, 2, 6\)": {"keys": (KEY[:1], KEY)},
    r"keys\[1\] has shape \(2, 4, 2, 6\), not \(2, 5, 2, 6\)": {"keys": (KEY, KEY[:, :4])},
    r"keys\[1\] is torch.float32, q torch.float64": {"keys": (KEY, KEY.float())},
    r"keys\[0\] is on meta": {"keys": (KEY.to("meta"), KEY)},
    r"values\[0\] has shape \(2, 5, 2, 4\), not": {"values": (normal(2, 5, 2, 4), KEY)},
    r"values\[1\] is torch.float32, values\[0\] torch.float64": {"values": (KEY, KEY.float())},
    r"values\[1\] is not contiguous along": {"values": (KEY, normal(2, 5, 6, 2).mT)},
    r"windows=\(3, 0\): a position counts itself": {"windows": (3, 0)},
    "windows has 1 entries: give two": {"windows": (3,)},
    "positions has 2 entries for 3 queries": {"positions": range(2)},
    r"positions=range\(3, 6\): they rise from 0 or later, within 5": {"positions": range(3, 6)},
    r"positions=range\(3, 0, -1\): they rise": {"positions": range(3, 0, -1)},
    r"positions=range\(-1, 2\): they rise": {"positions": range(-1, 2)},
    r"document has shape \(2, 2\): give \(2, 3 or more\)": {"document": torch.zeros(2, 2)},
    r"document has shape \(3, 5\): give": {"document": torch.zeros(3, 5)},
    "document is on meta": {"document": torch.zeros(2, 5, device="meta")},
    "backend='cuda': give auto, reference or triton": {"backend": "cuda"},
}


@pytest.mark.parametrize("message", WRONG, ids=lambda m: m.split(" ")[0] + " " + m[-24:])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_wrong_inputs_are_named(message: str, backend: str) -> None:
    given = {"q": Q, "keys": (KEY, KEY), "values": (KEY, KEY), "windows": (3, 2)}
    with pytest.raises(ValueError, match=message):
        simplicial_attention(**given | {"backend": backend} | WRONG[message])


def test_a_determinant_takes_triples() -> None:
    q, k = normal(1, 3, 1, 4), normal(1, 3, 1, 4)
    with pytest.raises(ValueError, match="determinant: q has 4 features, not a multiple of 3"):
        simplicial_attention(q, (k, k), (k, k), (2, 2), determinant=True)
