"""Gradients that a source assembles from its readers are those that autograd adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lrt_kernels import Scored, read_scored, score_source
from lrt_kernels.backend import Backend
from lrt_lab.backbones import AttentionResiduals, PairwiseAttentionResiduals, attention_residuals
from lrt_lab.frame import Frame
from lrt_lab.routes import GatherFFN
from tests.kernels.interpreter import normal
from tests.support.compare import SAME, error, rms_error
from tests.support.models import small_decoder

WIDTH, LAYERS, EXACT = 6, 5, 1e-12
SHAPE = (2, 3)
BOTH = pytest.mark.parametrize("pull", [False, True], ids=["plain", "pull"])


class Stack:
    """Layers that read what came before; each one's output is a source of the later ones.

    The embedding is joined by a source that is masked. The last layer's output is read by nobody,
    and no gradient comes to the read of layer ``blind``.
    """

    def __init__(
        self,
        heads: int = 1,
        biased: bool = True,
        dtype: torch.dtype = torch.float64,
        blind: int | None = 1,
        backend: Backend = "reference",
    ) -> None:
        self.heads, self.blind, self.backend = heads, blind, backend
        wide = torch.promote_types(dtype, torch.float32)
        self.starts = [normal(*SHAPE, WIDTH, seed=j, dtype=dtype) for j in range(2)]
        rows, sources = LAYERS * heads, LAYERS + 2
        self.query = normal(sources, rows, WIDTH, seed=5, dtype=wide)
        self.bias = [normal(sources, rows, seed=6, dtype=wide)] if biased else []
        self.weight = normal(LAYERS, WIDTH, WIDTH, seed=7, dtype=dtype)
        self.mask = normal(*SHAPE, seed=8) > 0

    def leaves(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        inputs = [*self.starts, self.query, self.weight, *self.bias]
        return [x.detach().clone().to(dtype or x.dtype).requires_grad_() for x in inputs]

    def score(self, pull: bool, value: Tensor, query: Tensor, bias: Tensor | None) -> Scored:
        return score_source(value, query, bias, 1.5, 1e-3, self.heads, self.backend, pull)

    def layer(
        self, sources: list[Scored], reader: int, weight: Tensor, masks: list[Tensor | None]
    ) -> Tensor:
        x = read_scored(sources, [reader] * len(sources), masks)
        return torch.tanh((x.detach() if reader == self.blind else x) @ weight)

    def run(self, pull: bool, leaves: list[Tensor], around: Callable[..., Any] | None = None):
        first, second, queries, weights, *bias = leaves
        query, biases = queries.unbind(), bias[0].unbind() if bias else [None] * (LAYERS + 2)
        values, masks = [first, second], [None, self.mask]
        sources = [self.score(pull, v, query[j], biases[j]) for j, v in enumerate(values)]
        total = first.new_zeros(())
        for reader in range(LAYERS):
            run = self.layer if around is None else partial(around, self.layer)
            y = run(list(sources), reader, weights[reader], list(masks))
            total = total + (y * normal(*y.shape, seed=20 + reader).to(y)).sum()
            at = len(sources)
            sources.append(self.score(pull, y, query[at], biases[at]))
            masks.append(None)
        return total

    def gradients(self, pull: bool, dtype: torch.dtype | None = None, **options: Any):
        leaves = self.leaves(dtype)
        total = self.run(pull, leaves, **options)
        return [total.detach(), *torch.autograd.grad(total, leaves)]


def same(ours: list[Tensor], theirs: list[Tensor], bound: float = EXACT) -> None:
    for actual, expected in zip(ours, theirs, strict=True):
        assert error(actual, expected) <= bound


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_a_stack_of_readers(heads: int, biased: bool) -> None:
    stack = Stack(heads, biased)
    ours, theirs = stack.gradients(True), stack.gradients(False)
    assert torch.equal(ours[0], theirs[0])
    same(ours, theirs)


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)], ids=str)
def test_narrow_inputs(dtype: torch.dtype, bound: float) -> None:
    stack = Stack(dtype=dtype)
    exact = stack.gradients(False, torch.float64)
    for pull in (False, True):
        for actual, expected in zip(stack.gradients(pull), exact, strict=True):
            assert rms_error(actual.double(), expected) <= bound


def test_numerical_gradients() -> None:
    stack = Stack(heads=2, blind=None)
    call = lambda *leaves: stack.run(True, list(leaves))  # noqa: E731
    assert torch.autograd.gradcheck(call, stack.leaves(), fast_mode=True)


def test_only_what_wants_gradients_gets_them() -> None:
    stack = Stack()
    for frozen in range(len(stack.leaves())):
        found = []
        for pull in (True, False):
            leaves = stack.leaves()
            leaves[frozen].requires_grad_(False)
            stack.run(pull, leaves).backward()
            assert leaves[frozen].grad is None
            found.append([x.grad for x in leaves if x.requires_grad])
        same(*found)


class Deaf(torch.autograd.Function):
    """Says that it has no gradient, where zeros are the other way to say it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:  # type: ignore[override]
        return None


