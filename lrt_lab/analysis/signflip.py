"""Exact sign-flip test of a per-seed contrast: no distribution assumed beyond symmetry around
zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

# 2^16 sign vectors is where exactness stops being cheap
MOST_SEEDS = 16


def signs(n: int) -> np.ndarray:
    """All 2^n sign vectors, (2^n, n)."""
    return 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)


def sign_flip(differences: ArrayLike) -> np.ndarray:
    """Two-sided p: the share of the 2^n sign vectors whose |mean| reaches the observed one. (...,
    seeds) -> (...).
    """
    d = np.asarray(differences, dtype=float)
    n = d.shape[-1]
    if n < 2 or n > MOST_SEEDS:
        return np.full(d.shape[:-1], np.nan)
    # a vector and its negative have the same |mean|: half of them suffice
    half = signs(n)[: 2 ** (n - 1)]
    sums = np.abs(d @ half.T)
    observed = np.abs(d.sum(axis=-1))
    # ties count as reached, also when rounding splits them
    return (sums >= observed[..., None] * (1 - 1e-9)).mean(axis=-1)


def floor(n: int) -> float:
    """The smallest p that n seeds can give, 2 / 2^n: .0625 at n = 5, which cannot reach .05."""
    return min(1.0, 2.0 ** (1 - n))


def max_t(differences: ArrayLike) -> np.ndarray:
    """Family-wise sign-flip p-values for k contrasts (k, seeds): whole seed columns flip together,
    max |t| is compared.
    """
    d = np.asarray(differences, dtype=float)
    n = d.shape[-1]
    if n < 2 or n > MOST_SEEDS:
        return np.full(d.shape[0], np.nan)
    flips = signs(n)[: 2 ** (n - 1)]
    square = (d**2).mean(axis=-1)[:, None]
    mean = d @ flips.T / n
    # t is monotone in mean^2 / mean square, which spares the division by a zero deviation
    with np.errstate(invalid="ignore"):
        share = np.where(square > 0, mean**2 / square, 0.0)
    observed = share[:, 0]
    return (share.max(axis=0)[None, :] >= observed[:, None] * (1 - 1e-9)).mean(axis=-1)
