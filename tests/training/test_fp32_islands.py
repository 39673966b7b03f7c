"""Two steps of a Lightning fit in bf16: whatever routes state is float32, and so is its arithmetic.

A dispatch mode sees every operation of the fit below autograd and autocast. Starting from the
routing parameters it follows whatever is computed from them alone, and notes the dtype of every
matrix product that one of these enters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from lrt_lab.backbones import PreNorm
from lrt_lab.frame import Frame
from lrt_lab.layers import SquaredReLU
from lrt_lab.mixers import Attention, GatedDeltaNet
from lrt_lab.module import LanguageModel
from lrt_lab.routes import LRT
from lrt_lab.training.lab_cli import quiet
from lrt_lab.training.optimizer import AdamW
from tests.support.models import randomise, tokens
from tests.support.registry import BACKBONES

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear"}
#: Gains of norms and taps of convolutions: they scale features and route nothing.
FEATURES = {"post_gain", "source_gain", "slot_gain", "query_conv", "key_conv", "value_conv"}
CASES = {str(b): (b, lambda: Attention(heads=2)) for b in BACKBONES}
CASES["GatedDeltaNet"] = (PreNorm, lambda: GatedDeltaNet(heads=2))


class Follow(TorchDispatchMode):
    """Follows tensors that are computed from some parameters alone.

    Attributes:
        products: dtypes of the operands that meet each parameter in a matrix product.
        narrowed: parameters that were cast, alone, to fewer than 32 bits.
    """

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        # By storage: views share it, and what backward unpacks is another object. Kept alive, so
        # that no address is used twice.
        self.known: dict[int, tuple[frozenset[str], Tensor]] = {}
        for name, parameter in parameters.items():
            self.know(parameter, frozenset([name]))
        self.products: dict[str, set[torch.dtype]] = {}
        self.narrowed: set[str] = set()

    def know(self, tensor: Tensor, names: frozenset[str]) -> None:
        self.known.setdefault(tensor.untyped_storage().data_ptr(), (names, tensor))

    def names(self, tensor: Tensor) -> frozenset[str]:
        return self.known.get(tensor.untyped_storage().data_ptr(), (frozenset(), tensor))[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        inputs = floats((args, kwargs))
        if name == "eye":
            # What spreads a query over its heads is a constant.
            self.know(out, frozenset())
        met = frozenset().union(*(self.names(tensor) for tensor in inputs))
        # An optimizer's step mixes parameters, gradients and moments of one dtype.
        if not met or name.startswith("_foreach"):
            return out
        if name in PRODUCTS:
            for parameter in met:
                self.products.setdefault(parameter, set()).update(t.dtype for t in inputs)
        if all(tensor.untyped_storage().data_ptr() in self.known for tensor in inputs):
            for result in floats(out):
                if result.itemsize < 4:
                    self.narrowed |= met
                self.know(result, met)
        return out


def floats(tree: Any) -> list[Tensor]:
    """The floating tensors somewhere in there that have memory."""
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.is_floating_point() and leaf.numel()]


class Watch(Callback):
    """Has a mode follow the fit, forward, backward and step."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == 0:
            self.mode = Follow(routing(pl_module))
        self.mode.__enter__()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        self.mode.__exit__(None, None, None)
        self.gradients = {
            name: parameter.grad.dtype
            for name, parameter in pl_module.decoder.named_parameters()
            if parameter.grad is not None
        }


def routing(module: LanguageModel) -> dict[str, Tensor]:
    """Connection and router parameters by name."""
    named = module.decoder.named_parameters()
    return {name: p for name, p in named if p.role in ("connection", "router")}


@pytest.fixture(params=["bf16-mixed", "bf16-true"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    quiet()
    yield request.param


@pytest.mark.parametrize("case", CASES)
def test_two_steps(case: str, precision: str) -> None:
    backbone, mixer = CASES[case]
    module = LanguageModel(backbone(), LRT(), mixer(), SquaredReLU(16), AdamW(), None, 8, 3, 40)
    # No zeros: a query of zeros would hide what its product is.
    randomise(module.decoder, routing=0.2)
    before = {name: p.detach().clone() for name, p in module.decoder.named_parameters()}
    ids, watch = tokens(9, rows=4), Watch()
    batch = {"tokens": ids, "document": torch.zeros_like(ids)}
    trainer = Trainer(
        accelerator="cpu",
        precision=precision,
        max_steps=2,
        callbacks=[watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader([batch, batch], batch_size=None))

    body = torch.bfloat16 if precision == "bf16-true" else torch.float32
    expected = {
        name: torch.float32 if parameter.role in ("connection", "router") else body
        for name, parameter in module.decoder.named_parameters()
    }
    dtypes = {name: parameter.dtype for name, parameter in module.decoder.named_parameters()}
    print("\n".join(f"{name:45} {dtype}" for name, dtype in dtypes.items()))
    assert dtypes == expected
    assert watch.gradients == {name: expected[name] for name in watch.gradients}
    after = dict(module.decoder.named_parameters())
    assert not any(torch.equal(after[name], before[name]) for name in routing(module))

    wide = {name: {torch.float32} for name in watch.mode.products}
    assert watch.mode.products == wide
    routers = {name for name, p in after.items() if p.role == "router"}
    gates = {name for name in after if name.startswith("route.gate") or name.endswith("query")}
    gates -= {name for name in after if name.startswith("units")}
    assert routers | gates <= set(watch.mode.products)
    assert not [name for name in watch.mode.narrowed if not FEATURES & set(name.split("."))]
    for name, found in coefficients(module, trainer).items():
        assert found.dtype == torch.float32, name


def coefficients(module: LanguageModel, trainer: Trainer) -> dict[str, Tensor]:
    """Read weights and carries of every unit, made as training makes them."""
    decoder, frame = module.decoder, Frame(tokens(9))
    units = range(decoder.shape.units + 1)
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        states = decoder.sweep(frame, frame.positions, save=units).saved
        return {
            f"{name} of unit {unit}": value
            for unit in units
            for name, value in decoder.backbone.routing(states[unit], unit).items()
            if name != "streams"
        }


def test_the_mode_sees_what_is_narrowed() -> None:
    weight, x = torch.randn(4, 4), torch.randn(2, 4)
    with Follow({"weight": weight}) as mode:
        (x.bfloat16() @ (2 * weight).T.bfloat16()).sum()
    assert mode.products == {"weight": {torch.bfloat16}}
    assert mode.narrowed == {"weight"}
