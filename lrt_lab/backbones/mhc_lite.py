"""mHC-lite: the carry as a mixture of permutations, no iterations (arXiv:2601.05732).

As mHC (`lrt_lab.backbones.mhc`), with the carry

    C = sum_k p_k P_k,    p = softmax(alpha_3 m_carry + beta_carry)

over all n! permutation matrices, P_k[i, perm_k(i)] = 1 in lexicographic order, index 0 the
identity. By Birkhoff's theorem these are all doubly stochastic matrices, and both sums are exact.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from lrt_lab.backbones.mhc import MHC, Initial, Readout
from lrt_lab.errors import UserError
from lrt_lab.layers import Shape

LARGEST = 5


def permutations(n: int) -> Tensor:
    """All n! permutation matrices ``(n!, n, n)`` in lexicographic order, for n from 1 to 5."""
    if not 1 <= n <= LARGEST:
        raise UserError(
            f"{n} streams have {math.factorial(n) if n > 0 else 0} permutations:"
            f" give 1 to {LARGEST} streams (at most {math.factorial(LARGEST)} permutations)"
        )
    identity = torch.eye(n)
    return torch.stack([identity[list(order)] for order in itertools.permutations(range(n))])


class MHCLite(MHC):
    """mHC-lite: n streams, mixed by softmax weights over all n! permutations (arXiv:2601.05732).

    The carry preserves the streams' mean and never lengthens them; it may shrink their differences
    to nothing. At step 0 it equals PreNorm as `MHC` does, without Sinkhorn's error. At n = 4 it has
    more routing parameters than mHC: 32 rows of scores per unit, not 24.

    Args:
        streams: number n of streams, 2 to 5.
        write_scale: the factor 2 of the write.
        read_eps: added to the read.
        readout: what the head reads: the "mean" of the streams, their "sum", or "head", a learned
            sigmoid mixture that starts as half the sum.
        initial: "prenorm" as for `MHC`; "authors": read and write biases 1 at stream (unit mod n)
            and -1 elsewhere, which does not equal PreNorm. Permutation biases are 0 at the
            identity and -8 elsewhere in both.
        eps: inside the root mean square of the scores.
    """

    permutations: Tensor

    def __init__(
        self,
        streams: int = 4,
        write_scale: float = 2.0,
        read_eps: float = 0.0,
        readout: Readout = "mean",
        initial: Initial = "prenorm",
        eps: float = 1e-6,
    ) -> None:
        if streams > LARGEST:
            raise UserError(
                f"backbone.streams={streams}: MHCLite mixes {math.factorial(streams)} permutations;"
                f" give 2 to {LARGEST} streams (at most {math.factorial(LARGEST)}), or use MHC"
            )
        super().__init__(
            streams,
            write_scale=write_scale,
            read_eps=read_eps,
            readout=readout,
            initial=initial,
            eps=eps,
        )

    def setup(self, shape: Shape, slots: int) -> None:
        self.register_buffer("permutations", permutations(self.streams), persistent=False)
        super().setup(shape, slots)

    def start_carry(self) -> Tensor:
        start = torch.full((math.factorial(self.streams),), -8.0, device="cpu")
        start[0] = 0.0
        return start

    def mixing(self) -> Tensor:
        return self.permutations
