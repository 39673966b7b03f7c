"""Turns: how a state g is moved by directions v that a token chose, most of them keeping its norm.

With n = v / |v|, b in (0, 2), a in (0, 1), and z the slot that had arrived at the position before:

    reflection    H(v) g = g - 2 n (n . g)
    generalised   g - b n (n . g)                 b = 1 forgets the part along n, b -> 2 mirrors it
    double        H(v_2) H(v_1) g                 a rotation by twice the angle between v_1 and v_2
    cayley        (I + A)^-1 (I - A) g            a rotation in the plane of v_1 and v_2, with
                                                  A = (v_1 v_2' - v_2 v_1') / d
    delta         a z + b n (n . (g - a z))       the gated delta rule (Yang et al., 2412.06464): of
                                                  the kept slot the part along n is written anew

Everything is float32 or wider, so that norms survive thousands of positions, and defined where a
direction is missing: the first four then leave g as it is, the last one keeps a z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from lrt_kernels import direction, no_autocast, slot_reflect, wide


@dataclass(frozen=True)
class Turn:
    """One way to turn.

    Attributes:
        apply: z from the state, the directions, the gates' logits and the slot before, in float32
            or wider, ``(..., d)`` each and ``(..., 1)`` a logit.
        vectors: directions per slot.
        gates: initial logits of its gates.
        before: whether it needs the slot that had arrived at the position before.
    """

    apply: Callable[[Tensor, Sequence[Tensor], Sequence[Tensor], Tensor | None], Tensor]
    vectors: int = 1
    gates: tuple[float, ...] = ()
    before: bool = False

    def __call__(
        self,
        g: Tensor,
        vectors: Sequence[Tensor],
        gates: Sequence[Tensor] = (),
        before: Tensor | None = None,
    ) -> Tensor:
        """z, in the state's own dtype."""
        with no_autocast(g.device.type):
            dtype = wide(g.dtype)
            vectors, gates = ([x.to(dtype) for x in given] for given in (vectors, gates))
            before = None if before is None else before.to(dtype)
            return self.apply(g.to(dtype), vectors, gates, before).to(g.dtype)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """x . y, ``(..., 1)``."""
    return (x * y).sum(-1, keepdim=True)


def rotated(g: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The Cayley rotation of g by A = (u v' - v u') / d, by Woodbury's identity on its rank 2."""
    u, v = (x / x.shape[-1] ** 0.5 for x in (u, v))
    uu, vv, uv = dot(u, u), dot(v, v), dot(u, v)
    ug, vg = dot(u, g), dot(v, g)
    # At least 1, by Cauchy and Schwarz.
    determinant = 1 - uv.square() + uu * vv
    along_u, along_v = (1 - uv) * vg + vv * ug, uu * vg - (1 + uv) * ug
    return g - 2 / determinant * (along_u * u + along_v * v)


def written(g: Tensor, v: Tensor, keep: Tensor, strength: Tensor, before: Tensor) -> Tensor:
    """What is kept of the slot before, its part along v moved to that of g."""
    n, kept = direction(v), keep * before
    return kept + strength * n * dot(n, g - kept)


def _delta(
    g: Tensor, v: Sequence[Tensor], gates: Sequence[Tensor], before: Tensor | None
) -> Tensor:
    assert before is not None
    return written(g, v[0], gates[1].sigmoid(), 2 * gates[0].sigmoid(), before)


TURNS = {
    "reflection": Turn(lambda g, v, gates, before: slot_reflect(g, v[0])),
    "generalised": Turn(
        lambda g, v, gates, before: slot_reflect(g, v[0], 2 * gates[0].sigmoid()),
        gates=(0.0,),
    ),
    "double": Turn(
        lambda g, v, gates, before: slot_reflect(slot_reflect(g, v[0]), v[1]), vectors=2
    ),
    "cayley": Turn(lambda g, v, gates, before: rotated(g, v[0], v[1]), vectors=2),
    # The slot is mostly kept at first.
    "delta": Turn(_delta, gates=(0.0, 2.0), before=True),
}
