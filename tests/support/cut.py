"""A sweep cut into its edges: every unit's output, the stack's input and memory are leaves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrt_lab.decoder import Decoder
from lrt_lab.frame import Frame, Memory
from lrt_lab.training.tally import wrapping


class Cut:
    """Which gradients are not zero, at the last position of a row.

    Attributes:
        outputs: the stack's input and every unit's output, leaves, by height.
        reads: what every unit and the head reads of them.
        inputs: the same reads as leaves.
        made: what every unit makes of its own.
        memory: a leaf, None where nothing enters.
    """

    def __init__(self, decoder: Decoder, frame: Frame) -> None:
        self.outputs: dict[int, Tensor] = {}
        self.reads: dict[int, Any] = {}
        self.inputs: dict[int, tuple[Tensor, ...]] = {}
        self.made: dict[int, Tensor] = {}
        self.memory: Tensor | None = None
        self.seed = 0
        memory = None
        if decoder.route.traits.fed:
            carried = self.random(len(frame.ids), frame.length, *decoder.route.carries)
            memory = decoder.memory(carried, frame, frame.positions)

        def leaf(x: Tensor) -> Tensor:
            return x.detach().requires_grad_()

        def incoming(call: Any) -> Any:
            def cut(*given: Any) -> Memory | None:
                arrived = call(*given)
                if arrived is None:
                    return None
                self.memory = leaf(arrived.value)
                return Memory(self.memory, arrived.present)

            return cut

        def embed(call: Any) -> Any:
            def cut(x: Tensor, memory: Any, at: Any) -> Tensor:
                # A zero of its own, since memory may take the place of the token.
                self.outputs[0] = leaf(torch.zeros_like(x))
                return call(x, memory, at) + self.outputs[0]

            return cut

        def evaluate(call: Any) -> Any:
            def cut(unit: int, reads: Any, at: Any, memory: Any, buffer: Any) -> Any:
                self.reads[unit] = reads
                many = isinstance(reads, tuple)
                own = self.inputs[unit] = tuple(map(leaf, reads if many else (reads,)))
                y, buffer = call(unit, own if many else own[0], at, memory, buffer)
                self.made[unit] = y
                self.outputs[unit + 1] = leaf(torch.randn_like(y))
                return self.outputs[unit + 1], buffer

            return cut

        def finish(call: Any) -> Any:
            def cut(state: Any) -> Tensor:
                self.reads[decoder.shape.units] = call(state)
                return self.reads[decoder.shape.units]

            return cut

        torch.manual_seed(0)
        with wrapping() as wrap:
            wrap(decoder.route, "incoming", incoming)
            wrap(decoder.route, "embed", embed)
            wrap(decoder, "evaluate", evaluate)
            wrap(decoder.backbone, "finish", finish)
            self.carried = decoder.sweep(frame, frame.positions, memory).carried

    def random(self, *shape: int) -> Tensor:
        self.seed += 1
        g = torch.Generator().manual_seed(self.seed)
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def gradients(self, of: Any, to: list[Tensor], place: int = -1) -> list[Tensor | None]:
        """Of a random projection of ``of``, ``(B, P, ...)``, at one position."""
        parts = of if isinstance(of, tuple) else (of,)
        total = sum((part[:, place] * self.random(*part[:, place].shape)).sum() for part in parts)
        if not total.requires_grad:
            return [None] * len(to)
        return list(torch.autograd.grad(total, to, retain_graph=True, allow_unused=True))

    def heights(self, of: Any) -> frozenset[int]:
        """Outputs that something depends on; all of them at its own position."""
        found = self.gradients(of, [self.outputs[height] for height in sorted(self.outputs)])
        assert not any(g is not None and bool(g[:, :-1].any()) for g in found)
        return frozenset(h for h, g in enumerate(found) if g is not None and bool(g[:, -1].any()))

    def depth(self, reader: int) -> frozenset[int]:
        return self.heights(self.reads[reader])

    def positions(self, unit: int, place: int) -> list[int]:
        """Positions whose reads a unit's output at one position depends on."""
        found = self.gradients(self.made[unit], list(self.inputs[unit]), place)
        reached = sum((g != 0).any(0).any(-1) for g in found if g is not None)
        return torch.as_tensor(reached).nonzero().flatten().tolist()

    def hears(self, reader: int) -> bool:
        """Whether memory reaches a reader at its own position, not through another unit."""
        if self.memory is None:
            return False
        for of in (self.reads[reader], self.made.get(reader)):
            (found,) = (None,) if of is None else self.gradients(of, [self.memory])
            if found is not None and bool(found[:, -1].any()):
                return True
        return False
