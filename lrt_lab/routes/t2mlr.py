"""T2MLR: recurrence through the middle layers (Cai et al., arXiv:2607.15178).

One vector R_t, the cache, leaves each position after block b and is merged into the next one's
residual input of block a <= b. With h that input, P = W_rec R_{t-1} and f = [h, R_{t-1}]:

    g_cur = tanh(gamma_cur) sigmoid(A_cur f + c_cur)
    g_rec = tanh(gamma_rec) sigmoid(A_rec f + c_rec)
    h'    = h + g_cur * h + g_rec * P
    R_t   = RMS(h_t^b + R_{t-1})

Without any memory (the initializer sweep) nothing is merged and h_t^b leaves as it is. A cache that
is absent, at a document start, is another thing: there R_{t-1} = 0 and the current stream's gate
acts, so position t is exact after t + 1 feedback passes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lrt_kernels import merge_cache, no_autocast, update_cache, wide
from lrt_lab.errors import UserError
from lrt_lab.frame import Memory, Taps, View
from lrt_lab.layers import Shape, constant, normal, parameter, uniform
from lrt_lab.routes.base import Route, Traits

EPS = 1e-6


class T2MLR(Route):
    """T2MLR: a cache runs through blocks a..b and is gated into the next position before block a.

    The defaults are the paper's equations; the public release is ``features="projected",
    norm="clamped"``, and on rows of question and answer ``questions=False``. Both strengths gamma
    start at zero: at step 0 every pass is the plain model.

    Args:
        first: block a, counted from 0, before which the cache enters; null leaves about two fifths
            of the blocks below the interval.
        last: block b, after which the cache leaves; null leaves as many blocks above as below.
        features: what the gates read beside h: "cache" is R_{t-1} (paper), "projected" is W_rec
            R_{t-1} (release).
        norm: "rms", or "clamped": a factor 1 / RMS within 1/5 and 5 that carries no gradient.
        accumulate: "add" R_{t-1} to the new cache, "detached" adds it without its gradient, "none"
            leaves it out.
        questions: whether the recurrence runs through the tokens of a question too. Without it
            nothing is merged at a question's positions and h_t^b itself leaves them, as in the
            initializer sweep. Data without labels has no question: there it changes nothing.
    """

    traits = Traits(
        offset=1,
        zero_is_none=False,
        absent_is_none=False,
        identity=(("recurrent_strength", 0.0), ("current_strength", 0.0)),
    )

    def __init__(
        self,
        first: int | None = None,
        last: int | None = None,
        features: Literal["cache", "projected"] = "cache",
        norm: Literal["rms", "clamped"] = "rms",
        accumulate: Literal["add", "detached", "none"] = "add",
        questions: bool = True,
    ) -> None:
        super().__init__()
        if features not in ("cache", "projected"):
            raise UserError(f"route.features={features!r}: give cache or projected")
        if norm not in ("rms", "clamped"):
            raise UserError(f"route.norm={norm!r}: give rms or clamped")
        if accumulate not in ("add", "detached", "none"):
            raise UserError(f"route.accumulate={accumulate!r}: give add, detached or none")
        self.first, self.last = first, last
        self.features, self.norm, self.accumulate = features, norm, accumulate
        self.questions = questions

    def setup(self, shape: Shape) -> None:
        super().setup(shape)
        first = 2 * shape.blocks // 5 if self.first is None else self.first
        last = shape.blocks - 1 - first if self.last is None else self.last
        if not 0 <= first <= last < shape.blocks:
            raise UserError(
                f"route.first={first}, route.last={last}: give blocks with"
                f" 0 <= first <= last <= {shape.blocks - 1}"
            )
        self.interval = range(2 * first, 2 * (last + 1))
        self.needs = Taps(units=(self.interval.stop,))
        width = shape.width
        # The released code's initial values: torch's default for W_rec, Xavier's for the gates.
        self.projection = parameter(width, width, init=uniform(width**-0.5), role="matrix")
        for name in ("recurrent", "current"):
            gate = parameter(width, 2 * width, init=normal((2 / (3 * width)) ** 0.5), role="router")
            self.register_parameter(f"{name}_gate", gate)
            bias = parameter(width, init=constant(0.0), role="connection")
            self.register_parameter(f"{name}_bias", bias)
            strength = parameter(1, init=constant(0.0), role="connection")
            self.register_parameter(f"{name}_strength", strength)

    def emit(self, taps: dict[Any, Any], memory: Memory | None, at: View) -> Tensor:
        h: Tensor = taps[self.interval.stop]
        return h if memory is None else self.outside(at, self.update(h, memory.value), h)

    def update(self, h: Tensor, cache: Tensor) -> Tensor:
        """R_t from the state after block b and R_{t-1}, ``(B, P, d)`` each."""
        if self.accumulate == "none":
            return update_cache(h, None, self.norm == "clamped", EPS)
        cache = cache.detach() if self.accumulate == "detached" else cache
        return update_cache(h, cache, self.norm == "clamped", EPS)

    def enter(self, unit: int, x: Tensor, memory: Memory | None, at: View) -> Tensor:
        if memory is None or unit != self.interval.start:
            return x
        return self.outside(at, self.merge(x, memory.value), x)

    def outside(self, at: View, new: Tensor, plain: Tensor) -> Tensor:
        """The new state, but the plain one where the recurrence passes by, ``(B, P, d)`` each."""
        if self.questions or at.question is None:
            return new
        return torch.where(at.question.unsqueeze(-1), plain, new)

    def merge(self, h: Tensor, cache: Tensor) -> Tensor:
        """h' from the residual input of block a and R_{t-1}, ``(B, P, d)`` each."""
        projected = F.linear(cache, self.projection)
        with no_autocast(h.device.type):
            dtype = wide(h.dtype)
            read = projected if self.features == "projected" else cache
            features = torch.cat([h.to(dtype), read.to(dtype)], dim=-1)
            return merge_cache(
                h,
                projected,
                self.gate("current", features),
                self.gate("recurrent", features),
                self.get_parameter("current_strength"),
                self.get_parameter("recurrent_strength"),
            )

    def gate(self, name: str, features: Tensor) -> Tensor:
        """The logits A f + c of a gate, ``(B, P, d)``."""
        weight, bias = (
            self.get_parameter(f"{name}_{part}").to(features.dtype) for part in ("gate", "bias")
        )
        return F.linear(features, weight, bias)