def test_an_undefined_gradient() -> None:
    found = []
    for pull in (True, False):
        leaves = [normal(4, WIDTH, seed=j).requires_grad_() for j in range(4)]
        sources = [score_source(x, leaves[3], None, pull=pull) for x in leaves[:3]]
        out = Deaf.apply(read_scored(sources, [0] * 3)) + read_scored(sources[:2], [1, 1])
        found.append(torch.autograd.grad(out.square().sum(), leaves, materialize_grads=True))
    assert not found[0][2].any()
    same(
        [x for j, x in enumerate(found[0]) if j != 2], [x for j, x in enumerate(found[1]) if j != 2]
    )


def test_without_gradients() -> None:
    stack = Stack()
    leaves = stack.leaves()
    with torch.no_grad():
        total = stack.run(True, leaves)
    assert not total.requires_grad and torch.equal(total, stack.run(False, leaves))


def test_backward_twice() -> None:
    stack = Stack()
    leaves, once = stack.leaves(), stack.gradients(True)[1:]
    total = stack.run(True, leaves)
    total.backward(retain_graph=True)
    total.backward()
    same([x.grad for x in leaves], [2 * x for x in once])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        total.backward()


def test_backward_after_one_that_failed() -> None:
    leaves = [normal(4, WIDTH, seed=j).requires_grad_() for j in range(3)]
    sources = [score_source(x, leaves[2], None, pull=True) for x in leaves[:2]]
    first, *rest = (read_scored(sources, [i, i]) for i in range(4))
    total = sum((x.square().sum() for x in rest), first.square().sum())
    grad = partial(torch.autograd.grad, total, leaves, retain_graph=True)
    once = list(grad())

    def fail(grad: Tensor) -> None:
        raise RuntimeError("on purpose")

    # The first read's gradient is the last to come.
    handle = first.register_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        grad()
    handle.remove()
    same(list(grad()), once)


def test_backward_in_parts() -> None:
    """A pass that stops short of a source, or starts from some of its reads, leaves no trace."""
    expected: list[list[Tensor]] = []
    for pull in (False, True):
        first, second, query = (normal(4, WIDTH, seed=j).requires_grad_() for j in range(3))
        sources = [score_source(x, query, None, pull=pull) for x in (first, second)]
        reads = [read_scored(sources, [i, i]).square().sum() for i in range(4)]
        grad = partial(torch.autograd.grad, retain_graph=True)
        parts = [grad(reads[3], first)]
        if pull:
            assert not any(source.pull.ledger.reads for source in sources)
        parts += [grad(reads[0] + reads[2], [second, query]), grad(sum(reads), [first, query])]
        expected.append([x for part in parts for x in part])
    same(*expected)


def test_a_reader_that_reads_twice() -> None:
    found = []
    for pull in (True, False):
        leaves = [normal(4, WIDTH, seed=j).requires_grad_() for j in range(3)]
        sources = [score_source(x, leaves[2], None, pull=pull) for x in leaves[:2]]
        one, two = read_scored(sources, [1, 0]), read_scored(sources, [1, 2])
        # A single source is read as it is.
        out = one * two + read_scored(sources[:1], [3])
        found.append(torch.autograd.grad(out.square().sum(), leaves))
    same(*map(list, found))


@pytest.mark.parametrize("reentrant", [False, True], ids=["recomputed", "reentrant"])
def test_a_checkpointed_stack(reentrant: bool) -> None:
    stack = Stack()
    leaves = stack.leaves()
    run = lambda *leaves: stack.run(True, list(leaves))  # noqa: E731
    total = checkpoint(run, *leaves, use_reentrant=reentrant)
    total.backward()
    same([total, *(x.grad for x in leaves)], stack.gradients(False))


