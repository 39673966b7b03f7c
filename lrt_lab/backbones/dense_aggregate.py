"""Several weighted sums over a list of sources, with weights that the newest one generates.

    z   = W_2 GELU(W_1 RMS(h)) + a        one coefficient per (way, source)
    u^c = sum_j z_{c,j} s_j

This is MUDDFormer's one piece of arithmetic (arXiv:2502.12170 Eq. 6-8). Coefficients are float32 or
wider and unconstrained; sources stay separate tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrt_kernels import alike, dense_aggregate, gelu_mix, no_autocast, normed_scores, wide
from lrt_lab.layers import constant, normal, parameter


@dataclass(frozen=True)
class Form:
    """The options of `MUDDFormer` that every aggregate shares."""

    dynamic: bool
    prepost: bool
    gelu: Literal["erf", "tanh"]
    eps: float
    newest_only: bool = False

    @property
    def approximate(self) -> str:
        """Torch's name of the GELU."""
        return "none" if self.gelu == "erf" else "tanh"


class Aggregate(nn.Module):
    """What the next block (or the head) reads of the outputs so far.

    Axes: ``generator`` (hidden, d); ``mixture`` (way and source, hidden), way by way; ``prior``
    (way, source), sources from the embedding to the newest output. A route's slots are further
    sources with parameters of their own, so that the others never change shape.

    Args:
        width: features d.
        ways: number of sums.
        sources: number of sources; 1 is the embedding alone, read with the fixed weight 1.
        slots: number of a route's slots.
        hidden: features inside the generator.
        form: the shared options.
    """

    def __init__(
        self, width: int, ways: int, sources: int, slots: int, hidden: int, form: Form
    ) -> None:
        super().__init__()
        self.ways, self.sources, self.slots, self.form = ways, sources, slots, form
        zero = constant(0.0)

        def newest(tensor: Tensor, g: torch.Generator) -> None:
            tensor.zero_()
            if not form.prepost:
                tensor[:, -1] = 1.0

        if form.dynamic:
            self.generator = parameter(hidden, width, init=normal(width**-0.5), role="router")
            if form.prepost:
                self.generator_gain = parameter(width, init=constant(1.0), role="connection")
        if form.prepost:
            self.post_gain = parameter(width, init=constant(1e-3), role="connection")
        # The embedding alone needs no weights.
        self.learned = sources if sources > 1 else 0
        if self.learned:
            self.prior = parameter(ways, sources, init=newest, role="connection")
            if form.dynamic:
                self.mixture = parameter(ways * sources, hidden, init=zero, role="router")
        if slots:
            # Added to the embedding at first, as PreNorm does; later blocks find it in their input.
            first = 1.0 if sources == 1 and not form.prepost else 0.0
            self.slot_prior = parameter(ways, slots, init=constant(first), role="connection")
            if form.dynamic:
                self.slot_mixture = parameter(ways * slots, hidden, init=zero, role="router")

    def forward(
        self,
        newest: Tensor,
        sources: Sequence[Tensor],
        slots: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> tuple[Tensor, ...]:
        """One ``(B, P, d)`` per way.

        Args:
            newest: the newest output ``(B, P, d)``, which generates the coefficients.
            sources: all outputs, oldest first, or with PrePost their normed copies.
            slots: the route's sources and where they are present, ``(B, P)`` bool.
        """
        weights = self.coefficients(newest)
        inputs = list(sources) if self.learned else []
        if self.form.newest_only and self.learned:
            inputs, weights = inputs[-1:], weights[..., self.learned - 1 :]
        if slots:
            weights = self._masked(weights, len(inputs), [present for _, present in slots])
            inputs += [value for value, _ in slots]
        sums = dense_aggregate(weights, alike(inputs))
        if self.form.prepost:
            residual = F.rms_norm(
                sums[-1], newest.shape[-1:], self.post_gain.to(newest.dtype), self.form.eps
            )
            return (*(newest + way for way in sums[:-1]), newest + residual)
        if not self.learned:
            return tuple(newest + way for way in sums)
        return tuple(sums)

    def coefficients(self, newest: Tensor) -> Tensor:
        """``(B, P, way, source)``, sources then slots; ``(1, 1, way, source)`` where static."""
        dtype = wide(newest.dtype)
        names = [name for name, used in (("", self.learned), ("slot_", self.slots)) if used]
        parts = []
        with no_autocast(newest.device.type):
            if self.form.dynamic:
                gain = self.generator_gain if self.form.prepost else None
                scores = normed_scores(newest, self.generator, gain, self.form.eps)
            for name in names:
                part = self.get_parameter(f"{name}prior").to(dtype).expand(1, 1, -1, -1)
                if self.form.dynamic:
                    mixture = self.get_parameter(f"{name}mixture")
                    dynamic = gelu_mix(scores, mixture, self.form.approximate)
                    part = dynamic.unflatten(-1, part.shape[2:]) + part
                parts.append(part)
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _masked(self, weights: Tensor, own: int, present: Sequence[Tensor]) -> Tensor:
        """Coefficients that are zero where a slot is absent."""
        mask = torch.stack([torch.ones_like(present[0])] * own + list(present), dim=-1)
        return weights * mask.unsqueeze(-2)