def test_checkpointed_layers() -> None:
    """Sources are scored outside of what is recomputed."""
    stack = Stack()
    around = partial(checkpoint, use_reentrant=False)
    same(stack.gradients(True, around=around), stack.gradients(False))


def test_no_second_derivative() -> None:
    stack = Stack()
    leaves = stack.leaves()
    with pytest.raises(RuntimeError, match="pull=True .* leave create_graph out"):
        torch.autograd.grad(stack.run(True, leaves), leaves, create_graph=True)


def test_not_compiled() -> None:
    def call(x: Tensor, query: Tensor) -> Tensor:
        sources = [score_source(y, query, pull=True) for y in (x, x + 1)]
        return read_scored(sources, [0, 0])

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="pull=True is not for torch.compile"):
        compiled(normal(2, WIDTH), normal(1, WIDTH))


def test_all_sources_or_none() -> None:
    x, query = normal(2, WIDTH), normal(1, WIDTH)
    sources = [score_source(x, query, pull=pull) for pull in (True, False)]
    with pytest.raises(ValueError, match="sources: score all of them with pull, or none"):
        read_scored(sources, [0, 0])


@pytest.mark.parametrize(
    "name, given",
    [
        ("value", {"value": torch.ones(2, WIDTH, dtype=torch.int64)}),
        ("query", {"query_RD": normal(1, WIDTH + 1)}),
        ("query", {"query_RD": normal(1, WIDTH).to("meta")}),
        ("bias", {"bias_R": normal(2)}),
    ],
)
def test_wrong_arguments_are_named(name: str, given: dict[str, Tensor]) -> None:
    right = {"value": normal(2, WIDTH), "query_RD": normal(1, WIDTH), "bias_R": normal(1)}
    score_source(**right, pull=True)
    with pytest.raises(ValueError, match=f"^{name} "):
        score_source(**right | given, pull=True)


@contextmanager
def kept() -> Iterator[dict[int, int]]:
    """Bytes of every storage that autograd saves."""
    found: dict[int, Tensor] = {}
    sizes: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        # Kept alive, so that no address is used twice.
        found[storage.data_ptr()] = x.detach()
        sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield sizes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 3])
def test_no_more_is_kept(dtype: torch.dtype, heads: int) -> None:
    stack = Stack(heads, dtype=dtype)
    totals = []
    for pull in (True, False):
        with kept() as sizes:
            stack.run(pull, stack.leaves())
        totals.append(sum(sizes.values()))
    assert totals[0] < totals[1]


class Sums(TorchDispatchMode):
    """Counts additions of whole states, which is what autograd does to several gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        whole = [isinstance(x, Tensor) and x.shape == (*SHAPE, WIDTH) for x in args[:2]]
        if func.overloadpacket in (torch.ops.aten.add, torch.ops.aten.add_):
            self.count += all(whole)
        return func(*args, **(kwargs or {}))


def test_autograd_adds_no_gradients_of_reads() -> None:
    counts = []
    for pull in (True, False):
        stack = Stack()
        total = stack.run(pull, stack.leaves())
        with Sums() as sums:
            total.backward()
        counts.append(sums.count)
    # One for a read source's own gradient, and one where its layer's output is used as well.
    assert counts[0] <= 2 * (LAYERS + 2)
    assert counts[1] >= counts[0] + LAYERS * (LAYERS - 1) / 2


@pytest.mark.parametrize(
    "backbone",
    [
        lambda: AttentionResiduals(),
        lambda: AttentionResiduals(block_size=2, heads=2),
        lambda: PairwiseAttentionResiduals(),
    ],
    ids=["full", "blocks, heads", "pairwise"],
)
def test_a_decoder(backbone: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a route's masked sources."""
    model = small_decoder(backbone(), GatherFFN(), blocks=2)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(0.3 * normal(*parameter.shape, seed=seed))
    frame = Frame(torch.tensor([[1, 2, 3]]))

    def gradients() -> list[Tensor]:
        hidden = model.sweep(frame, frame.positions).hidden
        total = (hidden * normal(*hidden.shape)).sum()
        parameters = list(model.parameters())
        return [
            hidden,
            *torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True),
        ]

    theirs, score, calls = gradients(), score_source, []

    def pulled(*args: Any) -> Scored:
        calls.append(args)
        return score(*args, pull=True)

    monkeypatch.setattr(attention_residuals, "score_source", pulled)
    ours = gradients()
    assert calls and torch.equal(ours[0], theirs[0])
    same(ours, theirs, SAME)
